//! Selects panels and arranges those of several runs.

use super::sheet::Panel;
use super::source::Source;
use super::style;
use palimpsest_analysis::lens::{Correctness, Lens};

/// Panels of each run as rows of one sheet, side by side if they fit. With several runs, panel titles name the run.
pub(super) fn arranged(
    sources: &[Source<'_>],
    mut blocks: Vec<Vec<Vec<Option<Panel>>>>,
) -> Vec<Vec<Option<Panel>>> {
    const MOST_COLUMNS: usize = 4;
    if let [_] = sources {
        return blocks.pop().unwrap_or_default();
    }
    for (block, source) in blocks.iter_mut().zip(sources) {
        let name = style::shortened(&source.origin.name, 28);
        for panel in block.iter_mut().flatten().flatten() {
            panel.title = format!("{name} · {}", panel.title);
        }
    }
    let width = |block: &Vec<Vec<Option<Panel>>>| block.iter().map(Vec::len).max().unwrap_or(0);
    if blocks.iter().map(width).sum::<usize>() > MOST_COLUMNS {
        return blocks.into_iter().flatten().collect();
    }
    let rows = blocks.iter().map(Vec::len).max().unwrap_or(0);
    let beside = |row: usize| {
        let of_block = |block: &Vec<Vec<Option<Panel>>>| {
            let mut panels = block.get(row).cloned().unwrap_or_default();
            panels.resize(width(block), None);
            panels
        };
        blocks.iter().flat_map(of_block).collect()
    };
    (0..rows).map(beside).collect()
}

/// Adds the condition to a title if all runs share it; else panels name theirs.
pub(super) fn titled_by(sources: &[Source<'_>], title: String) -> String {
    match sources {
        [one, others @ ..] if others.iter().all(|other| other.origin.condition == one.origin.condition) => {
            one.origin.titled(title)
        }
        _ => title,
    }
}

pub(super) fn origins(sources: &[Source<'_>]) -> String {
    sources.iter().map(|source| source.origin.line.clone()).collect::<Vec<_>>().join("\n")
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
    match lens.splits() == [Correctness::All] {
        true => panel_probes(lens),
        false => panel_probes(lens)
            .into_iter()
            .filter(|probe| probe.as_ref().is_none_or(|probe| lens.pooled.contains(probe)))
            .collect(),
    }
}

/// Split values with panels; the union if the data has none.
pub(super) fn panel_kinds(lens: &Lens) -> Vec<Option<String>> {
    match lens.kinds.is_empty() {
        true => vec![None],
        false => lens.kinds.iter().cloned().map(Some).collect(),
    }
}
