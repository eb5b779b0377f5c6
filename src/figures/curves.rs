//! Attention over layers: by type and correctness (STALE, figure 6) and by type (figure 7).

use std::collections::BTreeSet;

use super::canvas::text_width;
use super::meaning::{self, GROUPS, Meaning};
use super::sheet::{ColumnAxis, Panel, Sheet};
use super::style::{GREY, Marker, Stroke};
use super::{Figure, FigureError, Origin, Source, captions};
use crate::benchmarks::{GENERATION, QUERY, Unit};
use crate::ground::order::unique;
use crate::lens::{Correctness, Curve, Group, Lens, Point, Scale, Series, Statistic, Target, table};

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

/// One legend entry for the baselines of all curves.
fn noise_entry() -> (Stroke, String) {
    (Stroke::solid(GREY, Marker::None).noise(), "dotted: noise baseline of the line of its colour".to_owned())
}

/// One panel a probe, type and verdict: three curves with their baselines.
pub fn by_split(sources: &[Source<'_>], scale: Scale) -> Result<Figure, FigureError> {
    // Those that no example has would be lines of the legend alone.
    let mut all_curves = curves_of(sources);
    all_curves.retain(|curve| {
        let has = |source: &Source<'_>| {
            source.lens.examples.iter().any(|e| e.curve(*curve, Target::Signal, scale).is_some())
        };
        sources.iter().any(has)
    });
    let strokes = meaning::of_curves(&all_curves);
    let (mut blocks, mut all, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for Source { lens, .. } in sources {
        let (mut rows, mut of_run, mut without) = (Vec::new(), Vec::new(), Vec::new());
        for probe in super::panels::split_probes(lens) {
            let mut row = Vec::new();
            for kind in super::panels::panel_kinds(lens) {
                for &correctness in lens.splits() {
                    let group = Group { probe: probe.clone(), kind: kind.clone(), correctness };
                    if lens.units(&group) == 0 {
                        without.push(group);
                        row.push(None);
                        continue;
                    }
                    let mut lines = lines(lens, &all_curves, &group, scale);
                    of_run.extend(lines.iter().map(|(_, series)| series.clone()));
                    lines.retain(|(stroke, _)| with_baselines(&strokes) || !stroke.is_noise());
                    let counts: BTreeSet<usize> =
                        lines.iter().map(|(_, one)| one.n).filter(|n| *n > 0).collect();
                    let counts = Vec::from_iter(counts.iter().map(usize::to_string));
                    let legend = vec![(None, format!("n = {}", counts.join(" or ")))];
                    row.push(Some(Panel { title: lens.label(&group), legend, lines }));
                }
            }
            rows.push(row);
        }
        blocks.push(rows);
        all.push(of_run);
        empty.push(without);
    }
    let mut legend: Vec<_> =
        strokes.iter().copied().zip(all_curves.iter().map(|curve| curve.label())).collect();
    let baselines = with_baselines(&strokes);
    legend.extend(baselines.then(noise_entry));
    let Some(Source { lens, .. }) = sources.first() else { return Err(no_runs("curves-by-split")) };
    let (split, probe) = (lens.benchmark.split, lens.benchmark.dimension.name());
    let what = match sources.iter().any(|source| source.lens.splits().len() > 1) {
        true => format!("Attention by layer, for each {split}, {probe} and verdict"),
        false => format!("Attention by layer, for each {split} and {probe}"),
    };
    let rows = super::panels::arranged(sources, blocks);
    let sheet = Sheet {
        title: super::panels::titled(sources, titled(&what, scale)),
        origin: super::panels::origins(sources),
        y_label: axis(scale).to_owned(),
        percent: scale == Scale::Mass,
        reference: (scale == Scale::Density).then_some(1.0),
        panel: if rows.iter().map(Vec::len).max().unwrap_or(1) > 2 { (230, 150) } else { (300, 150) },
        rows,
        legend,
        reach: 1000.0,
        units: lens.unit().many(),
        ..Sheet::default()
    };
    let caption = format!(
        "{}{} {} Logarithmic value axis. n is the number of {}.{}{}{}",
        how_to_read(lens, scale),
        said_of_baselines(sources, baselines),
        bands(lens.unit()),
        lens.unit().many(),
        captions::of_each(sources, captions::split_probes),
        groups_left_out(sources, &empty),
        captions::of_each(sources, captions::without_verdicts),
    );
    figure(format!("curves-by-split-{}", scale.key()), caption, &sheet, sources, &all)
}

/// One panel a curve: a line a type, over the pooled probes.
pub fn by_type(sources: &[Source<'_>], scale: Scale) -> Result<Figure, FigureError> {
    const WIDTH: i32 = 260;
    const MOST_COLUMNS: usize = 4;
    // A kind has its stroke in every run.
    let kinds = unique(sources.iter().flat_map(|source| super::panels::panel_kinds(source.lens)));
    let word = |kind: &Option<String>| kind.as_ref().map_or("all".to_owned(), |kind| kind.replace('_', " "));
    // Their names stand in every panel where they fit.
    let names = kinds.iter().map(|kind| text_width(&word(kind), 11) + 33 + 14 + text_width(" (n = 000)", 11));
    let named = names.sum::<i32>() <= WIDTH;
    let strokes: Vec<Stroke> = (0..kinds.len()).map(|at| Meaning::Group(at).stroke()).collect();
    let baselines = with_baselines(&strokes);
    let (mut blocks, mut all, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for Source { lens, .. } in sources {
        let groups = super::panels::panel_kinds(lens).into_iter();
        let groups = groups.map(|kind| Group { probe: None, kind, correctness: Correctness::All });
        let (present, without): (Vec<Group>, Vec<Group>) = groups.partition(|group| lens.units(group) > 0);
        let (mut row, mut of_run) = (Vec::new(), Vec::new());
        for &curve in &lens.curves {
            let (mut lines, mut legend) = (Vec::new(), Vec::new());
            for group in &present {
                let at = kinds.iter().position(|kind| *kind == group.kind).unwrap_or(0);
                let stroke = strokes.get(at).copied().unwrap_or_else(|| Meaning::Group(at).stroke());
                let signal = lens.series(group, Statistic::Mean(curve, Target::Signal), scale);
                let noise = lens.series(group, Statistic::Mean(curve, Target::Noise), scale);
                if signal.n > 0 {
                    legend.push((
                        Some(stroke),
                        match named {
                            true => format!("{} (n = {})", word(&group.kind), signal.n),
                            false => signal.n.to_string(),
                        },
                    ));
                }
                of_run.extend([signal.clone(), noise.clone()]);
                lines.extend(baselines.then(|| (stroke.noise(), noise)));
                lines.push((stroke, signal));
            }
            // A curve that no example has gets no panel.
            if !legend.is_empty() {
                row.push(Some(Panel { title: curve.label(), legend, lines }));
            }
        }
        let rows: Vec<Vec<Option<Panel>>> = row.chunks(MOST_COLUMNS).map(<[_]>::to_vec).collect();
        blocks.push(rows);
        all.push(of_run);
        empty.push(without);
    }
    let Some(Source { lens, .. }) = sources.first() else { return Err(no_runs("curves-by-type")) };
    let sheet = Sheet {
        title: super::panels::titled(
            sources,
            titled(&format!("Attention by layer, for each {}", lens.benchmark.split), scale),
        ),
        origin: super::panels::origins(sources),
        y_label: axis(scale).to_owned(),
        percent: scale == Scale::Mass,
        reference: (scale == Scale::Density).then_some(1.0),
        rows: super::panels::arranged(sources, blocks),
        legend: match named {
            true => baselines.then(noise_entry).into_iter().collect(),
            false => {
                let of_kinds = strokes.iter().copied().zip(kinds.iter().map(word));
                of_kinds.chain(baselines.then(noise_entry)).collect()
            }
        },
        panel: (WIDTH, 210),
        reach: 1000.0,
        units: lens.unit().many(),
        ..Sheet::default()
    };
    let over = |lens: &Lens| {
        let pooled = lens.pooled_in_words();
        match lens.pooled.len() {
            1 => format!(" Means over {pooled}."),
            _ if lens.unit() == Unit::Probe => format!(" Means over {pooled}."),
            _ => format!(
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
        groups_left_out(sources, &empty),
    );
    figure(format!("curves-by-type-{}", scale.key()), caption, &sheet, sources, &all)
}

/// True if every line has a colour of its own, so that a baseline of its colour is known as its.
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

/// The curves of some runs, in the benchmark's order.
fn curves_of(sources: &[Source<'_>]) -> Vec<Curve> {
    unique(sources.iter().flat_map(|source| source.lens.curves.iter().copied()))
}

/// The curves of a group with their baselines, which are tabulated even where they are not drawn.
fn lines(lens: &Lens, all: &[Curve], group: &Group, scale: Scale) -> Vec<(Stroke, Series)> {
    let strokes = meaning::of_curves(all);
    let of = |curve, target| lens.series(group, Statistic::Mean(curve, target), scale);
    let curves = || all.iter().zip(&strokes).filter(|(curve, _)| lens.curves.contains(curve));
    let noise = curves().map(|(&curve, stroke)| (stroke.noise(), of(curve, Target::Noise)));
    let signal = curves().map(|(&curve, stroke)| (*stroke, of(curve, Target::Signal)));
    noise.chain(signal).collect()
}

/// A title that says when it is about density.
pub(super) fn titled(what: &str, scale: Scale) -> String {
    match scale {
        Scale::Mass => what.to_owned(),
        Scale::Density => format!("{what} (density)"),
    }
}

/// The groups without members of each run.
pub(super) fn groups_left_out(sources: &[Source<'_>], empty: &[Vec<Group>]) -> String {
    let of = |lens: &Lens| {
        let mut runs = sources.iter().zip(empty).filter(|(source, _)| std::ptr::eq(source.lens, lens));
        runs.next().map(|(_, groups)| captions::left_out(lens, groups)).unwrap_or_default()
    };
    captions::of_each(sources, of)
}

pub(super) fn no_runs(name: &str) -> FigureError {
    FigureError::Draw { figure: name.to_owned(), reason: "no run was given".to_owned() }
}

/// Draws a sheet and sets its table beside it; `series` are those of each run. What holds for every figure over layers is added
/// to the caption.
pub(super) fn figure(
    name: String,
    caption: String,
    sheet: &Sheet,
    sources: &[Source<'_>],
    series: &[Vec<Series>],
) -> Result<Figure, FigureError> {
    let svg = sheet.draw(&name)?;
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
    let runs = sources.iter().zip(series);
    let runs = runs.map(|(source, series)| (&*source.origin.model, source.lens.condition(), &series[..]));
    let csv = table::series_csv(&name, &runs.collect::<Vec<_>>());
    Ok(Figure { name, title: sheet.title.clone(), caption: caption.trim_start().to_owned(), svg, csv })
}

/// The ends of an axis that holds 0 and all that is drawn of some points.
pub(super) fn ends<'a>(points: impl Iterator<Item = &'a Point>) -> (f64, f64) {
    points.fold((0.0f64, 0.0f64), |ends, point| {
        let values = point.value.into_iter().chain(point.low()).chain(point.high());
        let over = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
        values.chain(point.cases.iter().copied()).fold(ends, over)
    })
}

/// Panels of lines over layers on one linear axis.
pub(super) fn over_layers(
    (name, title): (&str, String),
    origin: &Origin,
    y_label: &str,
    rows: Vec<Vec<Option<Panel>>>,
    legend: Vec<(Stroke, String)>,
    units: &'static str,
) -> Result<(String, String), FigureError> {
    let points = rows.iter().flatten().flatten().flat_map(|panel| &panel.lines).flat_map(|(_, s)| &s.points);
    // The ends of all panels, so that every column gets the same axis.
    let ends = ends(points);
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1);
    let sheet = Sheet {
        title: title.clone(),
        origin: origin.line.clone(),
        y_label: y_label.to_owned(),
        rows,
        legend,
        panel: if columns == 1 { (560, 190) } else { (250, 150) },
        reach: 10.0,
        units,
        axes: vec![ColumnAxis { reference: Some(0.0), linear: Some(ends) }; columns],
        ..Sheet::default()
    };
    Ok((sheet.draw(name)?, title))
}
