//! Runs shown by a figure.

use super::style;
use palimpsest_analysis::lens::{AnalysedRun, Lens};

#[derive(Debug, Clone, Default)]
pub struct Origin {
    pub model: String,
    /// Distinguishes sources of one figure: the model, or the condition.
    pub name: String,
    /// Condition for titles; `None` if redundant or named by the panels.
    pub condition: Option<String>,
    /// One line: model, data, context, judge, condition.
    pub line: String,
}

impl Origin {
    pub fn of(run: &AnalysedRun, judge: Option<&str>) -> Self {
        let named = |pointer: &str, fallback: &str| -> String {
            let text = run.header_text(pointer).unwrap_or_else(|| fallback.to_owned());
            let name = text.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next().unwrap_or(&text);
            let name = name.rsplit('#').next().unwrap_or(name);
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
            parts.push(format!("judge {}", style::shortened(short_judge(judge), 40)));
        }
        Origin { name: model.clone(), model, condition: None, line: parts.join(" · ") }
    }

    /// Adds a condition to titles, panels and the origin line.
    #[must_use]
    pub fn under(mut self, condition: &str) -> Self {
        self.line = format!("{} · {condition}", self.line);
        self.name = condition.to_owned();
        self.condition = Some(condition.to_owned());
        self
    }

    /// Adds several conditions to the origin line; panels name them.
    #[must_use]
    pub fn over(self, conditions: &str) -> Self {
        Origin { line: format!("{} · {conditions}", self.line), ..self }
    }

    /// Prefixes a title with the condition, if any.
    pub(super) fn titled(&self, title: String) -> String {
        match &self.condition {
            Some(condition) => format!("{condition}: {title}"),
            None => title,
        }
    }
}

/// Judge name without address and locality: `qwen3-8b (strict)`.
pub(super) fn short_judge(label: &str) -> &str {
    let asked = label.starts_with("http://") || label.starts_with("https://");
    let model = label.split_once('#').filter(|_| asked).map_or(label, |(_, model)| model);
    model.strip_prefix("local:").unwrap_or(model)
}

#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    pub lens: &'a Lens,
    /// With several sources, its name is unique.
    pub origin: &'a Origin,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_judge_is_named_without_its_address() {
        for (label, name) in [
            ("http://127.0.0.1:8000/v1#qwen3-8b (strict)", "qwen3-8b (strict)"),
            ("https://host/v1#org/model", "org/model"),
            ("local:qwen3-8b (strict)", "qwen3-8b (strict)"),
            ("exact match", "exact match"),
        ] {
            assert_eq!(short_judge(label), name);
        }
    }
}
