//! Attention over layers: by type and verdict (STALE, figure 6), by type (figure 7: curves to the two sides of the evidence share a panel),
//! and ratios of curves: of group means (figure 8) and of examples (figure 3).

use std::collections::BTreeSet;

use super::axis::spanning;
use super::canvas::{NOTE, text_width};
use super::meaning::{self, GROUPS, Meaning};
use super::panel::{BANDS, CASES};
use super::sheet::{Panel, Sample, Sheet, ValueAxis};
use super::source::{arranged, panel_kinds, split_probes};
use super::style::Stroke;
use super::{Figure, Origin, Source, captions};
use palimpsest_analysis::lens::band::LEAST;
use palimpsest_analysis::lens::{
    Correctness, Curve, Group, Lens, Point, Scale, Series, Statistic, Target, table,
};
use palimpsest_data::benchmarks::{GENERATION, QUERY, Unit, side_of};
use palimpsest_data::ground::order::{sorted_unique, unique};

fn how_to_read(lens: &Lens, scale: Scale) -> String {
    let (segment, segments) = (lens.segment, captions::plural(lens.segment));
    let rows = unique(lens.curves.iter().map(|curve| curve.from).filter(|from| *from != QUERY));
    let row = |row: &str| match row {
        "last" => ", or of the prompt's last token".to_owned(),
        GENERATION => ", or of the generation prompt".to_owned(),
        "answer" => ", or of the answer".to_owned(),
        row => format!(", or of the {row} {segment}"),
    };
    let rows: String = rows.into_iter().map(row).collect();
    match scale {
        Scale::Mass => format!(
            "Mass: the share of a token's attention that falls on the whole {segment}, averaged over the row tokens (of the \
             question{rows}) and over heads."
        ),
        Scale::Density => format!(
            "Density: the mass over what uniform attention would give a {segment} of that length from the same tokens, so \
             that long {segments} do not win by length; 1 is no preference."
        ),
    }
}

pub(super) fn bands(unit: Unit) -> String {
    let many = unit.many();
    format!(
        "Bands: 95% intervals of the mean over {many}, from {LEAST} {many} on, where at most {BANDS} lines share a panel; of fewer, dots \
         are the single {many}, where at most {CASES} lines do. The figure's CSV has all."
    )
}

/// Of pictures whose lines do not overlap.
pub(super) fn intervals(unit: Unit) -> String {
    let many = unit.many();
    format!(
        "95% intervals of the mean over {many}, from {LEAST} {many} on; of fewer, dots are the single {many}."
    )
}

fn bands_and_axis(unit: Unit) -> String {
    format!("{} Logarithmic value axis. n is the number of {}.", bands(unit), unit.many())
}

/// Panels of a run, its table's series, and the empty groups.
#[derive(Default)]
struct Block {
    rows: Vec<Vec<Panel>>,
    series: Vec<Series>,
    empty: Vec<Group>,
    /// Labels of groups whose ratio is defined nowhere.
    undivided: Vec<String>,
}

/// A group of a probe and type for each verdict.
fn verdicts(lens: &Lens, probe: &Option<String>, kind: &Option<String>) -> Vec<Group> {
    let group = |&correctness| Group { probe: probe.clone(), kind: kind.clone(), correctness };
    lens.splits().iter().map(group).collect()
}

/// One panel per probe, type and verdict: curves without their baselines, which [`by_type`] draws.
pub fn by_split(sources: &[Source<'_>], scale: Scale) -> Option<Figure> {
    let lens = sources.first()?.lens;
    // Omit curves without examples from the legend.
    let mut curves = unique(sources.iter().flat_map(|source| source.lens.curves.iter().copied()));
    curves.retain(|curve| {
        let mut examples = sources.iter().flat_map(|source| &source.lens.examples);
        examples.any(|example| example.curve(*curve, Target::Signal, scale).is_some())
    });
    let strokes = meaning::of_curves(&curves);
    let block = |lens: &Lens| {
        let mut block = Block::default();
        for probe in split_probes(lens) {
            let mut row = Vec::new();
            for group in panel_kinds(lens).iter().flat_map(|kind| verdicts(lens, &probe, kind)) {
                if lens.units(&group) == 0 {
                    block.empty.push(group);
                    continue;
                }
                let known = || curves.iter().zip(&strokes).filter(|(curve, _)| lens.curves.contains(curve));
                let of = |curve: &Curve, target| lens.series(&group, Statistic::Mean(*curve, target), scale);
                let signal = known().map(|(curve, stroke)| (*stroke, of(curve, Target::Signal)));
                let lines: Vec<(Stroke, Series)> = signal.collect();
                // The CSV has the baselines too.
                block.series.extend(known().map(|(curve, _)| of(curve, Target::Noise)));
                block.series.extend(lines.iter().map(|(_, series)| series.clone()));
                let legend = vec![(None, n_of(lines.iter().map(|(_, one)| one.n)))];
                row.push(Panel::of_layers(lens.label(&group), legend, lines));
            }
            block.rows.push(row);
        }
        block
    };
    let entries = strokes.iter().zip(&curves).map(|(stroke, curve)| (Sample::Line(*stroke), curve.label()));
    let question = captions::question(lens);
    let mut each = Vec::from_iter(split_of(sources));
    each.push(question);
    let what = match sources.iter().any(|source| source.lens.splits().len() > 1) {
        true => format!("Attention by layer, for each {} and verdict", each.join(", ")),
        false => format!("Attention by layer, for each {}", each.join(" and ")),
    };
    let across = |lens: &Lens| panel_kinds(lens).len() * lens.splits().len();
    let columns = sources.iter().map(|source| across(source.lens)).max().unwrap_or(1);
    let beside = if sources.len() * columns > 4 { columns } else { sources.len() * columns };
    let sheet = Sheet {
        panel: if beside > 2 { (230, 150) } else { (300, 150) },
        legend: entries.collect(),
        ..of_attention(lens, scale)
    };
    let caption = format!(
        "{}{} {}",
        how_to_read(lens, scale),
        said_of_baselines(sources, false),
        bands_and_axis(lens.unit())
    );
    let name = format!("curves-by-split-{}", scale.key());
    let blocks = sources.iter().map(|source| block(source.lens)).collect();
    Some(figure((name, titled(&what, scale), caption), true, sheet, sources, blocks))
}

/// A line of a group, with its words.
type OfGroup<'a> = (Stroke, String, &'a Group, Curve);

pub fn by_type(sources: &[Source<'_>], scale: Scale) -> Option<Figure> {
    const WIDTH: i32 = 260;
    /// Names that are wider would take several lines of a narrow panel each.
    const LONG: i32 = 90;
    let lens = sources.first()?.lens;
    // Strokes of kinds agree across runs.
    let kinds = unique(sources.iter().flat_map(|source| panel_kinds(source.lens)));
    let word = |kind: &Option<String>| kind.as_ref().map_or("all".to_owned(), |kind| kind.replace('_', " "));
    // Names stand in every panel if they fit.
    let names = kinds.iter().map(|kind| text_width(&word(kind), 11) + 33 + 14 + text_width(" (n = 000)", 11));
    let named = names.sum::<i32>() <= WIDTH;
    let strokes: Vec<Stroke> = (0..kinds.len()).map(|at| Meaning::Group(at).stroke()).collect();
    let baselines = with_baselines(&strokes);
    let known = unique(sources.iter().flat_map(|source| source.lens.curves.iter().copied()));
    let of_sides = meaning::of_curves(&known);
    let block = |lens: &Lens| {
        let groups = panel_kinds(lens).into_iter();
        let groups = groups.map(|kind| Group { probe: None, kind, correctness: Correctness::All });
        let (present, empty): (Vec<Group>, Vec<Group>) = groups.partition(|group| lens.units(group) > 0);
        let of =
            |group: &Group, curve: Curve, target| lens.series(group, Statistic::Mean(curve, target), scale);
        // Lines with the words of each; baselines below.
        let panel = |title: String, lines: Vec<OfGroup<'_>>, baselines: bool, named: bool| {
            let (mut below, mut above, mut legend) = (Vec::new(), Vec::new(), Vec::new());
            for (stroke, words, group, curve) in lines {
                let signal = of(group, curve, Target::Signal);
                if signal.n > 0 {
                    legend.push((Some(stroke), format!("{words} (n = {})", signal.n)));
                    below.extend(baselines.then(|| (stroke.noise(), of(group, curve, Target::Noise))));
                    above.push((stroke, signal));
                }
            }
            if !named {
                legend = vec![(None, n_of(above.iter().map(|(_, one)| one.n)))];
            }
            (!above.is_empty()).then(|| Panel::of_layers(title, legend, [below, above].concat()))
        };
        let (mut of_pairs, mut of_curves) = (Vec::new(), Vec::new());
        for curves in beside(&lens.curves) {
            if let [curve] = *curves {
                let line = |group: &'_ Group| kinds.iter().position(|kind| *kind == group.kind).unwrap_or(0);
                let lines = present
                    .iter()
                    .map(|group| (strokes[line(group)], word(&group.kind), group, curve))
                    .collect();
                of_curves.extend(panel(curve.label(), lines, baselines, named));
                continue;
            }
            let stroke = |curve: &Curve| {
                known.iter().position(|one| one == curve).map_or(strokes[0], |at| of_sides[at])
            };
            let of_kind = |group: &Group| {
                let lines =
                    curves.iter().map(|curve| (stroke(curve), curve.label(), group, *curve)).collect();
                let is_long = curves.iter().any(|curve| text_width(&curve.label(), NOTE.size) > LONG);
                let mut panel = panel(word(&group.kind), lines, true, !is_long)?;
                if is_long {
                    // Lines are named by their roles, and the row that attends above them.
                    let shown = curves.iter().filter(|curve| of(group, **curve, Target::Signal).n > 0);
                    let roles = shown.map(|curve| (Some(stroke(curve)), curve.to.to_owned()));
                    let n = panel.legend.pop().map(|(_, n)| n).unwrap_or_default();
                    let note = (None, format!("{} to ({n})", curves[0].from));
                    panel.legend = [note].into_iter().chain(roles).collect();
                }
                Some(panel)
            };
            of_pairs.extend(present.iter().filter_map(of_kind));
        }
        let targets = [Target::Signal, Target::Noise];
        let all = lens.curves.iter().flat_map(|curve| {
            present.iter().flat_map(move |group| targets.map(|target| (group, *curve, target)))
        });
        let series = all.map(|(group, curve, target)| of(group, curve, target)).collect();
        Block { rows: vec![[of_pairs, of_curves].concat()], series, empty, undivided: Vec::new() }
    };
    let of_kinds = strokes.iter().zip(&kinds).map(|(stroke, kind)| (Sample::Line(*stroke), word(kind)));
    let sheet = Sheet {
        legend: of_kinds.filter(|_| !named).collect(),
        panel: (WIDTH, 210),
        ..of_attention(lens, scale)
    };
    let over = |lens: &Lens| {
        let pooled = lens.pooled_in_words();
        match lens.pooled.len() == 1 || lens.unit() == Unit::Probe {
            true => format!(" Means over {pooled}."),
            false => format!(
                " Means over {pooled}: the questions of a case are averaged first, so that a case counts once."
            ),
        }
    };
    let caption = format!(
        "{} {}{} {}",
        captions::of_each(sources, over),
        how_to_read(lens, scale),
        said_of_baselines(sources, baselines),
        bands_and_axis(lens.unit())
    );
    let each = split_of(sources).map_or(String::new(), |split| format!(", for each {split}"));
    let title = titled(&format!("Attention by layer{each}"), scale);
    let name = format!("curves-by-type-{}", scale.key());
    let blocks = sources.iter().map(|source| block(source.lens)).collect();
    Some(figure((name, title, caption), false, sheet, sources, blocks))
}

/// Name of the split that has panels; `None` where the data has no split.
fn split_of<'a>(sources: &[Source<'a>]) -> Option<&'a str> {
    let split = sources.iter().find(|source| !source.lens.kinds.is_empty());
    split.map(|source| source.lens.benchmark.split)
}

/// One panel over all cases: the viewer's attention to each role, with baselines. `None` if nothing was measured.
pub fn overall(source: Source<'_>, linear: bool) -> Option<Figure> {
    let lens = source.lens;
    let series =
        |curve: &Curve, target| lens.series(&Group::all(), Statistic::Mean(*curve, target), Scale::Mass);
    let of_viewer = |curve: &Curve| curve.from == lens.benchmark.lens.viewer();
    let has_points = |curve: &Curve| series(curve, Target::Signal).n > 0;
    let curves = lens.curves.iter().copied().filter(of_viewer).filter(has_points);
    let curves: Vec<Curve> = curves.take(GROUPS).collect();
    let strokes = meaning::of_curves(&curves);
    let baselines = with_baselines(&strokes);
    let known = || strokes.iter().zip(&curves);
    let noise = known().map(|(stroke, curve)| (stroke.noise(), series(curve, Target::Noise)));
    let signal = known().map(|(stroke, curve)| (*stroke, series(curve, Target::Signal)));
    let lines: Vec<(Stroke, Series)> = noise.filter(|_| baselines).chain(signal).collect();
    let all: Vec<Series> = lines.iter().map(|(_, one)| one.clone()).collect();
    let n = all.iter().map(|one| one.n).max()?;
    let unit = lens.unit();
    let entries = known().map(|(stroke, curve)| (Sample::Line(*stroke), curve.label()));
    let panel = Panel::of_layers(String::new(), vec![(None, format!("n = {n}"))], lines);
    let (key, axes, words) = match linear {
        true => ("linear", around_zero(panel.lines.iter().flat_map(|(_, one)| &one.points)), ""),
        false => ("log", ValueAxis::default(), " Logarithmic value axis."),
    };
    let is_part = lens.pooled != lens.probes;
    let pooled = if is_part { format!(" ({})", lens.pooled_in_words()) } else { String::new() };
    let sheet = Sheet {
        legend: entries.collect(),
        panel: (520, 230),
        axes: vec![axes],
        ..of_attention(lens, Scale::Mass)
    };
    let caption = format!(
        "Means over {n} {}{pooled}.{} {}{words}",
        if n == 1 { unit.one() } else { unit.many() },
        said_of_baselines(&[source], baselines),
        bands(unit),
    );
    let block = Block { rows: vec![vec![panel]], series: all, ..Block::default() };
    let title = format!("The {}'s attention by layer", lens.viewer());
    Some(figure((format!("overall-{key}"), title, caption), false, sheet, &[source], vec![block]))
}

/// Ratio of two curves, one panel per probe and type: ratio of means, or mean of ratios.
pub fn ratios(sources: &[Source<'_>], scale: Scale, statistic: Statistic) -> Option<Figure> {
    let first = sources.first()?.lens;
    let (over, under) = first.ratio?;
    let (unit, segment) = (first.unit(), first.benchmark.segment);
    let block = |lens: &Lens| {
        let mut block = Block::default();
        for probe in split_probes(lens) {
            let mut row = Vec::new();
            for kind in panel_kinds(lens) {
                let (mut lines, mut legend) = (Vec::new(), Vec::new());
                for group in verdicts(lens, &probe, &kind) {
                    if lens.units(&group) == 0 {
                        block.empty.push(group);
                        continue;
                    }
                    let series = lens.series(&group, statistic, scale);
                    if !series.points.iter().any(|point| point.value.is_some_and(f64::is_finite)) {
                        block.undivided.push(lens.label(&group));
                        block.series.extend((series.n > 0).then_some(series));
                        continue;
                    }
                    let stroke = Meaning::of_verdict(group.correctness).stroke();
                    legend.push((Some(stroke), format!("{} (n = {})", group.correctness.key(), series.n)));
                    block.series.push(series.clone());
                    lines.push((stroke, series));
                }
                let group = Group { probe: probe.clone(), kind, correctness: Correctness::All };
                if !lines.is_empty() {
                    row.push(Panel::of_layers(lens.label(&group), legend, lines));
                }
            }
            block.rows.push(row);
        }
        block
    };
    let blocks: Vec<Block> = sources.iter().map(|source| block(source.lens)).collect();
    let points = blocks.iter().flat_map(|block| &block.series).flat_map(|series| &series.points);
    let (from, to) = (under.from, under.to);
    let undefined = match (statistic, points.map(|point| point.undefined).sum::<usize>()) {
        (Statistic::MeanOfRatios, 0) | (Statistic::RatioOfMeans, _) => String::new(),
        (_, count) => format!(
            " At {count} points (an example at a layer) the {from} gives the {to} {segment} no attention, so there is no ratio: they \
             are left out there and counted in the figure's CSV."
        ),
    };
    let nothing = format!(
        "the {from} gives the {to} {segment} no attention at any layer, or nothing was measured: there is no ratio"
    );
    let groups: Vec<&str> = blocks.iter().flat_map(|block| &block.undivided).map(String::as_str).collect();
    let undivided = match blocks.iter().flat_map(|block| &block.rows).flatten().next() {
        None => format!(" Nothing is drawn: {nothing}."),
        Some(_) if groups.is_empty() => String::new(),
        Some(_) => format!(" Left out: {}, where {nothing}.", groups.join(", ")),
    };
    let (title, definition) = ratio_in_words((over, under), statistic, first);
    let sheet = Sheet {
        y_label: format!("ratio of attention {}, {} / {}", scale.key(), over.to, under.to),
        axes: vec![ValueAxis { reference: Some(1.0), linear: None }],
        panel: (300, 150),
        reach: 10.0,
        units: unit.many(),
        ..Sheet::default()
    };
    let (from, to, bands, many) = (over.from, over.to, bands(unit), unit.many());
    let caption = format!(
        "{definition} Above the line at 1 the {from} attends more to the {to} {segment}. {bands} They are of the whole statistic. n is the number \
         of {many}. Logarithmic value axis.{undefined}{undivided}"
    );
    let name = format!("{}-{}", statistic.key().replace('_', "-"), scale.key());
    Some(figure((name, titled(&title, scale), caption), true, sheet, sources, blocks))
}

/// Title and definition.
fn ratio_in_words((over, under): (Curve, Curve), statistic: Statistic, lens: &Lens) -> (String, String) {
    let (many, segment, from) = (lens.unit().many(), lens.segment, over.from);
    let (first, second) = (over.label(), under.label());
    let (of_means, same_rows) = (statistic != Statistic::MeanOfRatios, over.from == under.from);
    let (over, under) = (over.to, under.to);
    let of = match (of_means, same_rows) {
        (false, true) => format!("the {from}'s attention to {over} and to {under}"),
        (false, false) => format!("{first} and {second}"),
        (true, true) => {
            format!("the {from}'s attention to the {over} {segment}, over that to the {under} one")
        }
        (true, false) => format!("{first}, over that of {second}"),
    };
    let quotient = format!("{} over {second}", captions::capital(&first));
    match of_means {
        true => (
            format!("{quotient}: ratio of the groups' means"),
            format!(
                "The mean over {many} of {of}. Quote this ratio: findings use it. The mean of ratios is beside it, in which every \
                 example counts alike."
            ),
        ),
        false => (
            format!("{quotient}: mean of each example's ratio"),
            format!(
                "The mean over {many} of the example's own ratio of {of}. Every example counts alike, so one with almost no attention \
                 to {under} can decide the mean: quote the ratio of means, and look here for such examples."
            ),
        ),
    }
}

/// Curves of one row to the two sides of the evidence together, which a reader compares; every other by itself.
fn beside(curves: &[Curve]) -> Vec<&[Curve]> {
    let opposite = |one: &Curve, next: &Curve| {
        let [one_side, next_side] = [one, next].map(|curve| side_of(curve.to));
        one.from == next.from && one_side.is_some() && next_side.is_some() && one_side != next_side
    };
    curves.chunk_by(opposite).collect()
}

/// `n = 4`, `n = 3 to 5`; those of 0 are not counted.
pub(super) fn n_of(counts: impl Iterator<Item = usize>) -> String {
    let counts = sorted_unique(counts.filter(|n| *n > 0));
    match counts[..] {
        [] => String::new(),
        [n] => format!("n = {n}"),
        [least, .., most] => format!("n = {least} to {most}"),
    }
}

/// True if colours are unique, so that a baseline's colour identifies its line.
fn with_baselines(strokes: &[Stroke]) -> bool {
    strokes.len() <= GROUPS && unique(strokes.iter().map(|stroke| stroke.colour)).len() == strokes.len()
}

fn said_of_baselines(sources: &[Source<'_>], drawn: bool) -> String {
    if drawn {
        return captions::of_each(sources, captions::noise);
    }
    let left_out = captions::of_each(sources, captions::without_baseline);
    format!(" Noise baselines are in the figure's CSV.{left_out}")
}

pub(super) fn titled(what: &str, scale: Scale) -> String {
    match scale {
        Scale::Mass => what.to_owned(),
        Scale::Density => format!("{what} (density)"),
    }
}

pub(super) fn of_attention(lens: &Lens, scale: Scale) -> Sheet {
    let (y_label, reference) = match scale {
        Scale::Mass => ("attention mass (share of a row token's attention)", None),
        Scale::Density => ("attention density (1 = uniform attention)", Some(1.0)),
    };
    Sheet {
        y_label: y_label.to_owned(),
        percent: scale == Scale::Mass,
        axes: vec![ValueAxis { reference, linear: None }],
        reach: 1000.0,
        units: lens.unit().many(),
        ..Sheet::default()
    }
}

/// Draws all runs' panels and adds the table and shared caption sentences. `split`: by probe and verdict.
fn figure(
    (name, title, mut caption): (String, String, String),
    split: bool,
    sheet: Sheet,
    sources: &[Source<'_>],
    blocks: Vec<Block>,
) -> Figure {
    let left_out = sources.iter().zip(&blocks);
    let left_out = left_out.map(|(source, block)| captions::left_out(source.lens, &block.empty));
    let left_out = captions::each(sources, left_out.collect());
    let (rows, series): (Vec<_>, Vec<_>) = blocks.into_iter().map(|block| (block.rows, block.series)).unzip();
    let sheet = Sheet { rows: arranged(sources, rows), ..sheet }.headed(&Origin::of_all(sources), title);
    if split {
        caption += &captions::of_each(sources, captions::split_probes);
        caption += &left_out;
        caption += &captions::of_each(sources, captions::without_verdicts);
    } else {
        caption += &left_out;
    }
    caption += &captions::zeros(series.iter().flatten());
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

/// A linear axis over 0 and all points with their bands and single cases.
pub(super) fn around_zero<'a>(points: impl Iterator<Item = &'a Point>) -> ValueAxis {
    let values = points.flat_map(|point| {
        let band = point.value.into_iter().chain(point.low()).chain(point.high());
        band.chain(point.cases.iter().copied())
    });
    ValueAxis { reference: Some(0.0), linear: Some(spanning((0.0, 0.0), values)) }
}

/// Panels over layers on one linear axis.
pub(super) fn over_layers(y_label: &str, panels: Vec<Panel>, units: &'static str) -> Sheet {
    let points = panels.iter().flat_map(|panel| &panel.lines).flat_map(|(_, series)| &series.points);
    Sheet {
        y_label: y_label.to_owned(),
        axes: vec![around_zero(points)],
        panel: if panels.len() == 1 { (560, 190) } else { (250, 150) },
        rows: vec![panels],
        reach: 10.0,
        units,
        ..Sheet::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_to_the_two_sides_share_a_panel_and_counts_are_named() {
        let of = |pairs: &[(&'static str, &'static str)]| -> Vec<usize> {
            let curves: Vec<Curve> = pairs.iter().map(|(from, to)| Curve::new(from, to)).collect();
            beside(&curves).into_iter().map(<[Curve]>::len).collect()
        };
        assert_eq!(of(&[("new", "old"), ("query", "old"), ("query", "new")]), [1, 2]);
        assert_eq!(of(&[("query", "old"), ("last", "new"), ("query", "target")]), [1, 1, 1]);
        assert_eq!(n_of([3, 0, 5, 4].into_iter()), "n = 3 to 5");
        assert_eq!((n_of([4, 4].into_iter()), n_of([0].into_iter())), ("n = 4".to_owned(), String::new()));
    }
}
