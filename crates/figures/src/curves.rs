//! Attention over layers: by type and verdict (STALE, figure 6), by type (figure 7), and ratios of curves: of group means (figure 8) and of
//! examples (figure 3).

use std::collections::BTreeSet;

use super::canvas::text_width;
use super::meaning::{self, GROUPS, Meaning};
use super::panels::{arranged, origins, panel_kinds, split_probes, titled_by};
use super::plot::Sample;
use super::sheet::{ColumnAxis, Panel, Sheet};
use super::style::{GREY, Marker, Stroke};
use super::{Figure, Origin, Source, captions};
use palimpsest_analysis::lens::{
    Correctness, Curve, Group, Lens, Point, Scale, Series, Statistic, Target, table,
};
use palimpsest_data::benchmarks::{GENERATION, QUERY, Unit};
use palimpsest_data::ground::order::unique;

pub(super) fn axis(scale: Scale) -> &'static str {
    match scale {
        Scale::Mass => "attention mass (share of a row token's attention)",
        Scale::Density => "attention density (1 = uniform attention)",
    }
}

fn how_to_read(lens: &Lens, scale: Scale) -> String {
    let segment = lens.segment;
    let rows = unique(lens.curves.iter().map(|curve| curve.from).filter(|from| *from != QUERY));
    let mut rows_said = "query".to_owned();
    for row in rows {
        rows_said += &match row {
            "last" => ", or of the prompt's last token".to_owned(),
            GENERATION => ", or of the generation prompt".to_owned(),
            "answer" => ", or of the answer".to_owned(),
            row => format!(", or of the {row} {segment}"),
        };
    }
    let segments = captions::plural(segment);
    match scale {
        Scale::Mass => format!(
            "Mass: the share of a token's attention that falls on the whole {segment}, averaged over the row tokens (of the \
             {rows_said}) and over heads."
        ),
        Scale::Density => format!(
            "Density: the mass over what uniform attention would pay to a {segment} of that length from the same tokens, so \
             that long {segments} do not win by length; 1 is no preference."
        ),
    }
}

pub(super) fn bands(unit: Unit) -> String {
    let many = unit.many();
    format!(
        "Bands: 95% intervals of the mean over {many}, from 5 {many} on; of fewer, points are the single {many}."
    )
}

fn noise_entry() -> (Sample, String) {
    let dotted = Stroke::solid(GREY, Marker::None).noise();
    (Sample::Line(dotted), "dotted: noise baseline of the line of its colour".to_owned())
}

/// Panels of a run, its table's series, and the empty groups.
#[derive(Default)]
struct Block {
    rows: Vec<Vec<Option<Panel>>>,
    series: Vec<Series>,
    empty: Vec<Group>,
}

/// One panel per probe, type and verdict: curves with baselines.
pub fn by_split(sources: &[Source<'_>], scale: Scale) -> Option<Figure> {
    let lens = sources.first()?.lens;
    // Omit curves without examples from the legend.
    let mut curves = unique(sources.iter().flat_map(|source| source.lens.curves.iter().copied()));
    curves.retain(|curve| {
        let mut examples = sources.iter().flat_map(|source| &source.lens.examples);
        examples.any(|example| example.curve(*curve, Target::Signal, scale).is_some())
    });
    let strokes = meaning::of_curves(&curves);
    let baselines = with_baselines(&strokes);
    let block = |lens: &Lens| {
        let mut block = Block::default();
        for probe in split_probes(lens) {
            let mut row = Vec::new();
            let kinds = panel_kinds(lens).into_iter();
            let groups = kinds.flat_map(|kind| lens.splits().iter().map(move |split| (kind.clone(), *split)));
            for (kind, correctness) in groups {
                let group = Group { probe: probe.clone(), kind, correctness };
                if lens.units(&group) == 0 {
                    block.empty.push(group);
                    row.push(None);
                    continue;
                }
                let mut lines = lines(lens, &curves, &group, scale);
                block.series.extend(lines.iter().map(|(_, series)| series.clone()));
                lines.retain(|(stroke, _)| baselines || !stroke.is_noise());
                let counts: BTreeSet<usize> = lines.iter().map(|(_, one)| one.n).filter(|n| *n > 0).collect();
                let counts = Vec::from_iter(counts.iter().map(usize::to_string));
                let legend = vec![(None, format!("n = {}", counts.join(" or ")))];
                row.push(Some(Panel::of_layers(lens.label(&group), legend, lines)));
            }
            block.rows.push(row);
        }
        block
    };
    let blocks: Vec<Block> = sources.iter().map(|source| block(source.lens)).collect();
    let mut legend: Vec<_> =
        strokes.iter().zip(&curves).map(|(stroke, curve)| (Sample::Line(*stroke), curve.label())).collect();
    legend.extend(baselines.then(noise_entry));
    let (split, probe) = (lens.benchmark.split, lens.benchmark.dimension.name());
    let what = match sources.iter().any(|source| source.lens.splits().len() > 1) {
        true => format!("Attention by layer, for each {split}, {probe} and verdict"),
        false => format!("Attention by layer, for each {split} and {probe}"),
    };
    let columns = blocks.iter().flat_map(|block| &block.rows).map(Vec::len).max().unwrap_or(1);
    let columns = if sources.len() * columns > 4 { columns } else { sources.len() * columns };
    let sheet = Sheet {
        panel: if columns > 2 { (230, 150) } else { (300, 150) },
        legend,
        ..of_attention(what, lens, scale)
    };
    let caption = format!(
        "{}{} {} Logarithmic value axis. n is the number of {}.{}{}{}",
        how_to_read(lens, scale),
        said_of_baselines(sources, baselines),
        bands(lens.unit()),
        lens.unit().many(),
        captions::of_each(sources, captions::split_probes),
        left_out(sources, &blocks),
        captions::of_each(sources, captions::without_verdicts),
    );
    Some(figure(format!("curves-by-split-{}", scale.key()), caption, sheet, sources, blocks))
}

pub fn by_type(sources: &[Source<'_>], scale: Scale) -> Option<Figure> {
    const WIDTH: i32 = 260;
    const MOST_COLUMNS: usize = 4;
    let lens = sources.first()?.lens;
    // Strokes of kinds agree across runs.
    let kinds = unique(sources.iter().flat_map(|source| panel_kinds(source.lens)));
    let word = |kind: &Option<String>| kind.as_ref().map_or("all".to_owned(), |kind| kind.replace('_', " "));
    // Names stand in every panel if they fit.
    let names = kinds.iter().map(|kind| text_width(&word(kind), 11) + 33 + 14 + text_width(" (n = 000)", 11));
    let named = names.sum::<i32>() <= WIDTH;
    let strokes: Vec<Stroke> = (0..kinds.len()).map(|at| Meaning::Group(at).stroke()).collect();
    let baselines = with_baselines(&strokes);
    let block = |lens: &Lens| {
        let mut block = Block::default();
        let groups = panel_kinds(lens).into_iter();
        let groups = groups.map(|kind| Group { probe: None, kind, correctness: Correctness::All });
        let (present, empty): (Vec<Group>, Vec<Group>) = groups.partition(|group| lens.units(group) > 0);
        block.empty = empty;
        let mut panels = Vec::new();
        for &curve in &lens.curves {
            let (mut lines, mut legend) = (Vec::new(), Vec::new());
            for group in &present {
                let at = kinds.iter().position(|kind| *kind == group.kind).unwrap_or(0);
                let stroke = Meaning::Group(at).stroke();
                let [signal, noise] = [Target::Signal, Target::Noise]
                    .map(|target| lens.series(group, Statistic::Mean(curve, target), scale));
                if signal.n > 0 {
                    let text = match named {
                        true => format!("{} (n = {})", word(&group.kind), signal.n),
                        false => signal.n.to_string(),
                    };
                    legend.push((Some(stroke), text));
                }
                block.series.extend([signal.clone(), noise.clone()]);
                lines.extend(baselines.then(|| (stroke.noise(), noise)));
                lines.push((stroke, signal));
            }
            if !legend.is_empty() {
                panels.push(Some(Panel::of_layers(curve.label(), legend, lines)));
            }
        }
        block.rows = panels.chunks(MOST_COLUMNS).map(<[_]>::to_vec).collect();
        block
    };
    let blocks: Vec<Block> = sources.iter().map(|source| block(source.lens)).collect();
    let of_kinds = strokes.iter().zip(&kinds).map(|(stroke, kind)| (Sample::Line(*stroke), word(kind)));
    let sheet = Sheet {
        legend: of_kinds.filter(|_| !named).chain(baselines.then(noise_entry)).collect(),
        panel: (WIDTH, 210),
        ..of_attention(format!("Attention by layer, for each {}", lens.benchmark.split), lens, scale)
    };
    let over = |lens: &Lens| {
        let pooled = lens.pooled_in_words();
        match lens.pooled.len() == 1 || lens.unit() == Unit::Probe {
            true => format!(" Means over {pooled}."),
            false => format!(
                " Means over {pooled}: the probes of a case are averaged first, so that a case counts once."
            ),
        }
    };
    let caption = format!(
        "{} {}{} {} Logarithmic value axis. n is the number of {}.{}",
        captions::of_each(sources, over),
        how_to_read(lens, scale),
        said_of_baselines(sources, baselines),
        bands(lens.unit()),
        lens.unit().many(),
        left_out(sources, &blocks),
    );
    Some(figure(format!("curves-by-type-{}", scale.key()), caption, sheet, sources, blocks))
}

/// Ratio of two curves, one panel per probe and type: ratio of means, or mean of ratios.
pub fn ratios(sources: &[Source<'_>], scale: Scale, statistic: Statistic) -> Option<Figure> {
    let first = sources.first()?.lens;
    let (over, under) = first.ratio?;
    let (unit, segment) = (first.unit(), first.benchmark.segment);
    let mut undivided = Vec::new();
    let mut block = |lens: &Lens| {
        let mut block = Block::default();
        for probe in split_probes(lens) {
            let mut row = Vec::new();
            for kind in panel_kinds(lens) {
                let (mut lines, mut legend) = (Vec::new(), Vec::new());
                for &correctness in lens.splits() {
                    let group = Group { probe: probe.clone(), kind: kind.clone(), correctness };
                    let series = lens.series(&group, statistic, scale);
                    if lens.units(&group) == 0 {
                        block.empty.push(group);
                        continue;
                    }
                    if series.points.iter().all(|point| !point.value.is_some_and(f64::is_finite)) {
                        undivided.push(lens.label(&group));
                        block.series.extend((series.n > 0).then_some(series));
                        continue;
                    }
                    let verdict = match correctness {
                        Correctness::All => "all",
                        split => split.key(),
                    };
                    let stroke = Meaning::of_verdict(correctness).stroke();
                    legend.push((Some(stroke), format!("{verdict} (n = {})", series.n)));
                    block.series.push(series.clone());
                    lines.push((stroke, series));
                }
                let group = Group { probe: probe.clone(), kind, correctness: Correctness::All };
                let title = lens.label(&group);
                row.push((!lines.is_empty()).then(|| Panel::of_layers(title, legend, lines)));
            }
            block.rows.push(row);
        }
        block
    };
    let blocks: Vec<Block> = sources.iter().map(|source| block(source.lens)).collect();
    let points = blocks.iter().flat_map(|block| &block.series).flat_map(|series| &series.points);
    let undefined = match (statistic, points.map(|point| point.undefined).sum::<usize>()) {
        (Statistic::MeanOfRatios, 0) | (Statistic::RatioOfMeans, _) => String::new(),
        (_, count) => format!(
            " At {count} points (an example at a layer) the {} pays the {} {segment} nothing, so there is no ratio: they \
             are left out there and counted in the table.",
            under.from, under.to
        ),
    };
    let nothing = format!(
        "the {} pays the {} {segment} nothing at any layer, or nothing was measured, so that there is no ratio",
        under.from, under.to
    );
    let undivided = match undivided.join(", ") {
        _ if blocks.iter().flat_map(|block| &block.rows).flatten().all(Option::is_none) => {
            format!(" Nothing is drawn: {nothing}.")
        }
        groups if groups.is_empty() => String::new(),
        groups => format!(" Left out: {groups}, where {nothing}."),
    };
    let (title, definition) = ratio_in_words((over, under), statistic, first);
    let sheet = Sheet {
        title: titled(&title, scale),
        y_label: format!("ratio of attention {}, {} / {}", scale.key(), over.to, under.to),
        reference: Some(1.0),
        panel: (300, 150),
        reach: 10.0,
        units: unit.many(),
        ..Sheet::default()
    };
    let caption = format!(
        "{definition} Above the line at 1 the {} attends more to the {} {segment}. {} They are of the whole statistic. n is the number \
         of {}. Logarithmic value axis.{undefined}{undivided}{}{}{}",
        over.from,
        over.to,
        bands(unit),
        unit.many(),
        captions::of_each(sources, captions::split_probes),
        left_out(sources, &blocks),
        captions::of_each(sources, captions::without_verdicts),
    );
    let name = format!("{}-{}", statistic.key().replace('_', "-"), scale.key());
    Some(figure(name, caption, sheet, sources, blocks))
}

fn ratio_in_words((over, under): (Curve, Curve), statistic: Statistic, lens: &Lens) -> (String, String) {
    let (many, segment) = (lens.unit().many(), lens.segment);
    let quotient = format!("{} over {}", captions::capital(&over.label()), under.label());
    let same_rows = over.from == under.from;
    if statistic == Statistic::MeanOfRatios {
        let of = match same_rows {
            true => format!("the {}'s attention to {} and to {}", over.from, over.to, under.to),
            false => format!("{} and {}", over.label(), under.label()),
        };
        return (
            format!("{quotient}: mean of each example's ratio"),
            format!("The mean over {many} of the example's own ratio of {of}."),
        );
    }
    let of = match same_rows {
        true => format!(
            "the {}'s attention to the {} {segment}, over that to the {} one",
            over.from, over.to, under.to
        ),
        false => format!("{}, over that of {}", over.label(), under.label()),
    };
    (format!("{quotient}: ratio of the groups' means"), format!("The mean over {many} of {of}."))
}

/// True if colours are unique, so that a baseline's colour identifies its line.
fn with_baselines(strokes: &[Stroke]) -> bool {
    let apart = |(at, stroke): (usize, &Stroke)| !strokes[..at].iter().any(|one| one.colour == stroke.colour);
    strokes.len() <= GROUPS && strokes.iter().enumerate().all(apart)
}

fn said_of_baselines(sources: &[Source<'_>], drawn: bool) -> String {
    match drawn {
        true => captions::of_each(sources, captions::noise),
        false => {
            let left_out = captions::of_each(sources, captions::without_baseline);
            format!(" Noise baselines are left to the table: there are more lines than colours.{left_out}")
        }
    }
}

/// Curves of a group with baselines; the table includes undrawn ones.
fn lines(lens: &Lens, all: &[Curve], group: &Group, scale: Scale) -> Vec<(Stroke, Series)> {
    let strokes = meaning::of_curves(all);
    let of = |curve, target| lens.series(group, Statistic::Mean(curve, target), scale);
    let curves = || all.iter().zip(&strokes).filter(|(curve, _)| lens.curves.contains(curve));
    let noise = curves().map(|(&curve, stroke)| (stroke.noise(), of(curve, Target::Noise)));
    let signal = curves().map(|(&curve, stroke)| (*stroke, of(curve, Target::Signal)));
    noise.chain(signal).collect()
}

pub(super) fn titled(what: &str, scale: Scale) -> String {
    match scale {
        Scale::Mass => what.to_owned(),
        Scale::Density => format!("{what} (density)"),
    }
}

pub(super) fn of_attention(what: impl AsRef<str>, lens: &Lens, scale: Scale) -> Sheet {
    Sheet {
        title: titled(what.as_ref(), scale),
        y_label: axis(scale).to_owned(),
        percent: scale == Scale::Mass,
        reference: (scale == Scale::Density).then_some(1.0),
        reach: 1000.0,
        units: lens.unit().many(),
        ..Sheet::default()
    }
}

fn left_out(sources: &[Source<'_>], blocks: &[Block]) -> String {
    let of = |lens: &Lens| {
        let mut runs = sources.iter().zip(blocks).filter(|(source, _)| std::ptr::eq(source.lens, lens));
        runs.next().map(|(_, block)| captions::left_out(lens, &block.empty)).unwrap_or_default()
    };
    captions::of_each(sources, of)
}

/// Draws all runs' panels and adds the table and shared caption sentences.
fn figure(name: String, caption: String, sheet: Sheet, sources: &[Source<'_>], blocks: Vec<Block>) -> Figure {
    let (rows, series): (Vec<_>, Vec<_>) = blocks.into_iter().map(|block| (block.rows, block.series)).unzip();
    let sheet = Sheet {
        title: titled_by(sources, sheet.title),
        origin: origins(sources),
        rows: arranged(sources, rows),
        ..sheet
    };
    let mut caption = caption + &captions::zeros(series.iter().flatten());
    if sheet.cuts_linear_layers() {
        caption += " Values of linear layers beyond the axis are drawn at its edge; the table has them.";
    }
    caption += &captions::of_each(sources, |lens| captions::about_layer_kinds(lens, captions::LINEAR_CURVES));
    caption += &captions::of_each(sources, captions::drawn);
    let models = sources.iter().map(|source| source.origin.model.as_str()).collect::<BTreeSet<_>>();
    if models.len() > 1 {
        caption += " Panels of different models have layer axes of their own; the value axis is the same.";
    }
    let runs = sources.iter().zip(&series);
    let runs = runs.map(|(source, series)| (&*source.origin.model, source.lens.condition(), &series[..]));
    let csv = table::series_csv(&name, &runs.collect::<Vec<_>>());
    sheet.figure(name, caption.trim_start().to_owned(), csv)
}

/// Axis range over 0 and all points with their bands.
pub(super) fn ends<'a>(points: impl Iterator<Item = &'a Point>) -> (f64, f64) {
    points.fold((0.0f64, 0.0f64), |ends, point| {
        let values = point.value.into_iter().chain(point.low()).chain(point.high());
        let over = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
        values.chain(point.cases.iter().copied()).fold(ends, over)
    })
}

pub(super) fn over_layers(
    (title, origin): (String, &Origin),
    y_label: &str,
    rows: Vec<Vec<Option<Panel>>>,
    units: &'static str,
) -> Sheet {
    let points = rows.iter().flatten().flatten().flat_map(|panel| &panel.lines).flat_map(|(_, s)| &s.points);
    // A shared range gives all columns the same axis.
    let ends = ends(points);
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1);
    Sheet {
        title,
        origin: origin.line.clone(),
        y_label: y_label.to_owned(),
        rows,
        panel: if columns == 1 { (560, 190) } else { (250, 150) },
        reach: 10.0,
        units,
        axes: vec![ColumnAxis { reference: Some(0.0), linear: Some(ends) }; columns],
        ..Sheet::default()
    }
}
