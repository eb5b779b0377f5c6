//! Heat maps of the query's attention: layers by segments.

use std::collections::BTreeSet;

use super::columns::Column;
use super::curves::titled;
use super::map::{WIDTH, aligned, alignment, map, numbered, of_layers, values, width_of};
use super::shades::Shades;
use super::sheet::Panel;
use super::style::shortened;
use super::{Figure, Origin, captions, panels};
use palimpsest_analysis::lens::strip::Strip;
use palimpsest_analysis::lens::{Correctness, Example, Group, Lens, Scale, table};
use palimpsest_data::benchmarks::Unit;
use palimpsest_data::ground::csv::CsvTable;

/// One map per probe: mean over cases, aligned at the evidence.
pub fn mean(lens: &Lens, origin: &Origin, scale: Scale) -> Figure {
    let name = format!("strip-mean-{}", scale.key());
    let of = (lens.benchmark.lens.anchors, lens.segment);
    let groups = panels::panel_probes(lens).into_iter();
    let groups = groups.map(|probe| Group { probe, kind: None, correctness: Correctness::All });
    let strips = groups.map(|group| lens.strip(&group, scale));
    let (strips, empty): (Vec<Strip>, Vec<Strip>) = strips.partition(|strip| strip.n > 0);
    let map = |strip: &Strip| aligned(strip.group.probe.as_deref(), strip.n, &strip.cells, of);
    let maps: Vec<Panel> = strips.iter().map(map).collect();
    let (segment, many) = (lens.segment, lens.unit().many());
    let nowhere = match lens.unit() {
        Unit::Case => "in any case",
        Unit::Probe => "for any question",
    };
    let shades = Shades::of(&values(&maps), scale);
    let cells = strips.iter().flat_map(|strip| &strip.cells);
    let empty: Vec<Group> = empty.into_iter().map(|strip| strip.group).collect();
    let caption = format!(
        "{} {}{}{}",
        shown_in_a_cell(lens, scale),
        alignment(cells, of, (many, many), &format!("has no {segment} {nowhere}")),
        common(lens, &maps, &shades),
        captions::left_out(lens, &empty)
    );
    let csv = table::strip_csv(&name, &strips, lens);
    let title = format!("The {}'s attention over the history, mean over {many}", lens.viewer());
    let sheet = of_layers(maps, shades, &lens.layers, WIDTH);
    sheet.headed(origin, titled(&title, scale)).figure(name, caption, csv)
}

/// One map per probe of the first case with all (or most) probes measured.
pub fn first_case(lens: &Lens, origin: &Origin, scale: Scale) -> Figure {
    let name = format!("strip-case-{}", scale.key());
    let of_case = |case: &str| lens.examples.iter().filter(|e| e.case == case).count();
    let most = lens.examples.iter().map(|e| of_case(&e.case)).max().unwrap_or(0);
    let first = lens.examples.iter().find(|e| of_case(&e.case) == most);
    let case = first.map_or("", |example| &example.case);
    let (segment, segments) = (lens.segment, captions::plural(lens.segment));
    let probes = panels::panel_probes(lens).len().max(1);
    let shown: Vec<&Example> = lens.examples.iter().filter(|e| e.case == case).take(probes).collect();
    let of_example = |example: &&Example| {
        let dropped = match example.dropped.len() {
            0 => String::new(),
            n => format!(", {n} dropped"),
        };
        let (count, tokens) = (example.segments.len(), example.prompt_tokens);
        let note = format!("{count} {segments}{dropped}, {tokens} tokens");
        map(example.probe.clone(), note, numbered(segment), columns(example, scale))
    };
    let maps: Vec<Panel> = shown.iter().map(of_example).collect();
    let shades = Shades::of(&values(&maps), scale);
    let caption = format!(
        "{} {} in the order of the history, numbered from 0, as in the run's files; a gap is where {segments} were dropped to fit the context. The \
         first case of the run that was measured on {}.{}",
        shown_in_a_cell(lens, scale),
        captions::capital(&segments),
        if most >= lens.probes.len() { "every probe" } else { "most probes" },
        common(lens, &maps, &shades)
    );
    let cells = shown.iter().flat_map(|example| {
        example.segments.iter().flat_map(move |segment| {
            let values = lens.layers.iter().zip(segment.values(scale)).zip(&segment.signed);
            values.map(move |((layer, value), signed)| (*example, segment, layer, *value, *signed))
        })
    });
    let csv = CsvTable::of(cells)
        .column("figure", |_| &name)
        .column("case", |_| case)
        .column("probe", |(example, ..)| &example.probe)
        .column(segment, |(_, segment, ..)| segment.index)
        .optional("role", |(_, segment, ..)| segment.role.as_ref().or(segment.holds.as_ref()))
        .column("tokens", |(_, segment, ..)| segment.tokens)
        .column("scale", |_| scale.key())
        .column("layer", |(_, _, layer, ..)| layer.index)
        .optional("value", |(_, _, _, value, _)| Some(value).filter(|value| !value.is_nan()))
        .column_if(lens.has_kinds(), "layer_kind", |(_, _, layer, ..)| layer.kind.key())
        .column_if(lens.has_linear_layers() && scale == Scale::Mass, "signed", |(.., sum)| {
            sum.map(|sum| sum.to_string()).unwrap_or_default()
        })
        .bytes();
    let width = width_of(&maps);
    let title = format!("The {}'s attention over one history: case {}", lens.viewer(), shortened(case, 40));
    let sheet = of_layers(maps, shades, &lens.layers, width);
    sheet.headed(origin, titled(&title, scale)).figure(name, caption, csv)
}

fn columns(example: &Example, scale: Scale) -> Vec<Column> {
    let mut columns = Vec::new();
    let mut next = 0;
    let dropped = |from: usize, to: usize| example.dropped.iter().any(|index| (from..to).contains(index));
    for segment in &example.segments {
        columns.extend(dropped(next, segment.index).then(Column::default));
        next = segment.index + 1;
        let role = segment.role.clone().or_else(|| segment.holds.clone());
        let (label, cells) = (segment.index.to_string(), Some(segment.values(scale).to_vec()));
        columns.push(Column { label, n: None, role, cells });
    }
    columns.extend(dropped(next, usize::MAX).then(Column::default));
    columns
}

/// Caption on shades, layers where some column has cells of 0, cells hidden by a window, and layer kinds.
fn common(lens: &Lens, maps: &[Panel], shades: &Shades) -> String {
    let columns = maps.iter().flat_map(Panel::columns).filter_map(|column| column.cells.as_ref());
    let cells = columns.flat_map(|values| values.iter().zip(&lens.layers));
    let layers: BTreeSet<usize> =
        cells.filter(|(value, _)| **value == 0.0).map(|(_, layer)| layer.index).collect();
    let zeros = match layers.is_empty() {
        true => String::new(),
        false => format!(" Cells of 0: at layers {}.", captions::ranges(&layers)),
    };
    let mut cells = maps.iter().flat_map(Panel::columns).flat_map(|column| column.cells.iter().flatten());
    let hidden = match cells.any(|value| value.is_nan()) {
        true => format!(" Grey cells: the layer's window hides the {}.", lens.segment),
        false => String::new(),
    };
    let kinds = captions::about_layer_kinds(lens, captions::LINEAR_ROWS);
    format!("{}{zeros}{hidden}{kinds}{}", shades.in_words(), captions::drawn(lens))
}

fn shown_in_a_cell(lens: &Lens, scale: Scale) -> String {
    let (segment, viewer) = (lens.segment, lens.viewer());
    let framed = match lens.benchmark.lens.anchors {
        [] => "The evidence is".to_owned(),
        [one] => format!("{} is", captions::capital(one)),
        several => format!("{} are", captions::capital(&several.join(" and "))),
    };
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
