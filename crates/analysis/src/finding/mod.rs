//! The finding of a run in at most four sentences, and the numbers behind them by session. A sentence has one denominator, or each number
//! has its own beside it.
//!
//! Attention is the row over all groups that `palimpsest lens` prints ([`Lens::series`](crate::lens::Lens::series) of
//! [`Group::all`](crate::lens::Group::all)); effects and controls are those of [`Causes`]. With several conditions the plain one is
//! described, or the first with attention. Printed by `run`, `lens`, `causes` and `why`, and shown on pages. Runs no model and writes
//! nothing.

use std::collections::HashMap;

use crate::lens::Study;
use crate::lens::causes::{CausedAnswer, CausedSession, Causes};
use palimpsest_core::span::Span;
use palimpsest_data::ground::table::wrapped;

mod roles;
mod verdicts;
mod words;

use roles::kind_of;
pub use verdicts::cut_in_words;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Finding {
    pub sentences: Vec<String>,
    /// Sessions with a role, by answer; empty without effects.
    pub dots: Vec<Dot>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    pub case: String,
    pub probe: String,
    pub condition: String,
    pub span: String,
    pub role: String,
    /// Share of the question's attention, mean over heads and softmax layers.
    pub attention: f64,
    /// Log-probability per token that the answer loses without the span, in nats.
    pub effect: f64,
}

impl Finding {
    pub fn of(study: &Study, causes: Option<&Causes>) -> Self {
        let plain = study.measured().find(|(condition, _)| condition.name.is_empty());
        let described = plain.or_else(|| study.measured().next());
        let sentences = match (described, study.conditions.first()) {
            (Some((condition, lens)), _) => words::Words::of(study, condition, lens).sentences(causes),
            (None, Some(condition)) => vec![words::unmeasured(study, condition)],
            (None, None) => Vec::new(),
        };
        Finding { sentences, dots: causes.map(|causes| dots(study, causes)).unwrap_or_default() }
    }

    /// One sentence per paragraph, wrapped; empty without sentences.
    pub fn lines(&self, width: usize) -> String {
        self.sentences.iter().map(|sentence| wrapped(sentence, width) + "\n").collect()
    }
}

fn dots(study: &Study, causes: &Causes) -> Vec<Dot> {
    let mut measured = HashMap::new();
    for (condition, lens) in study.measured() {
        for example in &lens.examples {
            let key = (&*condition.name, &*example.case, &*example.probe);
            measured.insert(key, (kind_of(lens), example));
        }
    }
    let of_answer = |answer: &CausedAnswer| -> Vec<Dot> {
        let Some((kind, example)) = measured.get(&(&*answer.condition, &*answer.case, &*answer.probe)) else {
            return Vec::new();
        };
        let dot = |session: &CausedSession| {
            let index = Span::new(session.span.as_str(), 0..0).segment()?;
            let segment = example.segments.iter().find(|segment| segment.index == index)?;
            Some(Dot {
                case: answer.case.clone(),
                probe: answer.probe.clone(),
                condition: answer.condition.clone(),
                span: session.span.clone(),
                role: session.role.clone()?,
                attention: example.mean_over(*kind, segment)?,
                effect: session.drop(),
            })
        };
        answer.sessions.iter().filter_map(dot).collect()
    };
    causes.answers.iter().flat_map(of_answer).collect()
}
