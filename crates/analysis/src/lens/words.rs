//! Text summary printed by `palimpsest lens`. Attention in percent, averaged over layers of one kind.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Curve, LayerKind, Lens, Scale, Series, Statistic, Study, Target};
use palimpsest_data::ground::table::{within, wrapped};
use palimpsest_run::runs::condition::label;

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

/// One table per layer kind, one line per non-empty group: attention in percent, noise baselines in brackets.
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
    // Per group: label; per curve: signal and noise baseline; last the ratio, without a baseline.
    let groups = lens.groups().into_iter().filter(|group| lens.units(group) > 0);
    let measured = groups.map(|group| {
        let of = |statistic| lens.series(&group, statistic, Scale::Mass);
        let both = |curve: &Curve| {
            let noise = of(Statistic::Mean(*curve, Target::Noise));
            (of(Statistic::Mean(*curve, Target::Signal)), Some(noise))
        };
        let ratio = lens.ratio.map(|_| (of(Statistic::RatioOfMeans), None));
        (lens.label(&group), lens.curves.iter().map(both).chain(ratio).collect())
    });
    let measured: Vec<Curves> = measured.collect();
    for (kind, count) in lens.layer_kinds() {
        let row = |(group, series): &Curves| {
            (group.clone(), series.iter().map(|(series, noise)| cell(series, noise.as_ref(), kind)).collect())
        };
        let rows: Vec<Row> = measured.iter().map(row).collect();
        text.push('\n');
        text += &line(&heading(lens, kind, count, &rows), width);
        text += &table_of(lens, &rows, width);
    }
    text.push('\n');
    text
}

/// A group's label; per curve its series and noise baseline.
type Curves = (String, Vec<(Series, Option<Series>)>);
type Row = (String, Vec<(String, usize, bool)>);

fn cell(series: &Series, noise: Option<&Series>, kind: LayerKind) -> (String, usize, bool) {
    let factor = if noise.is_some() { 100.0 } else { 1.0 };
    let write = |series: &Series| series.mean_over(kind).map(|mean| format!("{:.3}", mean * factor));
    let (value, noise) = (write(series).unwrap_or_else(|| "-".to_owned()), noise.and_then(write));
    let has_noise = noise.is_some();
    (noise.map_or(value.clone(), |noise| format!("{value} ({noise})")), units_over(series, kind), has_noise)
}

fn heading(lens: &Lens, kind: LayerKind, count: usize, rows: &[Row]) -> String {
    let what = if kind == LayerKind::Linear { "share of |weight|" } else { "attention" };
    let layers = match lens.has_kinds() {
        true => format!("mean over the {count} {} layers", kind.key()),
        false => "mean over layers".to_owned(),
    };
    let noise = rows.iter().flat_map(|(_, cells)| cells).any(|(.., has_noise)| *has_noise);
    let noise = if noise { " (noise baseline)" } else { "" };
    let ratio = lens.ratio.map_or("", |_| "; ratio of means, mean over the same layers");
    let many = lens.unit().many();
    format!("{what} in %, {layers}{noise}{ratio}; n: {many} with a value")
}

/// One column per curve. Unit counts are printed per cell where they differ within a group.
fn table_of(lens: &Lens, rows: &[Row], width: usize) -> String {
    let of_row = |(_, cells): &Row| cells.iter().map(|(_, n, _)| *n).collect::<BTreeSet<_>>();
    let alike = rows.iter().all(|row| of_row(row).len() <= 1);
    let curves = lens.curves.iter().map(|curve| curve.label());
    let names = curves.chain(lens.ratio.map(|(over, under)| format!("{}/{}", over.to, under.to)));
    let mut head = vec!["group".to_owned()];
    head.extend(alike.then(|| "n".to_owned()));
    let kept = head.len();
    head.extend(names);
    let mut lines = vec![head];
    for row in rows {
        let mut cells = vec![row.0.clone()];
        cells.extend(alike.then(|| of_row(row).first().map_or("0".to_owned(), usize::to_string)));
        cells.extend(row.1.iter().map(|(text, n, _)| match alike {
            true => text.clone(),
            false => format!("{text}, n={n}"),
        }));
        lines.push(cells);
    }
    within(&lines, |column| column > 0, kept, width)
}

/// One table per measure: groups and conditions, averaged over layers of one kind. May be empty.
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

fn units_over(series: &Series, kind: LayerKind) -> usize {
    let of_kind = series.points.iter().filter(|point| point.layer.kind == kind);
    of_kind.map(|point| point.n).max().unwrap_or(0)
}
