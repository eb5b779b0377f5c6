//! What a run found, in a few sentences.

use crate::lens::Study;
use crate::lens::causes::Causes;

#[derive(Debug, Clone, Default)]
pub struct Finding {
    pub sentences: Vec<String>,
    pub dots: Vec<Dot>,
}

/// A session with a role, in an answer whose effects are known.
#[derive(Debug, Clone)]
pub struct Dot {
    pub case: String,
    pub probe: String,
    pub condition: String,
    pub span: String,
    pub role: String,
    /// Share of the question's attention, mean over heads and softmax layers.
    pub attention: f64,
    /// Log-probability per token that the answer loses when the span is hidden, in nats.
    pub effect: f64,
}

impl Finding {
    pub fn of(_study: &Study, _causes: Option<&Causes>) -> Self {
        Finding::default()
    }
}
