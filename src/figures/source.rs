//! The runs that a figure shows.

use super::style;
use crate::lens::{AnalysedRun, Lens};

/// What every figure says of its origin.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The model's name, without folders.
    pub model: String,
    /// What tells it apart from other sources of one figure: the model, or the condition.
    pub name: String,
    /// The condition as its title names it; `None` where that says nothing, or the panels name theirs.
    pub condition: Option<String>,
    /// One line: model, data, context, judge, condition.
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
        Origin { name: model.clone(), model, condition: None, line: parts.join(" · ") }
    }

    /// The same under a condition, which titles, panels and the line of origin name.
    #[must_use]
    pub fn under(mut self, condition: &str) -> Self {
        self.line = format!("{} · {condition}", self.line);
        self.name = condition.to_owned();
        self.condition = Some(condition.to_owned());
        self
    }

    /// The same over several conditions, which the line of origin lists and the panels name.
    #[must_use]
    pub fn over(self, conditions: &str) -> Self {
        Origin { line: format!("{} · {conditions}", self.line), ..self }
    }

    /// A title, after the condition where there is one to name.
    pub(super) fn titled(&self, title: String) -> String {
        match &self.condition {
            Some(condition) => format!("{condition}: {title}"),
            None => title,
        }
    }
}

/// A run in a figure.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Its examples.
    pub lens: &'a Lens,
    /// What the figure says of it. Where there are several, their names tell them apart.
    pub origin: &'a Origin,
}
