//! Series and strips as CSV, in long format: one row a group, statistic and layer; and the examples, one row a curve.
//!
//! A band (`lo`, `hi`) is of at least [`LEAST`](super::band::LEAST) cases; of fewer, `cases` holds each case's own value, with
//! semicolons between them. A table of several runs has the column `model` near its end. Every table names the condition of each row in
//! its column `condition`, `plain` where it is the plain one, several with `+` between them where a row is over them; where it is not
//! said below, it is the last.
//!
//! Where a run has layers with a window or linear-attention layers its tables have one more column at the end, `layer_kind`
//! (`softmax`, `windowed` or `linear`). Where it has linear layers, those with means of curves as masses have another,
//! `signed`: the mean of the signed sums of the implicit weights, empty at softmax layers. Tables of models all of whose
//! layers see the whole prompt by a softmax have neither.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::difference::{Difference, differences_csv};
use super::selection::joined;
use super::strip::Strip;
use super::{
    Correctness, Group, LayerKind, Lens, LensError, MeasureRow, Part, Scale, Series, StandIn, Statistic,
    Study,
};
use crate::ground::csv::{CsvTable, number};
use crate::run::condition::label;

/// Writes the tables of a run into `folder`, each by rename: `curves.csv` (means and noise baselines), `ratios.csv`,
/// `strip.csv` and `examples.csv`, with `prefix` before the files' names. Groups without members have no rows.
///
/// # Errors
/// [`LensError::Io`] where the folder or a file cannot be written.
pub fn write(prefix: &str, lens: &Lens, folder: &Path) -> Result<Vec<PathBuf>, LensError> {
    std::fs::create_dir_all(folder).map_err(|source| LensError::Io { path: folder.to_owned(), source })?;
    let groups: Vec<Group> = lens.groups().into_iter().filter(|group| lens.units(group) > 0).collect();
    let (mut curves, mut ratios, mut strips) = (Vec::new(), Vec::new(), Vec::new());
    for group in &groups {
        for scale in Scale::ALL {
            for &curve in &lens.curves {
                for part in [Part::Signal, Part::Noise] {
                    curves.push(lens.series(group, Statistic::Mean(curve, part), scale));
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

/// Rows of `figure,probe,type,correctness,statistic,scale,layer,n,undefined,mean,lo,hi,cases`; a layer where the statistic is
/// undefined has an empty `mean`. Then `layer_kind` and `signed` where the series have them, `model` where there are several
/// runs (see the module), and `condition`. `runs` are the series of each, with its model's and its condition's name.
pub fn series_csv(figure: &str, runs: &[(&str, &str, &[Series])]) -> Vec<u8> {
    let all = || runs.iter().flat_map(|(run, of, series)| series.iter().map(move |one| (run, of, one)));
    let points = || all().flat_map(|(.., one)| &one.points);
    let several = runs.len() > 1;
    let kinds = points().any(|point| point.layer.kind != LayerKind::Softmax);
    let signed = points().any(|point| point.signed.is_some());
    let mut head = vec![
        "figure",
        "probe",
        "type",
        "correctness",
        "statistic",
        "scale",
        "layer",
        "n",
        "undefined",
        "mean",
        "lo",
        "hi",
        "cases",
    ];
    head.extend(kinds.then_some("layer_kind"));
    head.extend(signed.then_some("signed"));
    head.extend(several.then_some("model"));
    head.push("condition");
    let mut table = CsvTable::new(head);
    for (run, condition, one) in all().filter(|(.., one)| one.n > 0) {
        for point in &one.points {
            let mut row = vec![
                figure.to_owned(),
                one.probes.clone(),
                all_or(&one.group.kind).to_owned(),
                one.group.correctness.key().to_owned(),
                one.statistic.key(),
                one.scale.key().to_owned(),
                point.layer.index.to_string(),
                point.n.to_string(),
                point.undefined.to_string(),
                number(point.value),
                number(point.band.map(|band| band.0)),
                number(point.band.map(|band| band.1)),
                listed(&point.cases),
            ];
            row.extend(kinds.then(|| point.layer.kind.key().to_owned()));
            row.extend(signed.then(|| number(point.signed)));
            row.extend(several.then(|| (*run).to_owned()));
            row.push(label(condition).to_owned());
            table.row(row);
        }
    }
    table.bytes()
}

/// Rows of `figure,probe,type,correctness,place,scale,layer,n,mean`, `layer_kind` where a layer is windowed or linear, `condition`. A
/// layer that sees no segment of the place has an empty `mean`.
pub fn strip_csv(figure: &str, strips: &[Strip], lens: &Lens) -> Vec<u8> {
    let kinds = lens.layers.iter().any(|layer| layer.kind != LayerKind::Softmax);
    let mut head = vec!["figure", "probe", "type", "correctness", "place", "scale", "layer", "n", "mean"];
    head.extend(kinds.then_some("layer_kind"));
    head.push("condition");
    let mut table = CsvTable::new(head);
    for strip in strips {
        for (place, n, means) in &strip.cells {
            let Some(means) = means else { continue };
            for (layer, mean) in lens.layers.iter().zip(means) {
                let mut row = vec![
                    figure.to_owned(),
                    lens.probes_of(&strip.group),
                    all_or(&strip.group.kind).to_owned(),
                    strip.group.correctness.key().to_owned(),
                    place.key(lens.benchmark.lens.anchors),
                    strip.scale.key().to_owned(),
                    layer.index.to_string(),
                    n.to_string(),
                    number(Some(*mean).filter(|mean| mean.is_finite())),
                ];
                row.extend(kinds.then(|| layer.kind.key().to_owned()));
                row.push(label(lens.condition()).to_owned());
                table.row(row);
            }
        }
    }
    table.bytes()
}

/// Rows of `case,probe,type,correctness,prompt_tokens,dropped,curve,evidence,baseline,distance,condition`, one an example and curve that it
/// has: how many segments were dropped to fit the context, the original indices of the evidence and of the segments in its
/// noise baseline, and how far the farthest of these is from its evidence (1: an immediate neighbour). `baseline` and `distance`
/// are empty where nothing can stand in.
pub fn examples_csv(lens: &Lens) -> Vec<u8> {
    let mut table = CsvTable::new([
        "case",
        "probe",
        "type",
        "correctness",
        "prompt_tokens",
        "dropped",
        "curve",
        "evidence",
        "baseline",
        "distance",
        "condition",
    ]);
    for example in &lens.examples {
        for &curve in lens.curves.iter().filter(|curve| example.curves().any(|of| of == **curve)) {
            let stand_ins = example.stand_ins(curve);
            let correctness = match example.correct {
                Some(true) => Correctness::Correct.key(),
                Some(false) => Correctness::Wrong.key(),
                None => "",
            };
            table.row([
                example.case.clone(),
                example.probe.clone(),
                example.kind.clone().unwrap_or_default(),
                correctness.to_owned(),
                example.prompt_tokens.to_string(),
                example.dropped.len().to_string(),
                curve.key(),
                listed(each(stand_ins, |one| one.evidence)),
                listed(each(stand_ins, |one| one.index)),
                stand_ins.iter().map(|one| one.distance()).max().map(|d| d.to_string()).unwrap_or_default(),
                label(&example.condition).to_owned(),
            ]);
        }
    }
    table.bytes()
}

/// A measure's rows, by one grouping.
#[derive(Debug, Clone, Copy)]
pub struct MeasureTable<'a> {
    /// How examples are told apart.
    pub grouping: &'a str,
    /// The measure's key.
    pub measure: &'a str,
    /// Mass or density.
    pub scale: Scale,
    /// The conditions that the measure pairs; none where each has its own.
    pub paired: &'a [&'a str],
    /// Its rows.
    pub rows: &'a [MeasureRow],
}

/// Some lines over layers: a row a line and layer.
pub fn lines_csv<'a>(lines: impl Iterator<Item = (&'a str, &'a Series)>) -> Vec<u8> {
    let mut csv = CsvTable::new(["line", "layer", "layer_kind", "n", "undefined", "mean", "lo", "hi"]);
    for (line, series) in lines {
        for point in &series.points {
            csv.row([
                line.to_owned(),
                point.layer.index.to_string(),
                point.layer.kind.key().to_owned(),
                point.n.to_string(),
                point.undefined.to_string(),
                number(point.value),
                number(point.band.map(|band| band.0)),
                number(point.band.map(|band| band.1)),
            ]);
        }
    }
    csv.bytes()
}

/// Rows of `figure,grouping,row,line,condition,measure,scale,layer,layer_kind,n,undefined,mean,lo,hi,cases,examples`, the second column under
/// the name given: one a measure, group and layer.
pub fn measures_csv(figure: &str, grouping: &str, tables: &[MeasureTable<'_>]) -> Vec<u8> {
    let mut csv = CsvTable::new([
        "figure",
        grouping,
        "row",
        "line",
        "condition",
        "measure",
        "scale",
        "layer",
        "layer_kind",
        "n",
        "undefined",
        "mean",
        "lo",
        "hi",
        "cases",
        "examples",
    ]);
    for table in tables {
        let lines = table.rows.iter().flat_map(|row| row.lines.iter().map(move |line| (row, line)));
        for (row, line) in lines {
            for point in &line.series.points {
                csv.row([
                    figure.to_owned(),
                    table.grouping.to_owned(),
                    row.row.clone(),
                    line.word.clone(),
                    row.condition.as_ref().map_or_else(|| joined(table.paired), |name| joined(&[name])),
                    table.measure.to_owned(),
                    table.scale.key().to_owned(),
                    point.layer.index.to_string(),
                    point.layer.kind.key().to_owned(),
                    point.n.to_string(),
                    point.undefined.to_string(),
                    number(point.value),
                    number(point.band.map(|band| band.0)),
                    number(point.band.map(|band| band.1)),
                    listed(&point.cases),
                    line.examples.to_string(),
                ]);
            }
        }
    }
    csv.bytes()
}

fn put(path: PathBuf, table: &[u8]) -> Result<PathBuf, LensError> {
    palimpsest_core::files::write_atomically(&path, table)
        .map_err(|source| LensError::Io { path: path.clone(), source })?;
    Ok(path)
}

/// Writes a study's tables into `folder`, each by rename: those of [`write()`], after the condition's name where the run has several, and
/// after those of the conditions where not all are in it ([`Selection`](super::Selection)) `measures.csv` where the benchmark has measures, and
/// `differences.csv` where conditions can be held against each other.
///
/// # Errors
/// Those of [`write()`].
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

/// Something of each stand-in, ascending and once.
fn each(stand_ins: &[StandIn], of: impl Fn(&StandIn) -> usize) -> BTreeSet<usize> {
    stand_ins.iter().map(of).collect()
}

/// Values in one field.
fn listed<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(";")
}

fn all_or(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("all")
}
