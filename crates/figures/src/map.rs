//! Maps: rows by columns in shades of one scale. For mixed models a mark beside each row shows the layer's kind.

use std::collections::BTreeSet;

use super::captions;
use super::columns::Column;
use super::plot::LINEAR_LEGEND;
use super::shades::Shades;
use super::sheet::{Across, Panel, Sample, Sheet};
use super::style::GRID;
use palimpsest_analysis::lens::strip::{AlignedCells, AlignedPlace};
use palimpsest_analysis::lens::{Layer, LayerKind};

/// Size of a map of layers, in pixels.
pub(super) const WIDTH: i32 = 288;
const HEIGHT: i32 = 210;

pub(super) fn map(title: String, note: String, x_label: String, columns: Vec<Column>) -> Panel {
    Panel { title, legend: vec![(None, note)], x: Across::Columns(columns), x_label, ..Panel::default() }
}

/// All defined cells.
pub(super) fn values(maps: &[Panel]) -> Vec<f64> {
    let cells = maps.iter().flat_map(Panel::columns).filter_map(|column| column.cells.as_ref());
    cells.flatten().copied().filter(|value| !value.is_nan()).collect()
}

/// Maps of the same rows, named from the bottom; `panel` is their natural size.
pub(super) fn sheet(
    mut maps: Vec<Panel>,
    shades: Shades,
    (axis, names): (String, Vec<String>),
    panel: (i32, i32),
) -> Sheet {
    maps.iter_mut().for_each(|map| map.rows.names.clone_from(&names));
    Sheet { y_label: axis, rows: vec![maps], panel, shades: Some(shades), ..Sheet::default() }
}

pub(super) fn of_layers(mut maps: Vec<Panel>, shades: Shades, layers: &[Layer], width: i32) -> Sheet {
    let kinds: Vec<LayerKind> = layers.iter().map(|layer| layer.kind).collect();
    let mixed = kinds.iter().any(|kind| *kind != LayerKind::Softmax);
    let [softmax, windowed] = match shades.of_attention {
        true if kinds.contains(&LayerKind::Windowed) => {
            ["full layer: share of attention", "windowed layer: the same, within its window"]
        }
        true => ["softmax layer: share of attention", ""],
        false => ["layer that sees the whole prompt", "windowed layer"],
    };
    let told =
        [(LayerKind::Linear, LINEAR_LEGEND), (LayerKind::Softmax, softmax), (LayerKind::Windowed, windowed)];
    let told = told.into_iter().filter(|(kind, _)| mixed && kinds.contains(kind));
    let mut cells = maps.iter().flat_map(Panel::columns).flat_map(|column| column.cells.iter().flatten());
    let hidden = shades.of_attention && cells.any(|value| value.is_nan());
    let hidden = hidden.then(|| (Sample::Bar(GRID), "beyond the layer's window".to_owned()));
    let legend = told.map(|(kind, text)| (Sample::Rows(kind), text.to_owned())).chain(hidden).collect();
    if mixed {
        maps.iter_mut().for_each(|map| map.rows.kinds.clone_from(&kinds));
    }
    let names = layers.iter().map(|layer| layer.index.to_string()).collect();
    Sheet { legend, ..sheet(maps, shades, ("layer".to_owned(), names), (width, HEIGHT)) }
}

pub(super) fn numbered(segment: &str) -> String {
    format!("{segment} (from 0, by the history)")
}

/// Numbered columns with a gap where numbers are missing.
pub(super) fn with_gaps(columns: impl Iterator<Item = (usize, Column)>) -> Vec<Column> {
    let mut next = 0;
    let of = |(at, column): (usize, Column)| {
        let gap = (at > next).then(Column::default);
        next = at + 1;
        gap.into_iter().chain([Column { label: at.to_string(), ..column }])
    };
    columns.flat_map(of).collect()
}

/// Cells of windowed layers without any attention are no number: the window hides the segment.
pub(super) fn hide(maps: &mut [Panel], layers: &[Layer]) {
    for column in maps.iter_mut().filter_map(Panel::columns_mut).flatten() {
        for (value, layer) in column.cells.iter_mut().flatten().zip(layers) {
            if *value == 0.0 && layer.kind == LayerKind::Windowed {
                *value = f64::NAN;
            }
        }
    }
}

/// Width with a number under every column, up to a maximum.
pub(super) fn width_of(maps: &[Panel]) -> i32 {
    const ACROSS: usize = 60;
    const UPRIGHT: i32 = 11;
    let most = maps.iter().map(|map| map.columns().len()).max().unwrap_or(0);
    let digits = maps.iter().flat_map(Panel::columns).map(|column| column.label.len()).max().unwrap_or(1);
    let each = if most > ACROSS { UPRIGHT } else { digits as i32 * 6 + 3 };
    (most as i32).saturating_mul(each).clamp(WIDTH, 1600)
}

/// Aligned map of a probe, without empty columns. A stretch is labelled once, in its middle.
pub(super) fn aligned(
    probe: Option<&str>,
    n: usize,
    cells: &AlignedCells,
    (anchors, segment): (&[&'static str], &str),
) -> Panel {
    let column = |(place, n, values): &(AlignedPlace, usize, Option<Vec<f64>>)| {
        let name = place_label(*place, anchors).to_owned();
        let (label, role) = match place {
            AlignedPlace::Anchor(_) => (String::new(), Some(name)),
            _ => (name, None),
        };
        Some(Column { label, n: Some(*n), role, cells: Some(values.clone()?) })
    };
    let mut columns: Vec<Column> = cells.iter().filter_map(column).collect();
    for stretch in columns.chunk_by_mut(|a, b| a.label == b.label) {
        let middle = stretch.len() / 2;
        let others = stretch.iter_mut().enumerate().filter(|(at, _)| *at != middle);
        others.for_each(|(_, column)| column.label.clear());
    }
    map(probe.unwrap_or("all questions").to_owned(), format!("n = {n}"), segment.to_owned(), columns)
}

/// Caption on alignment. `over`: what a place averages over; `why`: why columns are missing.
pub(super) fn alignment<'a>(
    cells: impl Iterator<Item = &'a (AlignedPlace, usize, Option<Vec<f64>>)>,
    (anchors, segment): (&[&'static str], &str),
    (over, many): (&str, &str),
    why: &str,
) -> String {
    let missing: BTreeSet<AlignedPlace> =
        cells.filter(|(.., values)| values.is_none()).map(|(place, ..)| *place).collect();
    let named = |place: &AlignedPlace| {
        let label = place_label(*place, anchors);
        match *place {
            AlignedPlace::Stretch { third, .. } => {
                let which = ["first", "second", "last"][usize::from(third).min(2)];
                format!("the {which} third {label}")
            }
            AlignedPlace::Before(at) | AlignedPlace::After(at) => {
                format!("{label} of {}", anchors.get(at).copied().unwrap_or_default())
            }
            AlignedPlace::Anchor(_) => label.to_owned(),
        }
    };
    let left_out = captions::naming(&format!("A place that {why} has no column"), missing.iter().map(named));
    format!(
        "Histories are aligned at their evidence: {}, the {segments} just before and after each (−1, +1), and thirds of the stretches \
         before, between and after; a place's value is the mean over the {segments} there, then over {over}.{left_out} n is the number of \
         {many}, below each column of those that have a {segment} there.",
        anchors.join(", "),
        segments = captions::plural(segment),
    )
}

fn place_label(place: AlignedPlace, anchors: &[&'static str]) -> &'static str {
    match place {
        AlignedPlace::Stretch { before: 0, .. } => "before",
        AlignedPlace::Stretch { before, .. } if before == anchors.len() => "after",
        AlignedPlace::Stretch { .. } => "between",
        AlignedPlace::Before(_) => "−1",
        AlignedPlace::After(_) => "+1",
        AlignedPlace::Anchor(at) => anchors.get(at).copied().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_keep_the_numbers_of_the_history_and_gaps_are_what_was_not_shown() {
        let shown = |numbers: &[usize]| -> Vec<String> {
            let column = |at: &usize| (*at, Column { cells: Some(vec![1.0]), ..Column::default() });
            let columns = with_gaps(numbers.iter().map(column));
            columns
                .into_iter()
                .map(|one| if one.cells.is_none() { "gap".to_owned() } else { one.label })
                .collect()
        };
        assert_eq!(shown(&[0, 1, 2]), ["0", "1", "2"]);
        assert_eq!(shown(&[1, 2, 6]), ["gap", "1", "2", "gap", "6"]);
    }
}
