//! Runs shown by a figure, their panels, and the arrangement of those of several runs.

use super::sheet::{Panel, Sheet};
use super::style::shortened;
use palimpsest_analysis::lens::{AnalysedRun, Correctness, Lens};
use palimpsest_data::ground::words::counted;

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
            shortened(name.rsplit('#').next().unwrap_or(name), 48)
        };
        let model = named("/identity/model/name", "model unnamed");
        let mut parts = vec![model.clone(), named("/identity/dataset/name", "data unnamed")];
        // A broken question of one's own is planned as a case of its own.
        let own = run.benchmark().companion.is_some();
        let cases = run.cases().iter().filter(|case| !own || case.broken.is_none());
        parts.push(counted(cases.count(), "case"));
        let tokens = run.header_text("/identity/context/tokens");
        parts.extend(tokens.map(|tokens| format!("context {tokens} tokens")));
        parts.extend(judge.map(|judge| format!("judge {}", shortened(short_judge(judge), 60))));
        Origin { name: model.clone(), model, condition: None, line: parts.join(" · ") }
    }

    /// Origin of several sources together, with their condition if all share it; else panels name theirs.
    pub(super) fn of_all(sources: &[Source<'_>]) -> Self {
        let lines: Vec<&str> = sources.iter().map(|source| source.origin.line.as_str()).collect();
        let mut conditions = sources.iter().map(|source| &source.origin.condition);
        let first = conditions.next().cloned().flatten();
        let condition = first.filter(|first| conditions.all(|other| other.as_ref() == Some(first)));
        Origin { condition, line: lines.join("\n"), ..Origin::default() }
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
}

impl Sheet {
    /// Adds the title, after the condition if there is one, and the origin.
    #[must_use]
    pub(super) fn headed(self, origin: &Origin, title: String) -> Self {
        let title = match &origin.condition {
            Some(condition) => format!("{condition}: {title}"),
            None => title,
        };
        Sheet { title, origin: origin.line.clone(), ..self }
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

/// Panels of each run as rows of one sheet, side by side if they fit. With several runs, panel titles name the run.
pub(super) fn arranged(sources: &[Source<'_>], mut blocks: Vec<Vec<Vec<Panel>>>) -> Vec<Vec<Panel>> {
    const MOST_COLUMNS: usize = 4;
    for (block, source) in blocks.iter_mut().zip(sources).filter(|_| sources.len() > 1) {
        let name = shortened(&source.origin.name, 28);
        for panel in block.iter_mut().flatten() {
            panel.title = format!("{name} · {}", panel.title);
        }
    }
    let width = |block: &Vec<Vec<Panel>>| block.iter().map(Vec::len).max().unwrap_or(0);
    if blocks.len() < 2 || blocks.iter().map(width).sum::<usize>() > MOST_COLUMNS {
        return blocks.concat();
    }
    let rows = blocks.iter().map(Vec::len).max().unwrap_or(0);
    let beside = |row: usize| blocks.iter().filter_map(|block| block.get(row)).flatten().cloned().collect();
    (0..rows).map(beside).collect()
}

/// Maximum number of probes with panels of their own.
pub(super) const MOST_PROBES: usize = 6;

/// Probes with panels: all, or only their union if there are too many.
pub(super) fn panel_probes(lens: &Lens) -> Vec<Option<String>> {
    match lens.probes.len() {
        1..=MOST_PROBES => lens.probes.iter().cloned().map(Some).collect(),
        _ => vec![None],
    }
}

/// Probes with panels split by verdict: the pooled ones; without verdicts, all.
pub(super) fn split_probes(lens: &Lens) -> Vec<Option<String>> {
    let mut probes = panel_probes(lens);
    if lens.splits() != [Correctness::All] {
        probes.retain(|probe| probe.as_ref().is_none_or(|probe| lens.pooled.contains(probe)));
    }
    probes
}

/// Split values with panels; the union if the data has none.
pub(super) fn panel_kinds(lens: &Lens) -> Vec<Option<String>> {
    match lens.kinds.is_empty() {
        true => vec![None],
        false => lens.kinds.iter().cloned().map(Some).collect(),
    }
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
