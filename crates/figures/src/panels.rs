//! Which panels a figure has, and how those of several runs are arranged.

use super::sheet::Panel;
use super::source::Source;
use super::style;
use palimpsest_analysis::lens::{Correctness, Lens};

/// The panels of each run, as rows of one sheet: beside each other where there is room, else below each other. Panels of several
/// runs are named by the run.
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

/// A title, after the condition where all runs are shown under the same: else panels name theirs.
pub(super) fn titled_by(sources: &[Source<'_>], title: String) -> String {
    match sources {
        [one, others @ ..] if others.iter().all(|other| other.origin.condition == one.origin.condition) => {
            one.origin.titled(title)
        }
        _ => title,
    }
}

/// Where the numbers of a figure come from, a line a run.
pub(super) fn origins(sources: &[Source<'_>]) -> String {
    sources.iter().map(|source| source.origin.line.clone()).collect::<Vec<_>>().join("\n")
}

/// Probes that get panels of their own at most.
pub(super) const MOST_PROBES: usize = 6;

/// The probes that get panels of their own: all of them, or only their union where there are too many to draw.
pub(super) fn panel_probes(lens: &Lens) -> Vec<Option<String>> {
    match lens.probes.len() {
        1..=MOST_PROBES => lens.probes.iter().cloned().map(Some).collect(),
        _ => vec![None],
    }
}

/// The probes that get panels where panels are split by verdict: those that the benchmark pools. Without verdicts, all.
pub(super) fn split_probes(lens: &Lens) -> Vec<Option<String>> {
    match lens.splits() == [Correctness::All] {
        true => panel_probes(lens),
        false => panel_probes(lens)
            .into_iter()
            .filter(|probe| probe.as_ref().is_none_or(|probe| lens.pooled.contains(probe)))
            .collect(),
    }
}

/// The values of the split that get panels of their own; the union where the data has none.
pub(super) fn panel_kinds(lens: &Lens) -> Vec<Option<String>> {
    match lens.kinds.is_empty() {
        true => vec![None],
        false => lens.kinds.iter().cloned().map(Some).collect(),
    }
}
