//! Heat maps of the query's attention: layers by segments, with the evidence marked. `grid` draws them.

use std::collections::BTreeSet;

use super::curves::titled;
use super::grid::{Cells, Column, Grid, Layout, Map, Shades, draw};
use super::{Figure, FigureError, Origin, captions};
use crate::benchmarks::Unit;
use crate::ground::csv::CsvTable;
use crate::lens::strip::AlignedPlace;
use crate::lens::{Correctness, Example, Group, Lens, Scale, table};

/// The mean over cases, aligned at the evidence: one map a probe.
pub fn mean(lens: &Lens, origin: &Origin, scale: Scale) -> Result<Figure, FigureError> {
    let name = format!("strip-mean-{}", scale.key());
    let (mut maps, mut strips, mut empty, mut missing) =
        (Vec::new(), Vec::new(), Vec::new(), BTreeSet::new());
    let anchors = lens.benchmark.lens.anchors;
    for probe in super::panels::panel_probes(lens) {
        let group = Group { probe, kind: None, correctness: Correctness::All };
        let strip = lens.strip(&group, scale);
        if strip.n == 0 {
            empty.push(group);
            continue;
        }
        let cells = strip.cells.iter();
        missing.extend(cells.clone().filter(|(.., values)| values.is_none()).map(|(place, ..)| *place));
        maps.push(Map {
            title: group.probe.clone().unwrap_or_else(|| "all probes".to_owned()),
            note: format!("n = {}", strip.n),
            columns: columns_of(cells.map(|(place, n, values)| (*place, *n, values.clone())), anchors),
        });
        strips.push(strip);
    }
    let segment = lens.segment;
    let segments = captions::plural(segment);
    let many = lens.unit().many();
    let nowhere = match lens.unit() {
        Unit::Case => "in any case",
        Unit::Probe => "for any question",
    };
    let title = origin.titled(titled(
        &format!("The {}'s attention over the history, mean over {many}", lens.viewer()),
        scale,
    ));
    let shades = Shades::of(&maps, scale);
    let caption = format!(
        "{} Histories are aligned at their evidence: {}, the {segments} just before and after each (−1, +1), and thirds \
         of the stretches before, between and after; a place's value is the mean over the {segments} there, then over {many}.{} n is the \
         number of {many}, below each column of those that have a {segment} there.{}{}",
        what_is_shown(lens, scale),
        anchors.join(", "),
        places_left_out(&missing, anchors, &format!("has no {segment} {nowhere}")),
        common(lens, &maps, &shades),
        captions::left_out(lens, &empty)
    );
    let csv = table::strip_csv(&name, &strips, lens);
    let layout = aligned(segment);
    let grid = Grid { maps: &maps, shades: &shades, layout: &layout, layers: &lens.layers };
    let svg = draw(&name, &title, &origin.line, &grid)?;
    Ok(Figure { name, title, caption, svg, csv })
}

/// The first case that was measured on every probe (or on most), session by session: one map a probe.
pub fn first_case(lens: &Lens, origin: &Origin, scale: Scale) -> Result<Figure, FigureError> {
    let name = format!("strip-case-{}", scale.key());
    let of_case = |case: &str| lens.examples.iter().filter(|e| e.case == case).count();
    let most = lens.examples.iter().map(|e| of_case(&e.case)).max().unwrap_or(0);
    let case =
        lens.examples.iter().map(|e| e.case.as_str()).find(|case| of_case(case) == most).unwrap_or_default();
    let segment = lens.segment;
    let segments = captions::plural(segment);
    let mut maps = Vec::new();
    let probes = super::panels::panel_probes(lens);
    let shown = lens.examples.iter().filter(|e| e.case == case).take(probes.len().max(1));
    for example in shown.clone() {
        let dropped = match example.dropped.len() {
            0 => String::new(),
            n => format!(", {n} dropped"),
        };
        maps.push(Map {
            title: example.probe.clone(),
            note: format!("{} {segments}{dropped}, {} tokens", example.segments.len(), example.prompt_tokens),
            columns: columns(example, scale),
        });
    }
    let layout = numbered(&maps, segment);
    let shades = Shades::of(&maps, scale);
    let title = titled(
        &format!(
            "The {}'s attention over one history: case {}",
            lens.viewer(),
            super::style::shortened(case, 40)
        ),
        scale,
    );
    let title = origin.titled(title);
    let caption = format!(
        "{} {} in the order of the history, numbered from 0, as in the run's files; a gap is where {segments} were dropped to fit the context. The \
         first case of the run that was measured on {}.{}",
        what_is_shown(lens, scale),
        captions::capital(&segments),
        if most >= lens.probes.len() { "every probe" } else { "most probes" },
        common(lens, &maps, &shades)
    );
    let csv = first_case_csv((&name, case), lens, shown, scale);
    let grid = Grid { maps: &maps, shades: &shades, layout: &layout, layers: &lens.layers };
    let svg = draw(&name, &title, &origin.line, &grid)?;
    Ok(Figure { name, title, caption, svg, csv })
}

/// A row a segment of an example and layer.
fn first_case_csv<'a>(
    (name, case): (&str, &str),
    lens: &'a Lens,
    shown: impl Iterator<Item = &'a Example>,
    scale: Scale,
) -> Vec<u8> {
    let segments = shown.flat_map(|example| example.segments.iter().map(move |segment| (example, segment)));
    let rows = segments.flat_map(|(example, segment)| {
        let values = lens.layers.iter().zip(segment.values(scale)).zip(&segment.signed);
        values.map(move |((layer, value), signed)| (example, segment, layer, *value, *signed))
    });
    let signed = lens.has_linear_layers() && scale == Scale::Mass;
    CsvTable::of(rows)
        .column("figure", |_| name)
        .column("case", |_| case)
        .column("probe", |(example, ..)| &example.probe)
        .column(lens.segment, |(_, segment, ..)| segment.index)
        .optional("role", |(_, segment, ..)| segment.role.as_ref().or(segment.holds.as_ref()))
        .column("tokens", |(_, segment, ..)| segment.tokens)
        .column("scale", |_| scale.key())
        .column("layer", |(_, _, layer, ..)| layer.index)
        .optional("value", |(_, _, _, value, _)| Some(value).filter(|value| !value.is_nan()))
        .column_if(lens.has_kinds(), "layer_kind", |(_, _, layer, ..)| layer.kind.key())
        .column_if(signed, "signed", |(.., sum)| sum.map(|sum| sum.to_string()).unwrap_or_default())
        .bytes()
}

/// Width of a map of few columns, in pixels.
const MAP_WIDTH: i32 = 288;
/// Width of the widest map.
const MOST_WIDTH: i32 = 1600;

/// A case's segments in their order, with gaps where segments were dropped.
fn columns(example: &Example, scale: Scale) -> Vec<Column> {
    let mut columns = Vec::new();
    let mut next = 0;
    let dropped = |from: usize, to: usize| example.dropped.iter().any(|index| (from..to).contains(index));
    for segment in &example.segments {
        if dropped(next, segment.index) {
            columns.push(Column::default());
        }
        next = segment.index + 1;
        columns.push(Column {
            label: segment.index.to_string(),
            n: None,
            role: segment.role.clone().or_else(|| segment.holds.clone()),
            cells: Cells::Values(segment.values(scale).to_vec()),
        });
    }
    if dropped(next, usize::MAX) {
        columns.push(Column::default());
    }
    columns
}

/// Of maps of places.
pub(super) fn aligned(segment: &str) -> Layout {
    Layout { width: MAP_WIDTH, axis: segment.to_owned() }
}

/// Room for a number under every column, where that is no wider than a picture may be.
pub(super) fn numbered(maps: &[Map], segment: &str) -> Layout {
    const ACROSS: usize = 60;
    const UPRIGHT: i32 = 11;
    let most = maps.iter().map(|map| map.columns.len()).max().unwrap_or(0);
    let digits = maps.iter().flat_map(|map| &map.columns).map(|column| column.label.len()).max().unwrap_or(1);
    let each = if most > ACROSS { UPRIGHT } else { digits as i32 * 6 + 3 };
    let wanted = (most as i32).saturating_mul(each);
    let axis = format!("{segment} (numbered from 0, as in the files)");
    let width = wanted.clamp(MAP_WIDTH, MOST_WIDTH);
    Layout { width, axis }
}

/// Sentences of every heat map's caption on shades and layers.
fn common(lens: &Lens, maps: &[Map], shades: &Shades) -> String {
    format!(
        "{}{}{}{}{}",
        shades.in_words(),
        without_mass(lens, maps),
        hidden(lens, maps),
        captions::about_layer_kinds(lens, captions::LINEAR_ROWS),
        captions::drawn(lens)
    )
}

/// The layers at which all cells of some column are 0.
fn without_mass(lens: &Lens, maps: &[Map]) -> String {
    let mut layers = BTreeSet::new();
    for column in maps.iter().flat_map(|map| &map.columns) {
        if let Cells::Values(values) = &column.cells {
            let zero = values.iter().zip(&lens.layers).filter(|(value, _)| **value == 0.0);
            layers.extend(zero.map(|(_, layer)| layer.index));
        }
    }
    match layers.is_empty() {
        true => String::new(),
        false => format!(" Cells of 0: at layers {}.", captions::ranges(&layers)),
    }
}

/// The meaning of grey cells, where there are any.
fn hidden(lens: &Lens, maps: &[Map]) -> String {
    let nan = |column: &Column| match &column.cells {
        Cells::Values(values) => values.iter().any(|value| value.is_nan()),
        Cells::Gap => false,
    };
    match maps.iter().flat_map(|map| &map.columns).any(nan) {
        true => format!(" Grey cells: the layer's window hides the {}.", lens.segment),
        false => String::new(),
    }
}

fn what_is_shown(lens: &Lens, scale: Scale) -> String {
    let segment = lens.segment;
    let framed = match lens.benchmark.lens.anchors {
        [] => "The evidence is".to_owned(),
        [one] => format!("{} is", captions::capital(one)),
        several => format!("{} are", captions::capital(&several.join(" and "))),
    };
    let viewer = lens.viewer();
    let of_token =
        if viewer.ends_with("token") { format!("the {viewer}") } else { format!("a {viewer} token") };
    match scale {
        Scale::Mass => format!(
            "Each cell: the share of {of_token}'s attention that falls on the {segment} at the layer, averaged over heads; \
             darker is more, on a logarithmic scale. {framed} framed."
        ),
        Scale::Density => format!(
            "Each cell: the {viewer}'s attention to the {segment} at the layer over what uniform attention would pay to a {segment} \
             of its length, averaged over heads; darker is more, on a logarithmic scale. {framed} framed."
        ),
    }
}

/// The columns of places: of those at which there is something in some case. A stretch has its name once, in its middle.
pub(super) fn columns_of(
    cells: impl Iterator<Item = (AlignedPlace, usize, Option<Vec<f64>>)>,
    anchors: &[&'static str],
) -> Vec<Column> {
    let column = |(place, n, values): (AlignedPlace, usize, Option<Vec<f64>>)| {
        let (label, anchor) =
            (place_label(place, anchors).to_owned(), matches!(place, AlignedPlace::Anchor(_)));
        Some(Column {
            label: if anchor { String::new() } else { label.clone() },
            n: Some(n),
            role: anchor.then_some(label),
            cells: Cells::Values(values?),
        })
    };
    let mut columns: Vec<Column> = cells.filter_map(column).collect();
    for stretch in columns.chunk_by_mut(|a, b| a.label == b.label) {
        let middle = stretch.len() / 2;
        let others = stretch.iter_mut().enumerate().filter(|(at, _)| *at != middle);
        others.for_each(|(_, column)| column.label.clear());
    }
    columns
}

/// The places that have no column, and why.
pub(super) fn places_left_out(
    missing: &BTreeSet<AlignedPlace>,
    anchors: &[&'static str],
    why: &str,
) -> String {
    if missing.is_empty() {
        return String::new();
    }
    let named = |place: &AlignedPlace| match *place {
        AlignedPlace::Stretch { third, .. } => {
            let which = ["first", "second", "last"].get(usize::from(third)).copied().unwrap_or("last");
            format!("the {which} third {}", place_label(*place, anchors))
        }
        AlignedPlace::Before(at) => format!("−1 of {}", anchors.get(at).copied().unwrap_or_default()),
        AlignedPlace::After(at) => format!("+1 of {}", anchors.get(at).copied().unwrap_or_default()),
        AlignedPlace::Anchor(_) => place_label(*place, anchors).to_owned(),
    };
    let names: Vec<String> = missing.iter().map(named).collect();
    format!(" A place that {why} has no column: {}.", names.join(", "))
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
