//! Heat maps of the query's attention: layers by segments.

use std::collections::BTreeSet;

use super::curves::titled;
use super::map::{Cells, Column, Grid, Map, Shades};
use super::{Figure, Origin, captions};
use palimpsest_analysis::lens::strip::AlignedPlace;
use palimpsest_analysis::lens::{Correctness, Example, Group, Lens, Scale, table};
use palimpsest_data::benchmarks::Unit;
use palimpsest_data::ground::csv::CsvTable;

pub(super) type AlignedCells = Vec<(AlignedPlace, usize, Option<Vec<f64>>)>;

/// One map per probe: mean over cases, aligned at the evidence.
pub fn mean(lens: &Lens, origin: &Origin, scale: Scale) -> Figure {
    let name = format!("strip-mean-{}", scale.key());
    let anchors = lens.benchmark.lens.anchors;
    let groups = super::panels::panel_probes(lens).into_iter();
    let groups = groups.map(|probe| Group { probe, kind: None, correctness: Correctness::All });
    let strips: Vec<_> = groups.map(|group| (lens.strip(&group, scale), group)).collect();
    let (strips, empty): (Vec<_>, Vec<_>) = strips.into_iter().partition(|(strip, _)| strip.n > 0);
    let maps: Vec<Map> = strips
        .iter()
        .map(|(strip, group)| aligned(group.probe.as_deref(), strip.n, &strip.cells, (anchors, lens.segment)))
        .collect();
    let (segment, many) = (lens.segment, lens.unit().many());
    let nowhere = match lens.unit() {
        Unit::Case => "in any case",
        Unit::Probe => "for any question",
    };
    let title = format!("The {}'s attention over the history, mean over {many}", lens.viewer());
    let shades = Shades::of(&maps, scale);
    let cells = strips.iter().flat_map(|(strip, _)| &strip.cells);
    let empty: Vec<Group> = empty.into_iter().map(|(_, group)| group).collect();
    let caption = format!(
        "{} {}{}{}",
        shown_in_a_cell(lens, scale),
        alignment(cells, (anchors, segment), (many, many), &format!("has no {segment} {nowhere}")),
        common(lens, &maps, &shades),
        captions::left_out(lens, &empty)
    );
    let strips: Vec<_> = strips.into_iter().map(|(strip, _)| strip).collect();
    let csv = table::strip_csv(&name, &strips, lens);
    let title = origin.titled(titled(&title, scale));
    Grid::of_layers(maps, shades, &lens.layers, MAP_WIDTH).figure(name, (title, &origin.line), caption, csv)
}

/// One map per probe of the first case with all (or most) probes measured.
pub fn first_case(lens: &Lens, origin: &Origin, scale: Scale) -> Figure {
    let name = format!("strip-case-{}", scale.key());
    let of_case = |case: &str| lens.examples.iter().filter(|e| e.case == case).count();
    let most = lens.examples.iter().map(|e| of_case(&e.case)).max().unwrap_or(0);
    let case =
        lens.examples.iter().map(|e| e.case.as_str()).find(|case| of_case(case) == most).unwrap_or_default();
    let segments = captions::plural(lens.segment);
    let probes = super::panels::panel_probes(lens);
    let shown = lens.examples.iter().filter(|e| e.case == case).take(probes.len().max(1));
    let map = |example: &Example| {
        let dropped = match example.dropped.len() {
            0 => String::new(),
            n => format!(", {n} dropped"),
        };
        Map {
            title: example.probe.clone(),
            note: format!("{} {segments}{dropped}, {} tokens", example.segments.len(), example.prompt_tokens),
            axis: numbered(lens.segment),
            columns: columns(example, scale),
        }
    };
    let maps: Vec<Map> = shown.clone().map(map).collect();
    let shades = Shades::of(&maps, scale);
    let title = format!(
        "The {}'s attention over one history: case {}",
        lens.viewer(),
        super::style::shortened(case, 40)
    );
    let caption = format!(
        "{} {} in the order of the history, numbered from 0, as in the run's files; a gap is where {segments} were dropped to fit the context. The \
         first case of the run that was measured on {}.{}",
        shown_in_a_cell(lens, scale),
        captions::capital(&segments),
        if most >= lens.probes.len() { "every probe" } else { "most probes" },
        common(lens, &maps, &shades)
    );
    let csv = first_case_csv((&name, case), lens, shown, scale);
    let (title, width) = (origin.titled(titled(&title, scale)), width_of(&maps));
    Grid::of_layers(maps, shades, &lens.layers, width).figure(name, (title, &origin.line), caption, csv)
}

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

pub(super) const MAP_WIDTH: i32 = 288;
const MOST_WIDTH: i32 = 1600;

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

pub(super) fn numbered(segment: &str) -> String {
    format!("{segment} (numbered from 0, as in the files)")
}

/// Width with a number under every column, up to the maximum.
pub(super) fn width_of(maps: &[Map]) -> i32 {
    const ACROSS: usize = 60;
    const UPRIGHT: i32 = 11;
    let most = maps.iter().map(|map| map.columns.len()).max().unwrap_or(0);
    let digits = maps.iter().flat_map(|map| &map.columns).map(|column| column.label.len()).max().unwrap_or(1);
    let each = if most > ACROSS { UPRIGHT } else { digits as i32 * 6 + 3 };
    (most as i32).saturating_mul(each).clamp(MAP_WIDTH, MOST_WIDTH)
}

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

/// Layers where all cells of some column are 0.
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

fn shown_in_a_cell(lens: &Lens, scale: Scale) -> String {
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

/// Aligned map of a probe, without empty columns. A stretch is labelled once, in its middle.
pub(super) fn aligned(
    probe: Option<&str>,
    n: usize,
    cells: &AlignedCells,
    (anchors, segment): (&[&'static str], &str),
) -> Map {
    let column = |(place, n, values): &(AlignedPlace, usize, Option<Vec<f64>>)| {
        let label = place_label(*place, anchors).to_owned();
        let anchor = matches!(place, AlignedPlace::Anchor(_));
        Some(Column {
            label: if anchor { String::new() } else { label.clone() },
            n: Some(*n),
            role: anchor.then_some(label),
            cells: Cells::Values(values.clone()?),
        })
    };
    let mut columns: Vec<Column> = cells.iter().filter_map(column).collect();
    for stretch in columns.chunk_by_mut(|a, b| a.label == b.label) {
        let middle = stretch.len() / 2;
        let others = stretch.iter_mut().enumerate().filter(|(at, _)| *at != middle);
        others.for_each(|(_, column)| column.label.clear());
    }
    let title = probe.unwrap_or("all probes").to_owned();
    Map { title, note: format!("n = {n}"), axis: segment.to_owned(), columns }
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
    let left_out = match names.is_empty() {
        true => String::new(),
        false => format!(" A place that {why} has no column: {}.", names.join(", ")),
    };
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
