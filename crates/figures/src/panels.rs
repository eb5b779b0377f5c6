//! Selects panels and arranges those of several runs.

use super::sheet::Panel;
use super::source::Source;
use super::style;
use palimpsest_analysis::lens::{Correctness, Lens};

/// Panels of each run as rows of one sheet, side by side if they fit. With several runs, panel titles name the run.
pub(super) fn arranged(sources: &[Source<'_>], mut blocks: Vec<Vec<Vec<Panel>>>) -> Vec<Vec<Panel>> {
    const MOST_COLUMNS: usize = 4;
    for (block, source) in blocks.iter_mut().zip(sources).filter(|_| sources.len() > 1) {
        let name = style::shortened(&source.origin.name, 28);
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
