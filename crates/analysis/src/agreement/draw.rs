//! Stratified sampling of answers for human raters, and the choice of their rubric. Each run and split value yields a fixed number of cases
//! with all their probes; if the judge grades probes one by one, each run and probe group yields a fixed number of probes. Raters read the
//! judge's rubric.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{anyhow, bail, ensure};

use super::key::{FORMAT, Groups, Key, KeyItem, KeyRun};
use crate::records::{self, Record};
use palimpsest_core::digest::sha256;
use palimpsest_data::benchmarks::{Benchmark, JudgeUnit, rubric_named};
use palimpsest_data::case::draw::Draws;
use palimpsest_data::ground::order::{entry, sorted_unique, unique};
use palimpsest_run::judge::{Exchange, Instructions};
use palimpsest_run::runs::judge_name::{JudgeChoice, JudgeName};
use palimpsest_run::runs::plan::{PlannedCase, dimension_of};
use palimpsest_run::runs::rows::{AnswerRow, RubricRow};
use palimpsest_run::runs::store::RunFolder;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Cases per run and split value, or probes per run and probe group.
    pub per_cell: usize,
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Item {
    pub item: String,
    pub query: String,
    pub answer: String,
    /// Notes for the judge only, by name: the case's, then the probe's.
    pub notes: Vec<(String, String)>,
    pub rubric: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawn {
    pub items: Vec<Item>,
    pub key: Key,
}

/// Run index, record, answer row.
type Candidate<'a> = (usize, Record<'a>, &'a AnswerRow);

/// Draws a sample from `runs`, each restricted to one condition ([`RunFolder::condition`]). If a judge call covers a case, draws cases per
/// split value whose probes are all answered; if it covers a probe, draws answered probes per probe group. Ignores verdicts. Each cell has
/// its own random stream, so it does not depend on other cells.
pub fn draw(
    benchmark: &Benchmark,
    runs: &[RunFolder],
    condition: &str,
    how: Draw,
    rubric: &Instructions,
) -> anyhow::Result<Drawn> {
    check(benchmark, runs, rubric)?;
    let by_case = rubric.unit == JudgeUnit::Case;
    let (group, what, purpose) = match by_case {
        true => (benchmark.split, "cases with all answers", "agreement cases"),
        false => (benchmark.dimension.name(), "answered questions", "agreement probes"),
    };
    let mut drawn: Vec<Candidate<'_>> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        for (value, mut cell) in cells(benchmark, (index, run), condition, by_case) {
            ensure!(
                cell.len() >= how.per_cell,
                "{}: {group} {value} has {found} {what}, and {} are to be drawn; finish the run, or draw fewer with --per-cell {found}",
                run.dir.display(),
                how.per_cell,
                found = cell.len(),
            );
            let stream = format!("{}/{value}", run.header.identity_sha256);
            Draws::new(purpose, how.seed, &stream).shuffle(&mut cell);
            drawn.extend(cell.into_iter().take(how.per_cell).flatten());
        }
    }
    Draws::new("agreement order", how.seed, "").shuffle(&mut drawn);

    let mut content = format!("{FORMAT}\n{condition}\n{}\n", rubric.criteria());
    for (run, Record { case, probe, .. }, row) in &drawn {
        let identity = runs[*run].header.identity_sha256.as_str();
        content += &serde_json::json!([identity, case.case, probe.id, row.answer]).to_string();
    }
    // Starts with a letter: spreadsheets parse digits as numbers or dates.
    let sheet: String = format!("s{}", sha256(content).chars().take(6).collect::<String>());
    let (mut items, mut keys) = (Vec::with_capacity(drawn.len()), Vec::with_capacity(drawn.len()));
    for (number, (run, Record { case, probe, .. }, row)) in drawn.into_iter().enumerate() {
        let item = format!("{sheet}-{:03}", number + 1);
        let answer = row.answer.clone().unwrap_or_default();
        let exchange =
            Exchange { probe: probe.clone(), answer: row.answer.clone(), cut: row.reached_limit() };
        let note = |(name, note): (&String, &serde_json::Value)| {
            (name.clone(), note.as_str().map_or_else(|| format!("{note:#}"), str::to_owned))
        };
        keys.push(KeyItem {
            item: item.clone(),
            run,
            case: case.case.clone(),
            probe: probe.id.clone(),
            dimension: dimension_of(benchmark, probe),
            split: split_of(benchmark, case).to_owned(),
            answer_sha256: sha256(&answer),
        });
        items.push(Item {
            item,
            query: probe.query.clone(),
            answer,
            notes: case.judge.iter().chain(&probe.judge).map(note).collect(),
            rubric: rubric.prompt(case, &[exchange])?,
        });
    }
    let probes = runs.iter().flat_map(|run| &run.plan).flat_map(|case| &case.probes);
    let key = Key {
        format: FORMAT.to_owned(),
        sheet,
        benchmark: benchmark.name.to_owned(),
        condition: condition.to_owned(),
        seed: how.seed,
        per_cell: how.per_cell,
        rubric: rubric.criteria(),
        rubric_name: Some(rubric.name.clone().into_owned()),
        most: rubric.verdict.most(),
        groups: Groups {
            dimension: benchmark.dimension.name().to_owned(),
            dimensions: unique(probes.map(|probe| dimension_of(benchmark, probe))),
            split: benchmark.split.to_owned(),
        },
        runs: key_runs(runs),
        items: keys,
    };
    Ok(Drawn { items, key })
}

/// Rejects runs of different benchmarks, a run given twice, and verdicts that are neither right/wrong nor scores.
fn check(benchmark: &Benchmark, runs: &[RunFolder], rubric: &Instructions) -> anyhow::Result<()> {
    let verdict = rubric.verdict;
    ensure!(
        verdict.is_right_or_wrong() || verdict.most().is_some(),
        "verdicts of {} are {}, and raters say correct or incorrect, or give a score; draw from runs of a benchmark with such verdicts",
        benchmark.title,
        verdict.values(&BTreeMap::new())
    );
    for (at, run) in runs.iter().enumerate() {
        for before in &runs[..at] {
            let (first, other) = (before.dir.display(), run.dir.display());
            let (of_first, of_other) = (&before.header.identity.benchmark, &run.header.identity.benchmark);
            ensure!(
                of_first == of_other,
                "{first} is a run of {of_first} and {other} of {of_other}; draw from runs of one benchmark"
            );
            let same = before.header.identity_sha256 == run.header.identity_sha256;
            ensure!(
                !(same && before.header.shard == run.header.shard),
                "{first} and {other} hold the same run; give each run once"
            );
        }
    }
    Ok(())
}

/// By value: units of a draw, which are cases with all answers or answered probes.
fn cells<'a>(
    benchmark: &Benchmark,
    (index, run): (usize, &'a RunFolder),
    condition: &str,
    by_case: bool,
) -> Vec<(String, Vec<Vec<Candidate<'a>>>)> {
    let records = records::of(run, condition);
    let mut cells: Vec<(String, Vec<Vec<Candidate<'a>>>)> = Vec::new();
    for unit in records.chunk_by(|a, b| by_case && std::ptr::eq(a.case, b.case)) {
        let value = match by_case {
            true => split_of(benchmark, unit[0].case).to_owned(),
            false => dimension_of(benchmark, unit[0].probe),
        };
        let (_, cell) = entry(&mut cells, |(own, _)| *own == value, || (value.clone(), Vec::new()));
        let answered = unit.iter().map(|record| Some((index, record.clone(), record.answer()?)));
        cell.extend(answered.collect::<Option<Vec<_>>>());
    }
    if by_case {
        cells.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    cells
}

fn split_of<'a>(benchmark: &Benchmark, case: &'a PlannedCase) -> &'a str {
    case.labels.get(benchmark.split).map_or("all", String::as_str)
}

fn key_runs(runs: &[RunFolder]) -> Vec<KeyRun> {
    let model = |run: &RunFolder| run.header.identity.model.name.clone();
    let of = |run: &RunFolder| {
        let name = model(run);
        let alone = runs.iter().filter(|other| model(other) == name).count() == 1;
        KeyRun {
            dir: std::path::absolute(&run.dir).unwrap_or_else(|_| PathBuf::from(&run.dir)),
            model: if alone { name } else { format!("{name} ({})", run.dir.display()) },
            identity_sha256: run.header.identity_sha256.clone(),
        }
    };
    runs.iter().map(of).collect()
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RubricChoice<'a> {
    pub judge: Option<&'a str>,
    /// Rubric name, from the benchmark or from a run judged with its own template.
    pub rubric: Option<&'a str>,
    pub template: Option<&'a str>,
}

/// The raters' instructions: the given template, else the named rubric, else the rubric of the runs' latest judge, else the benchmark's
/// default.
pub fn raters_rubric(
    benchmark: &Benchmark,
    runs: &[RunFolder],
    choice: RubricChoice<'_>,
) -> anyhow::Result<Instructions> {
    let default = Instructions::from(&benchmark.rubric());
    if let Some(template) = choice.template {
        return Ok(default.with_template(template.to_owned()));
    }
    if let (Some(name), None) = (choice.rubric, choice.judge) {
        return named(benchmark, runs, name);
    }
    let mut found: Option<(&RunFolder, &JudgeName, Instructions)> = None;
    for run in runs {
        let (judged, _) = run.judged_last(JudgeChoice { judge: choice.judge, rubric: choice.rubric })?;
        let Some(name) = judged.map(|judged| judged.name) else { continue };
        let own = of_judge(benchmark, run, name)?;
        match &found {
            Some((first, judge, rubric)) if rubric.criteria() != own.criteria() => bail!(
                "{} was last judged by {} and {} by {}, and raters read one rubric; choose it with --rubric NAME",
                first.dir.display(),
                judge.label,
                run.dir.display(),
                name.label
            ),
            Some(_) => {}
            None => found = Some((run, name, own)),
        }
    }
    Ok(found.map_or(default, |(_, _, rubric)| rubric))
}

fn named(benchmark: &Benchmark, runs: &[RunFolder], name: &str) -> anyhow::Result<Instructions> {
    let kept = || runs.iter().flat_map(|run| &run.rubrics);
    let unknown = match (rubric_named(benchmark, name), kept().find(|row| row.name == name)) {
        (Ok(rubric), _) => return Ok(Instructions::from(&rubric)),
        (Err(_), Some(row)) => return Ok(kept_text(benchmark, row)),
        (Err(unknown), None) => unknown,
    };
    let own = kept().map(|row| row.name.as_str()).filter(|name| rubric_named(benchmark, name).is_err());
    let own = sorted_unique(own);
    let of_runs =
        if own.is_empty() { String::new() } else { format!("; runs were judged by: {}", own.join(", ")) };
    Err(anyhow!("{unknown}{of_runs}"))
}

/// Rubric of a run's judge. If only its name was stored, the text is this version's.
fn of_judge(benchmark: &Benchmark, run: &RunFolder, judge: &JudgeName) -> anyhow::Result<Instructions> {
    if let Some(row) = run.rubrics.iter().find(|row| Some(&row.rubric) == judge.digest.as_ref()) {
        return Ok(kept_text(benchmark, row));
    }
    match (&judge.rubric, &judge.digest) {
        (Some(name), _) => named(benchmark, std::slice::from_ref(run), name),
        // Version 0.1.0 had one rubric and did not record it.
        (None, None) => Ok(Instructions::from(&benchmark.rubric())),
        (None, Some(_)) => bail!(
            "the text of the rubric that {} went by in {} is in no file of the run: verdicts of earlier versions have its digest alone; \
             choose one with --rubric NAME or --prompts DIR, and judge again by it",
            judge.label,
            run.dir.display()
        ),
    }
}

/// Instructions of a stored rubric, with reasons in the default position.
fn kept_text(benchmark: &Benchmark, row: &RubricRow) -> Instructions {
    let default = Instructions::from(&benchmark.rubric());
    Instructions { name: row.name.clone().into(), template: row.template.clone().into(), ..default }
}
