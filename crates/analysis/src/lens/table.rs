//! Series, strips and examples as long-format CSV.
//!
//! A curve and its noise baseline (`_noise`) cover the same cases; excluded examples have an empty `baseline`. Bands (`lo`, `hi`) need at
//! least [`LEAST`](super::band::LEAST) cases; with fewer, `cases` lists the values, separated by semicolons. Trailing columns: `model`
//! (several runs), `condition` (several joined by `+`), `layer_kind` (`softmax`, `windowed`, `linear`; if the run has windowed or linear
//! layers) and `signed` (mean signed sums of the implicit weights; mean masses with linear layers only).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::difference::{Difference, differences_csv};
use super::selection::joined;
use super::strip::Strip;
use super::{
    Correctness, Curve, Group, LayerKind, Lens, LensError, MeasureRow, Point, Scale, Series, StandIn,
    Statistic, Study, Target,
};
use palimpsest_data::ground::csv::{CsvTable, list};
use palimpsest_run::runs::condition::label;

/// Writes `curves.csv` (means and noise baselines), `ratios.csv`, `strip.csv` and `examples.csv` into `folder`, prefixed and each by
/// rename. Empty groups are omitted.
pub fn write(prefix: &str, lens: &Lens, folder: &Path) -> Result<Vec<PathBuf>, LensError> {
    std::fs::create_dir_all(folder).map_err(|source| LensError::Io { path: folder.to_owned(), source })?;
    let groups: Vec<Group> = lens.groups().into_iter().filter(|group| lens.units(group) > 0).collect();
    let (mut curves, mut ratios, mut strips) = (Vec::new(), Vec::new(), Vec::new());
    for group in &groups {
        for scale in Scale::ALL {
            for &curve in &lens.curves {
                for target in [Target::Signal, Target::Noise] {
                    curves.push(lens.series(group, Statistic::Mean(curve, target), scale));
                }
            }
            for ratio in lens.ratio.iter().flat_map(|_| [Statistic::RatioOfMeans, Statistic::MeanOfRatios]) {
                ratios.push(lens.series(group, ratio, scale));
            }
            strips.push(lens.strip(group, scale));
        }
    }
    let tables = [
        ("curves.csv", series_csv("curves", &[("", lens.condition(), &curves)])),
        ("ratios.csv", series_csv("ratios", &[("", lens.condition(), &ratios)])),
        ("strip.csv", strip_csv("strip", &strips, lens)),
        ("examples.csv", examples_csv(lens)),
    ];
    let mut written = Vec::new();
    for (name, table) in tables {
        written.push(put(folder.join(format!("{prefix}{name}")), &table)?);
    }
    Ok(written)
}

/// One row per series and layer, with an empty `mean` where undefined. `runs` holds (model, condition, series).
pub fn series_csv(figure: &str, runs: &[(&str, &str, &[Series])]) -> Vec<u8> {
    let series = || runs.iter().flat_map(|(run, of, all)| all.iter().map(move |one| (*run, *of, one)));
    let all =
        || series().flat_map(|(run, of, one)| one.points.iter().map(move |point| (run, of, one, point)));
    let kinds = all().any(|(.., point)| point.layer.kind != LayerKind::Softmax);
    let signed = all().any(|(.., point)| point.signed.is_some());
    CsvTable::of(all().filter(|(_, _, one, _)| one.n > 0))
        .column("figure", |_| figure)
        .column("probe", |(_, _, one, _)| &one.probes)
        .column("type", |(_, _, one, _)| all_or(&one.group.kind))
        .column("correctness", |(_, _, one, _)| one.group.correctness.key())
        .column("statistic", |(_, _, one, _)| one.statistic.key())
        .column("scale", |(_, _, one, _)| one.scale.key())
        .column("layer", |(.., point)| point.layer.index)
        .column("n", |(.., point)| point.n)
        .column("undefined", |(.., point)| point.undefined)
        .optional("mean", |(.., point)| point.value)
        .optional("lo", |(.., point)| point.low())
        .optional("hi", |(.., point)| point.high())
        .column("cases", |(.., point)| list(&point.cases))
        .column_if(kinds, "layer_kind", |(.., point)| point.layer.kind.key())
        .column_if(signed, "signed", |(.., point)| {
            point.signed.map(|sum| sum.to_string()).unwrap_or_default()
        })
        .column_if(runs.len() > 1, "model", |(run, ..)| run)
        .column("condition", |(_, of, ..)| label(of))
        .bytes()
}

/// One row per place and layer; `mean` is empty if no segment is visible.
pub fn strip_csv(figure: &str, strips: &[Strip], lens: &Lens) -> Vec<u8> {
    let cells = strips.iter().flat_map(|strip| strip.cells.iter().map(move |cell| (strip, cell)));
    let rows = cells.flat_map(|(strip, (place, n, means))| {
        let layers = lens.layers.iter().zip(means.iter().flatten());
        layers.map(move |(layer, mean)| (strip, *place, *n, layer, *mean))
    });
    CsvTable::of(rows)
        .column("figure", |_| figure)
        .column("probe", |(strip, ..)| lens.probes_of(&strip.group))
        .column("type", |(strip, ..)| all_or(&strip.group.kind))
        .column("correctness", |(strip, ..)| strip.group.correctness.key())
        .column("place", |(_, place, ..)| place.key(lens.benchmark.lens.anchors))
        .column("scale", |(strip, ..)| strip.scale.key())
        .column("layer", |(.., layer, _)| layer.index)
        .column("n", |(_, _, n, ..)| n)
        .optional("mean", |(.., mean)| Some(mean).filter(|mean| mean.is_finite()))
        .column_if(lens.has_kinds(), "layer_kind", |(.., layer, _)| layer.kind.key())
        .column("condition", |_| label(lens.condition()))
        .bytes()
}

/// One row per example and curve: number of truncated segments, original indices of the evidence and its stand-ins, and the largest
/// stand-in distance (1: immediate neighbour). `baseline` and `distance` are empty without stand-ins.
pub fn examples_csv(lens: &Lens) -> Vec<u8> {
    let rows = lens.examples.iter().flat_map(|example| {
        let has = |curve: &&Curve| example.curves().any(|of| of == **curve);
        lens.curves
            .iter()
            .filter(has)
            .map(|curve| (example, *curve, example.stand_ins(*curve)))
            .collect::<Vec<_>>()
    });
    CsvTable::of(rows)
        .column("case", |(example, ..)| &example.case)
        .column("probe", |(example, ..)| &example.probe)
        .optional("type", |(example, ..)| example.kind.as_ref())
        .column("correctness", |(example, ..)| match example.correct {
            Some(true) => Correctness::Correct.key(),
            Some(false) => Correctness::Wrong.key(),
            None => "",
        })
        .column("prompt_tokens", |(example, ..)| example.prompt_tokens)
        .column("dropped", |(example, ..)| example.dropped.len())
        .column("curve", |(_, curve, _)| curve.key())
        .column("evidence", |(.., stand_ins)| list(each(stand_ins, |one| one.evidence)))
        .column("baseline", |(.., stand_ins)| list(each(stand_ins, |one| one.index)))
        .optional("distance", |(.., stand_ins)| stand_ins.iter().map(|one| one.distance()).max())
        .column("condition", |(example, ..)| label(&example.condition))
        .bytes()
}

#[derive(Debug, Clone, Copy)]
pub struct MeasureTable<'a> {
    pub grouping: &'a str,
    pub measure: &'a str,
    pub scale: Scale,
    /// Conditions that the measure pairs; empty if per condition.
    pub paired: &'a [&'a str],
    pub rows: &'a [MeasureRow],
}

fn points<'a, R: Copy>(table: CsvTable<R>, point: impl Fn(R) -> &'a Point) -> CsvTable<R> {
    table
        .column("layer", |row| point(row).layer.index)
        .column("layer_kind", |row| point(row).layer.kind.key())
        .column("n", |row| point(row).n)
        .column("undefined", |row| point(row).undefined)
        .optional("mean", |row| point(row).value)
        .optional("lo", |row| point(row).low())
        .optional("hi", |row| point(row).high())
}

pub fn lines_csv<'a>(lines: impl Iterator<Item = (&'a str, &'a Series)>) -> Vec<u8> {
    let rows = lines.flat_map(|(line, series)| series.points.iter().map(move |point| (line, point)));
    points(CsvTable::of(rows).column("line", |(line, _)| line), |(_, point)| point).bytes()
}

/// One row per measure, group and layer. `grouping` names the second column.
pub fn measures_csv(figure: &str, grouping: &str, tables: &[MeasureTable<'_>]) -> Vec<u8> {
    let rows = tables.iter().flat_map(|table| table.rows.iter().map(move |row| (table, row)));
    let lines = rows.flat_map(|(table, row)| row.lines.iter().map(move |line| (table, row, line)));
    let all = lines
        .flat_map(|(table, row, line)| line.series.points.iter().map(move |point| (table, row, line, point)));
    let table = CsvTable::of(all)
        .column("figure", |_| figure)
        .column(grouping, |(table, ..)| table.grouping)
        .column("row", |(_, row, ..)| &row.row)
        .column("line", |(_, _, line, _)| &line.word)
        .column("condition", |(table, row, ..)| match &row.condition {
            None => joined(table.paired),
            Some(name) => joined(&[name]),
        })
        .column("measure", |(table, ..)| table.measure)
        .column("scale", |(table, ..)| table.scale.key());
    points(table, |(.., point)| point)
        .column("cases", |(.., point)| list(&point.cases))
        .column("examples", |(_, _, line, _)| line.examples)
        .bytes()
}

fn put(path: PathBuf, table: &[u8]) -> Result<PathBuf, LensError> {
    palimpsest_core::files::write_atomically(&path, table)
        .map_err(|source| LensError::Io { path: path.clone(), source })?;
    Ok(path)
}

/// Writes a study's tables into `folder`, each by rename: those of [`write()`] per condition, `measures.csv` and `differences.csv`,
/// prefixed as [`Selection`](super::Selection) says.
pub fn write_study(study: &Study, folder: &Path) -> Result<Vec<PathBuf>, LensError> {
    let mut written = Vec::new();
    for (condition, lens) in study.measured() {
        let prefix =
            if study.selection.several { format!("{}-", label(&condition.name)) } else { String::new() };
        written.extend(write(&prefix, lens, folder)?);
    }
    let mut found = Vec::new();
    for grouping in study.groupings() {
        for measure in study.measures() {
            for scale in Scale::ALL {
                found.push((grouping.key, measure, scale, study.rows(measure, grouping, scale)));
            }
        }
    }
    let tables: Vec<MeasureTable<'_>> = found
        .iter()
        .map(|(grouping, measure, scale, rows)| MeasureTable {
            grouping,
            measure: measure.key,
            scale: *scale,
            paired: measure.paired,
            rows,
        })
        .collect();
    let differences: Vec<Difference> =
        Scale::ALL.iter().flat_map(|scale| study.differences(*scale)).collect();
    let joint = [
        ("measures.csv", !tables.is_empty(), measures_csv("measures", "grouping", &tables)),
        ("differences.csv", !differences.is_empty(), differences_csv(&differences)),
    ];
    for (name, _, table) in joint.into_iter().filter(|(_, some, _)| *some) {
        written.push(put(folder.join(format!("{}{name}", study.selection.prefix)), &table)?);
    }
    Ok(written)
}

fn each(stand_ins: &[StandIn], of: impl Fn(&StandIn) -> usize) -> BTreeSet<usize> {
    stand_ins.iter().map(of).collect()
}

fn all_or(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("all")
}
