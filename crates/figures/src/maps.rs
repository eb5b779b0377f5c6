//! Maps of a run: the query's attention by layers and segments, the effects of segments by windows of layers, and measures by layers and
//! heads.

use std::collections::BTreeSet;

use super::axis::write_value;
use super::cause_effects::open_in_words;
use super::columns::Column;
use super::curves::titled;
use super::map::{
    WIDTH, aligned, alignment, hide, map, numbered, of_layers, sheet, values, width_of, with_gaps,
};
use super::shades::Shades;
use super::sheet::Panel;
use super::source::{MOST_PROBES, panel_probes};
use super::style::shortened;
use super::{Figure, Origin, captions};
use palimpsest_analysis::lens::causes::Causes;
use palimpsest_analysis::lens::causes::windowed::{EffectMap, WindowedAnswer};
use palimpsest_analysis::lens::selection::joined;
use palimpsest_analysis::lens::strip::Strip;
use palimpsest_analysis::lens::{
    Correctness, Example, Group, HeadMap, LayerKind, Lens, Scale, SegmentMass, Study, table,
};
use palimpsest_data::benchmarks::{Measure, Unit};
use palimpsest_data::ground::csv::CsvTable;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::condition::label;

/// One map per probe: mean over cases, aligned at the evidence.
pub(super) fn mean(lens: &Lens, origin: &Origin, scale: Scale) -> Figure {
    let name = format!("strip-mean-{}", scale.key());
    let of = (lens.benchmark.lens.anchors, lens.segment);
    let groups = panel_probes(lens).into_iter();
    let groups = groups.map(|probe| Group { probe, kind: None, correctness: Correctness::All });
    let strips = groups.map(|group| lens.strip(&group, scale));
    let (strips, empty): (Vec<Strip>, Vec<Strip>) = strips.partition(|strip| strip.n > 0);
    let map = |strip: &Strip| aligned(strip.group.probe.as_deref(), strip.n, &strip.cells, of);
    let mut maps: Vec<Panel> = strips.iter().map(map).collect();
    hide(&mut maps, &lens.layers);
    let (segment, many) = (lens.segment, lens.unit().many());
    let nowhere = match lens.unit() {
        Unit::Case => "in any case",
        Unit::Probe => "for any question",
    };
    let shades = Shades::of(&values(&maps), scale);
    // No legend, axis or frame around nothing.
    if values(&maps).is_empty() {
        maps.clear();
    }
    let cells = strips.iter().flat_map(|strip| &strip.cells);
    let empty: Vec<Group> = empty.into_iter().map(|strip| strip.group).collect();
    let caption = match maps.is_empty() {
        true => format!(
            "Nothing to draw: histories are aligned at their evidence ({}), and no {} shows all of it.",
            of.0.join(" and "),
            lens.unit().one()
        ),
        false => format!(
            "{} {}{}{}",
            shown_in_a_cell(lens, scale),
            alignment(cells, of, (many, many), &format!("has no {segment} {nowhere}")),
            common(lens, &maps, &shades),
            captions::left_out(lens, &empty)
        ),
    };
    let csv = table::strip_csv(&name, &strips, lens);
    let title = format!("The {}'s attention over the history, mean over {many}", lens.viewer());
    let sheet = of_layers(maps, shades, &lens.layers, WIDTH);
    sheet.headed(origin, titled(&title, scale)).figure(name, caption, csv)
}

/// One map per probe of the first case with all (or most) probes measured.
pub(super) fn first_case(lens: &Lens, origin: &Origin, scale: Scale) -> Figure {
    let name = format!("strip-case-{}", scale.key());
    let of_case = |case: &str| lens.examples.iter().filter(|e| e.case == case).count();
    let most = lens.examples.iter().map(|e| of_case(&e.case)).max().unwrap_or(0);
    let first = lens.examples.iter().find(|e| of_case(&e.case) == most);
    let case = first.map_or("", |example| &example.case);
    let (segment, segments) = (lens.segment, captions::plural(lens.segment));
    let probes = panel_probes(lens).len().max(1);
    let shown: Vec<&Example> = lens.examples.iter().filter(|e| e.case == case).take(probes).collect();
    let of_example = |example: &&Example| {
        let dropped = captions::ranges(&example.dropped.iter().copied().collect());
        let dropped = match example.dropped.len() {
            0 => String::new(),
            n if dropped.len() > 24 => format!(" ({n} dropped)"),
            _ => format!(
                " (without {} {dropped})",
                if example.dropped.len() == 1 { segment.to_owned() } else { captions::plural(segment) }
            ),
        };
        let (count, tokens) = (example.segments.len(), example.prompt_tokens);
        let note = format!("{count} {segments}{dropped}, {tokens} tokens");
        map(example.probe.clone(), note, numbered(segment), columns(example, scale))
    };
    let mut maps: Vec<Panel> = shown.iter().map(of_example).collect();
    hide(&mut maps, &lens.layers);
    let shades = Shades::of(&values(&maps), scale);
    let caption = format!(
        "{} {} in the order of the history, numbered from 0, as in the run's files; a gap is where {segments} were not shown. The \
         first case of the run that was measured on {}.{}",
        shown_in_a_cell(lens, scale),
        captions::capital(&segments),
        if most >= lens.probes.len() { "every question" } else { "most questions" },
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
    let column = |segment: &SegmentMass| {
        let role = segment.role.clone().or_else(|| segment.holds.clone());
        (segment.index, Column { role, cells: Some(segment.values(scale).to_vec()), ..Column::default() })
    };
    let last = example.segments.iter().map(|segment| segment.index).max();
    let after = example.dropped.iter().any(|index| Some(*index) > last).then(Column::default);
    with_gaps(example.segments.iter().map(column)).into_iter().chain(after).collect()
}

/// Caption on shades, layers where some column has cells of 0, cells hidden by a window, and layer kinds.
fn common(lens: &Lens, maps: &[Panel], shades: &Shades) -> String {
    let columns = maps.iter().flat_map(Panel::columns).filter_map(|column| column.cells.as_ref());
    let cells = columns.flat_map(|values| values.iter().zip(&lens.layers));
    let layers: BTreeSet<usize> =
        cells.filter(|(value, _)| **value == 0.0).map(|(_, layer)| layer.index).collect();
    let zeros =
        (!layers.is_empty()).then(|| format!(" Cells of 0: at layers {}.", captions::ranges(&layers)));
    let mut cells = maps.iter().flat_map(Panel::columns).flat_map(|column| column.cells.iter().flatten());
    let hidden = cells.any(|value| value.is_nan());
    let hidden = hidden.then(|| format!(" Grey cells: the layer's window hides the {}.", lens.segment));
    let [zeros, hidden] = [zeros, hidden].map(Option::unwrap_or_default);
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
            "Each cell: the {viewer}'s attention to the {segment} at the layer over what uniform attention would give a {segment} \
             of its length, averaged over heads; darker is more, on a logarithmic scale. {framed} framed."
        ),
    }
}

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
pub(super) fn mean_effects(causes: &Causes, study: &Study, origin: &Origin) -> Figure {
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
pub(super) fn first_case_effects(causes: &Causes, study: &Study, origin: &Origin) -> Figure {
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
        let columns = answer.sessions.iter().map(|session| {
            let (role, cells) = (session.role.clone(), Some(session.by_layer(&layers)));
            (number(&session.span), Column { role, cells, ..Column::default() })
        });
        let title = [answer.probe.as_str(), &answer.condition].join(" ").trim_end().to_owned();
        map(title, format!("{} {segments}", answer.sessions.len()), numbered(segment), with_gaps(columns))
    };
    let maps: Vec<Panel> = shown.iter().map(of_answer).collect();
    let shades = Shades::of_effects(&values(&maps));
    let caption = format!(
        "Each cell: {} {} in the order of the history, numbered from 0, as in the run's files; a gap is where {segments} were not shown; the \
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

/// Of `session[3]`.
fn number(span: &str) -> usize {
    let number = span.split_once('[').and_then(|(_, number)| number.strip_suffix(']')?.parse().ok());
    number.unwrap_or(0)
}

/// One figure per per-head measure.
pub(super) fn of_heads(study: &Study, origin: &Origin) -> Vec<Figure> {
    let measures = study.measures().into_iter().filter(|measure| measure.heads);
    let found = measures.map(|measure| (measure, study.heads(measure)));
    found
        .filter(|(_, maps)| !maps.is_empty())
        .map(|(measure, maps)| heads(measure, &maps, study.benchmark.unit, origin))
        .collect()
}

fn heads(measure: &Measure, found: &[HeadMap], unit: Unit, origin: &Origin) -> Figure {
    let many = unit.many();
    let name = format!("heads-{}-mass", measure.key.replace('_', "-"));
    let middle = measure.reference.unwrap_or(0.0);
    let of_map = |one: &HeadMap| {
        let title = match &one.condition {
            Some(condition) if found.len() > 1 => format!("{}, n = {}", label(condition), one.n),
            _ => format!("n = {}", one.n),
        };
        let heads = one.mean.columns().into_iter().enumerate();
        let columns = heads.map(|(head, values)| {
            let finite = values.iter().map(|value| if value.is_finite() { *value } else { f64::NAN });
            Column { label: head.to_string(), cells: Some(finite.collect()), ..Column::default() }
        });
        map(title, String::new(), "head".to_owned(), columns.collect())
    };
    let maps: Vec<Panel> = found.iter().map(of_map).collect();
    let layers = found.first().map(|map| map.layers.iter().map(usize::to_string).collect());
    let layers: Vec<String> = layers.unwrap_or_default();
    let heads = maps.iter().map(|map| map.columns().len()).max().unwrap_or(1) as i32;
    let size = ((heads * 14).clamp(150, 420), (layers.len() as i32 * 14).clamp(120, 420));
    let caption = format!(
        "{}: {}. Each cell: a head's own value, of masses, as the mean over {many}; white is {}, darker is farther from it, blue \
         above and orange below; the scale ends at the farthest head. Grey: no {} has a value. n is the number of {many}. Layers \
         with softmax attention only.",
        measure.label,
        measure.about,
        write_value(middle, false),
        unit.one(),
    );
    let cells =
        found.iter().flat_map(|map| map.mean.indexed_iter().map(move |(at, value)| (map, at, *value)));
    let csv = CsvTable::of(cells)
        .column("figure", |_| &name)
        .column("measure", |_| measure.key)
        .column("condition", |(map, ..)| match &map.condition {
            None => joined(measure.paired),
            Some(name) => joined(&[name]),
        })
        .column("layer", |(map, (layer, _), _)| map.layers.get(layer).copied().unwrap_or(layer))
        .column("head", |(_, (_, head), _)| head)
        .column("n", |(map, ..)| map.n)
        .optional("mean", |(.., value)| Some(value).filter(|value| value.is_finite()))
        .bytes();
    let shades = Shades::around(&values(&maps), middle, measure.unit, usize::MAX);
    let sheet = sheet(maps, shades, ("layer".to_owned(), layers), size);
    sheet.headed(origin, format!("By layer and head: {}", measure.label)).figure(name, caption, csv)
}
