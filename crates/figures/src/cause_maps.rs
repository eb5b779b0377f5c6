//! Heat maps of effects: layer windows by sessions.

use super::cause_effects::open_in_words;
use super::heat_map::{MAP_WIDTH, aligned, alignment, numbered, width_of};
use super::map::{Cells, Column, Grid, Map, Shades};
use super::panels::MOST_PROBES;
use super::{Figure, Origin, captions};
use palimpsest_analysis::lens::causes::Causes;
use palimpsest_analysis::lens::causes::windowed::{EffectMap, WindowedAnswer};
use palimpsest_analysis::lens::{LayerKind, Study};
use palimpsest_data::ground::csv::CsvTable;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::condition::label;

fn cell(causes: &Causes, study: &Study) -> String {
    let segment = study.segment();
    let kinds = match causes.layers.iter().any(|layer| layer.kind != LayerKind::Softmax) {
        true => " Beside the rows: dark, a layer that sees the whole prompt; narrow, a windowed layer.",
        false => "",
    };
    format!(
        "how far the answer's mean log-probability per token (nats) falls when everything from the question on is kept from seeing the {segment} at the \
         layer's window of {}; above 0 (blue), the answer needs it there. The effects of windows need not add up to that of all \
         layers.{}{kinds}",
        captions::counted(causes.window_width(), "layer"),
        open_in_words(causes.windows_open(), "the windows'")
    )
}

/// Probes with maps; only the union if there are too many.
fn probes(causes: &Causes) -> Vec<Option<String>> {
    let probes = unique(causes.windowed.iter().map(|answer| Some(answer.probe.clone())));
    if probes.len() > MOST_PROBES { vec![None] } else { probes }
}

/// One map per probe: mean over units, aligned at the evidence.
pub fn mean(causes: &Causes, study: &Study, origin: &Origin) -> Figure {
    let name = "causes-map-mean";
    let (segment, many) = (study.segment(), causes.unit.many());
    let anchors = study.benchmark.lens.anchors;
    let found: Vec<EffectMap> =
        probes(causes).iter().map(|probe| causes.effect_map(probe.as_deref(), anchors)).collect();
    let maps: Vec<Map> = found
        .iter()
        .map(|map| aligned(map.probe.as_deref(), map.n, &map.cells, (anchors, segment)))
        .collect();
    let shades = Shades::of_effects(&maps);
    let title = origin.titled(format!("Effects of the history by layers, mean over {many}"));
    let caption = format!(
        "Each cell: {} {}{}",
        cell(causes, study),
        alignment(
            found.iter().flat_map(|map| &map.cells),
            (anchors, segment),
            (&format!("answers and {many}"), many),
            &format!("has no {segment} anywhere")
        ),
        shades.in_words()
    );
    let csv = mean_csv(name, &found, causes, anchors);
    Grid::of_layers(maps, shades, &causes.layers, MAP_WIDTH).figure(name, (title, &origin.line), caption, csv)
}

fn mean_csv(name: &str, found: &[EffectMap], causes: &Causes, anchors: &[&str]) -> Vec<u8> {
    let cells = found.iter().flat_map(|map| map.cells.iter().map(move |cell| (map, cell)));
    let rows = cells.flat_map(|(map, (place, n, values))| {
        let layers = causes.layers.iter().zip(values.iter().flatten());
        layers.map(move |(layer, value)| (map, *place, *n, layer, *value))
    });
    CsvTable::of(rows)
        .column("figure", |_| name)
        .optional("probe", |(map, ..)| map.probe.as_ref())
        .column("place", |(_, place, ..)| place.key(anchors))
        .column("n", |(_, _, n, ..)| n)
        .column("layer", |(.., layer, _)| layer.index)
        .optional("value", |(.., value)| Some(value).filter(|value| !value.is_nan()))
        .bytes()
}

/// One map per answer to the case with most measured answers (the first such case).
pub fn first_case(causes: &Causes, study: &Study, origin: &Origin) -> Figure {
    let name = "causes-map-case";
    let (segment, segments) = (study.segment(), captions::plural(study.segment()));
    let measured = |case: &str| causes.windowed.iter().filter(|answer| answer.case == case).count();
    let most = causes.windowed.iter().map(|answer| measured(&answer.case)).max().unwrap_or(0);
    let first = causes.windowed.iter().find(|answer| measured(&answer.case) == most);
    let case = first.map_or("", |answer| answer.case.as_str());
    let of_case = causes.windowed.iter().filter(|answer| answer.case == case);
    let shown: Vec<&WindowedAnswer> = of_case.take(MOST_PROBES).collect();
    let layers = causes.layer_numbers();
    let map = |answer: &&WindowedAnswer| Map {
        title: [answer.probe.as_str(), &answer.condition].join(" ").trim_end().to_owned(),
        note: format!("{} {segments}", answer.sessions.len()),
        axis: numbered(segment),
        columns: (answer.sessions.iter())
            .map(|session| Column {
                label: number(&session.span).to_owned(),
                n: None,
                role: session.role.clone(),
                cells: Cells::Values(session.by_layer(&layers)),
            })
            .collect(),
    };
    let maps: Vec<Map> = shown.iter().map(map).collect();
    let shades = Shades::of_effects(&maps);
    let title = origin
        .titled(format!("Effects of one history by layers: case {}", super::style::shortened(case, 40)));
    let caption = format!(
        "Each cell: {} {} in the order in which they were shown, numbered from 0 by their place in the whole history, as in the run's files; the \
         evidence is framed. The first case of which {} \
         measured.{}",
        cell(causes, study),
        captions::capital(&segments),
        if most == 1 { "an answer was" } else { "most answers were" },
        shades.in_words()
    );
    let sessions =
        shown.iter().flat_map(|answer| answer.sessions.iter().map(move |session| (answer, session)));
    let rows = sessions.flat_map(|(answer, session)| {
        let values = layers.iter().zip(session.by_layer(&layers));
        values.map(move |(layer, value)| (answer, session, *layer, value))
    });
    let csv = CsvTable::of(rows)
        .column("figure", |_| name)
        .column("case", |_| case)
        .column("probe", |(answer, ..)| &answer.probe)
        .column("condition", |(answer, ..)| label(&answer.condition))
        .column(segment, |(_, session, ..)| &session.span)
        .optional("role", |(_, session, ..)| session.role.as_ref())
        .column("layer", |(.., layer, _)| layer)
        .optional("value", |(.., value)| Some(value).filter(|value| !value.is_nan()))
        .bytes();
    let width = width_of(&maps);
    Grid::of_layers(maps, shades, &causes.layers, width).figure(name, (title, &origin.line), caption, csv)
}

fn number(span: &str) -> &str {
    span.split_once('[').and_then(|(_, number)| number.strip_suffix(']')).unwrap_or(span)
}
