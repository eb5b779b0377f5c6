//! Heat maps of effects: layer windows by sessions.

use super::cause_effects::open_in_words;
use super::columns::Column;
use super::map::{WIDTH, aligned, alignment, map, numbered, of_layers, values, width_of};
use super::panels::MOST_PROBES;
use super::shades::Shades;
use super::sheet::Panel;
use super::style::shortened;
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

/// One map per probe, or of their union if there are too many: mean over units, aligned at the evidence.
pub fn mean(causes: &Causes, study: &Study, origin: &Origin) -> Figure {
    let name = "causes-map-mean";
    let (segment, many) = (study.segment(), causes.unit.many());
    let of = (study.benchmark.lens.anchors, segment);
    let mut probes = unique(causes.windowed.iter().map(|answer| Some(answer.probe.as_str())));
    if probes.len() > MOST_PROBES {
        probes = vec![None];
    }
    let found: Vec<EffectMap> = probes.into_iter().map(|probe| causes.effect_map(probe, of.0)).collect();
    let map = |map: &EffectMap| aligned(map.probe.as_deref(), map.n, &map.cells, of);
    let maps: Vec<Panel> = found.iter().map(map).collect();
    let shades = Shades::of_effects(&values(&maps));
    let cells = found.iter().flat_map(|map| &map.cells);
    let over = format!("answers and {many}");
    let caption = format!(
        "Each cell: {} {}{}",
        cell(causes, study),
        alignment(cells, of, (&over, many), &format!("has no {segment} anywhere")),
        shades.in_words()
    );
    let cells = found.iter().flat_map(|map| map.cells.iter().map(move |cell| (map, cell)));
    let rows = cells.flat_map(|(map, (place, n, values))| {
        let layers = causes.layers.iter().zip(values.iter().flatten());
        layers.map(move |(layer, value)| (map, *place, *n, layer, *value))
    });
    let csv = CsvTable::of(rows)
        .column("figure", |_| name)
        .optional("probe", |(map, ..)| map.probe.as_ref())
        .column("place", |(_, place, ..)| place.key(of.0))
        .column("n", |(_, _, n, ..)| n)
        .column("layer", |(.., layer, _)| layer.index)
        .optional("value", |(.., value)| Some(value).filter(|value| !value.is_nan()))
        .bytes();
    let title = format!("Effects of the history by layers, mean over {many}");
    of_layers(maps, shades, &causes.layers, WIDTH).headed(origin, title).figure(name, caption, csv)
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
    let of_answer = |answer: &&WindowedAnswer| {
        let columns = answer.sessions.iter().map(|session| Column {
            label: number(&session.span).to_owned(),
            n: None,
            role: session.role.clone(),
            cells: Some(session.by_layer(&layers)),
        });
        let title = [answer.probe.as_str(), &answer.condition].join(" ").trim_end().to_owned();
        map(title, format!("{} {segments}", answer.sessions.len()), numbered(segment), columns.collect())
    };
    let maps: Vec<Panel> = shown.iter().map(of_answer).collect();
    let shades = Shades::of_effects(&values(&maps));
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
        shown.iter().flat_map(|answer| answer.sessions.iter().map(move |session| (*answer, session)));
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
    let title = format!("Effects of one history by layers: case {}", shortened(case, 40));
    let width = width_of(&maps);
    of_layers(maps, shades, &causes.layers, width).headed(origin, title).figure(name, caption, csv)
}

fn number(span: &str) -> &str {
    span.split_once('[').and_then(|(_, number)| number.strip_suffix(']')).unwrap_or(span)
}
