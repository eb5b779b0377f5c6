//! A study in words: what `palimpsest lens` prints beside its CSV files. Attention in percent, averaged over layers of one kind.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Curve, Group, LayerKind, Lens, Scale, Series, Statistic, Study, Target};
use crate::ground::table::{within, wrapped};
use crate::run::condition::label;

/// The tables of every condition and of the benchmark's measures, in lines of a width.
pub fn in_words(study: &Study, width: usize) -> String {
    let mut text = String::new();
    for (condition, lens) in study.measured() {
        if study.selection.several {
            text += &line(&format!("condition {}", label(&condition.name)), width);
        }
        text += &summary(lens, width);
    }
    for condition in study.conditions.iter().filter(|condition| condition.lens.is_none()) {
        let why = condition.without.as_deref().unwrap_or_default();
        text += &line(&format!("condition {}: not measured ({why})", label(&condition.name)), width);
    }
    text + &measures(study, width)
}

fn line(text: &str, width: usize) -> String {
    wrapped(text, width) + "\n"
}

/// One line a group that has members: attention in percent, averaged over layers, noise baselines in brackets. Each kind of
/// layers has a table.
fn summary(lens: &Lens, width: usize) -> String {
    let mut text = String::new();
    let mut say = |sentence: String| text += &line(&sentence, width);
    match &lens.judge {
        Some(judge) => say(format!("verdicts: {judge}")),
        None if lens.no_result.is_some() => {
            let why = lens.no_result.as_deref().unwrap_or_default();
            say(format!("verdicts: no result, so nothing is split by correctness ({why})"));
        }
        None => say("verdicts: none, so nothing is split by correctness".to_owned()),
    }
    say(format!("{}, {} examples measured", lens.layers_in_words(), lens.examples.len()));
    if let Some(drawn) = lens.drawn {
        let (most, seed) = (drawn.by.most, drawn.by.seed);
        say(format!(
            "up to {most} examples of each probe, {} and verdict were drawn (seed {seed}): {} of {}",
            lens.benchmark.split, drawn.kept, drawn.of
        ));
    }
    let far = lens.far_baselines().count();
    if far > 0 {
        let segment = lens.benchmark.segment;
        say(format!(
            "noise baselines: in {far} examples a neighbour was dropped or is evidence, and the nearest {segment} kept stands in \
             (examples.csv)"
        ));
    }
    let left_out = lens.left_out_in_words();
    if !left_out.is_empty() {
        say(left_out);
    }
    for skipped in &lens.skipped {
        say(format!("not measured: {} {}: {}", skipped.case, skipped.probe, skipped.reason));
    }
    let groups: Vec<Measured> = lens
        .groups()
        .into_iter()
        .filter(|group| lens.units(group) > 0)
        .map(|group| Measured::of(lens, group))
        .collect();
    for (kind, count) in lens.layer_kinds() {
        let rows: Vec<Row> = groups.iter().map(|group| group.row(lens, kind)).collect();
        text.push('\n');
        text += &line(&heading(lens, kind, count, &rows), width);
        text += &table_of(lens, &rows, width);
    }
    text.push('\n');
    text
}

fn heading(lens: &Lens, kind: LayerKind, count: usize, rows: &[Row]) -> String {
    let what = if kind == LayerKind::Linear { "share of |weight|" } else { "attention" };
    let layers = match lens.has_kinds() {
        true => format!("mean over the {count} {} layers", kind.key()),
        false => "mean over layers".to_owned(),
    };
    let noise = rows.iter().flat_map(|row| &row.cells).any(|cell| cell.has_noise);
    let noise = if noise { " (noise baseline)" } else { "" };
    let ratio = lens.ratio.map_or("", |_| "; ratio of means, mean over the same layers");
    let many = lens.unit().many();
    format!("{what} in %, {layers}{noise}{ratio}; n: {many} with a value")
}

/// The table: a column a curve. Where the curves of a group rest on different numbers of units, each says its own.
fn table_of(lens: &Lens, rows: &[Row], width: usize) -> String {
    let of_row = |row: &Row| row.cells.iter().map(|cell| cell.n).collect::<BTreeSet<_>>();
    let alike = rows.iter().all(|row| of_row(row).len() <= 1);
    let curves = lens.curves.iter().map(|curve| curve.label());
    let names = curves.chain(lens.ratio.map(|(over, under)| format!("{}/{}", over.to, under.to)));
    let mut head = vec!["group".to_owned()];
    head.extend(alike.then(|| "n".to_owned()));
    let kept = head.len();
    head.extend(names);
    let mut lines = vec![head];
    for row in rows {
        let mut cells = vec![row.group.clone()];
        cells.extend(alike.then(|| of_row(row).first().map_or("0".to_owned(), usize::to_string)));
        cells.extend(row.cells.iter().map(|cell| match alike {
            true => cell.text.clone(),
            false => format!("{}, n={}", cell.text, cell.n),
        }));
        lines.push(cells);
    }
    within(&lines, |column| column > 0, kept, width)
}

/// The benchmark's measures: of each a table of groups and conditions, averaged over layers of one kind; empty where it has none.
fn measures(study: &Study, width: usize) -> String {
    let mut text = String::new();
    let Some((_, lens)) = study.measured().next() else { return text };
    for (kind, _) in lens.layer_kinds() {
        for grouping in study.groupings() {
            let mut tables = String::new();
            for measure in study.measures() {
                let Some(scale) = measure.scales.first() else { continue };
                let mut lines = vec![["group", "n", "mean"].map(str::to_owned)];
                for row in &study.rows(measure, grouping, *scale) {
                    for one in &row.lines {
                        let Some(mean) = one.series.mean_over(kind) else { continue };
                        let condition =
                            row.condition.as_deref().filter(|_| study.selection.several).map_or("", label);
                        let mut named = vec![row.row.as_str(), condition, one.word.as_str()];
                        named.retain(|word| !word.is_empty());
                        named.dedup();
                        let group = if named.is_empty() { "all".to_owned() } else { named.join(" ") };
                        lines.push([group, units_over(&one.series, kind).to_string(), format!("{mean:.3}")]);
                    }
                }
                if lines.len() > 1 {
                    let heading = format!("{}, of {}", measure.label, scale.key());
                    let _ = writeln!(tables, "{}", wrapped(&heading, width));
                    tables += &indented(&within(&lines, |column| column > 0, 1, width - INDENT.len()));
                }
            }
            if !tables.is_empty() {
                let heading = format!(
                    "measures by {}, mean over {} layers; n: {} with a value",
                    grouping.label,
                    kind.key(),
                    lens.unit().many()
                );
                let _ = writeln!(text, "{}\n\n{tables}", wrapped(&heading, width));
            }
        }
    }
    text
}

const INDENT: &str = "  ";

fn indented(table: &str) -> String {
    table.lines().map(|line| format!("{INDENT}{line}\n")).collect()
}

/// The units with a value at some layer of a kind.
fn units_over(series: &Series, kind: LayerKind) -> usize {
    let of_kind = series.points.iter().filter(|point| point.layer.kind == kind);
    of_kind.map(|point| point.n).max().unwrap_or(0)
}

struct Measured {
    group: Group,
    /// By curve: the signal and its noise baseline.
    curves: Vec<(Series, Series)>,
    ratio: Option<Series>,
}

/// A group's line in the table of one kind of layers.
struct Row {
    group: String,
    cells: Vec<Cell>,
}

/// A curve or a ratio of a group, and how many units it rests on.
struct Cell {
    text: String,
    n: usize,
    has_noise: bool,
}

impl Measured {
    fn of(lens: &Lens, group: Group) -> Self {
        let of = |statistic| lens.series(&group, statistic, Scale::Mass);
        let both = |curve: &Curve| {
            (of(Statistic::Mean(*curve, Target::Signal)), of(Statistic::Mean(*curve, Target::Noise)))
        };
        let curves = lens.curves.iter().map(both).collect();
        let ratio = lens.ratio.map(|_| of(Statistic::RatioOfMeans));
        Measured { curves, ratio, group }
    }

    fn row(&self, lens: &Lens, kind: LayerKind) -> Row {
        let percent = |series: &Series| series.mean_over(kind).map(|mean| format!("{:.3}", mean * 100.0));
        let of_curve = |(signal, noise): &(Series, Series)| {
            let (value, noise) = (percent(signal).unwrap_or_else(|| "-".to_owned()), percent(noise));
            let has_noise = noise.is_some();
            let text = noise.map_or(value.clone(), |noise| format!("{value} ({noise})"));
            Cell { text, n: units_over(signal, kind), has_noise }
        };
        let of_ratio = |ratio: &Series| {
            let text = ratio.mean_over(kind).map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
            Cell { text, n: units_over(ratio, kind), has_noise: false }
        };
        let cells = self.curves.iter().map(of_curve).chain(self.ratio.iter().map(of_ratio)).collect();
        Row { group: lens.label(&self.group), cells }
    }
}
