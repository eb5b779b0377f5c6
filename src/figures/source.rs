//! The runs that a figure shows.

use super::style;
use crate::lens::{AnalysedRun, Lens};

/// What every figure says of its origin.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The model's name, without folders.
    pub model: String,
    /// One line: model, data, context, judge.
    pub line: String,
}

impl Origin {
    /// From a run's header and the judge whose verdicts split the examples.
    pub fn of(run: &AnalysedRun, judge: Option<&str>) -> Self {
        let named = |pointer: &str, fallback: &str| -> String {
            let text = run.header_text(pointer).unwrap_or_else(|| fallback.to_owned());
            let name = text.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(&text);
            style::shortened(name, 48)
        };
        let model = named("/identity/model/name", "model unnamed");
        let mut parts = vec![model.clone(), named("/identity/dataset/name", "data unnamed")];
        parts.push(match run.cases().len() {
            1 => "1 case".to_owned(),
            n => format!("{n} cases"),
        });
        if let Some(tokens) = run.header_text("/identity/context/tokens") {
            parts.push(format!("context {tokens} tokens"));
        }
        if let Some(judge) = judge {
            parts.push(format!("judge {}", style::shortened(judge, 40)));
        }
        Origin { model, line: parts.join(" · ") }
    }

    /// The same, with a condition named.
    #[must_use]
    pub fn under(mut self, condition: &str) -> Self {
        self.line = format!("{} · {condition}", self.line);
        self
    }
}

/// A run in a figure.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Its examples.
    pub lens: &'a Lens,
    /// What the figure says of it. Where there are several, the models' names tell them apart.
    pub origin: &'a Origin,
}
