//! The stratified sample: of every run and every value of the split so many cases, with all their probes; where a judge sees each
//! probe by itself, of every run and every group of probes so many probes.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::AgreementError;
use super::key::{FORMAT, Groups, Key, KeyItem, KeyRun};
use crate::benchmarks::{Benchmark, JudgeUnit};
use crate::data::draw::Draws;
use crate::ground::order::{sorted_unique, unique};
use crate::judge::{Exchange, Instructions};
use crate::run::plan::{PlannedCase, PlannedProbe, dimension_of};
use crate::run::rows::AnswerRow;
use crate::run::store::RunFolder;
use palimpsest_core::digest::sha256;

/// Settings of a draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Cases a run and value of the split, or probes a run and group of probes.
    pub per_cell: usize,
    /// Seed of the cases and of the order of items.
    pub seed: u64,
}

/// One item as a rater sees it: no model, no verdict.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Item {
    pub item: String,
    pub query: String,
    pub answer: String,
    /// Notes that only a judge sees, by name: the case's, then the probe's.
    pub notes: Vec<(String, String)>,
    /// The judge's instructions for this one answer.
    pub rubric: String,
}

/// A sample: what raters see, and the key that they do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawn {
    /// In the order of the sheet.
    pub items: Vec<Item>,
    pub key: Key,
}

struct Candidate<'a> {
    run: usize,
    case: &'a PlannedCase,
    probe: &'a PlannedProbe,
    answer: &'a str,
    /// True if the limit of new tokens cut it off.
    cut: bool,
    split: &'a str,
}

/// Draws from `runs`, which hold the answers of one condition each ([`RunFolder::condition`]). Where a judge's call covers a case, cases
/// are drawn, from each value of the split, and a case can be drawn where every probe that the run asks of it has an answer; where it
/// covers a probe, answered probes are drawn, from each group of probes. Verdicts have no part in it. Each cell has a stream of draws of
/// its own, so that it does not depend on which others there are. Raters read `rubric`.
pub fn draw(
    benchmark: &Benchmark,
    runs: &[RunFolder],
    condition: &str,
    how: Draw,
    rubric: &Instructions,
) -> Result<Drawn, AgreementError> {
    check(benchmark, runs, rubric)?;
    let by_case = rubric.unit == JudgeUnit::Case;
    let (group, what, purpose) = match by_case {
        true => (benchmark.split, "cases with all answers", "agreement cases"),
        false => (benchmark.dimension.name(), "answered questions", "agreement probes"),
    };
    let mut drawn: Vec<Candidate<'_>> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let cells = if by_case {
            cells_of_cases(benchmark, run, index)
        } else {
            cells_of_probes(benchmark, run, index)
        };
        for (value, mut cell) in cells {
            if cell.len() < how.per_cell {
                return Err(AgreementError::TooFew {
                    run: run.dir.clone(),
                    split: group,
                    value,
                    what,
                    found: cell.len(),
                    wanted: how.per_cell,
                });
            }
            let stream = format!("{}/{value}", run.header.identity_sha256);
            Draws::new(purpose, how.seed, &stream).shuffle(&mut cell);
            drawn.extend(cell.into_iter().take(how.per_cell).flatten());
        }
    }
    Draws::new("agreement order", how.seed, "").shuffle(&mut drawn);

    let mut content = format!("{FORMAT}\n{condition}\n{}\n", rubric.criteria());
    for Candidate { run, case, probe, answer, .. } in &drawn {
        let identity = runs.get(*run).map_or("", |run| run.header.identity_sha256.as_str());
        content += &serde_json::json!([identity, case.case, probe.id, answer]).to_string();
    }
    // A letter first: spreadsheets take digits for numbers and dates.
    let sheet: String = format!("s{}", sha256(content).chars().take(6).collect::<String>());
    let mut items = Vec::with_capacity(drawn.len());
    let mut keys = Vec::with_capacity(drawn.len());
    for (number, candidate) in drawn.into_iter().enumerate() {
        let Candidate { run, case, probe, answer, cut, split } = candidate;
        let item = format!("{sheet}-{:03}", number + 1);
        let exchange = Exchange { probe: probe.clone(), answer: Some(answer.to_owned()), cut };
        items.push(Item {
            item: item.clone(),
            query: probe.query.clone(),
            answer: answer.to_owned(),
            notes: notes(case, probe),
            rubric: rubric.prompt(case, &[exchange])?,
        });
        keys.push(KeyItem {
            item,
            run,
            case: case.case.clone(),
            probe: probe.id.clone(),
            dimension: dimension_of(benchmark, probe),
            split: split.to_owned(),
            answer_sha256: sha256(answer),
        });
    }
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
            dimensions: dimensions(benchmark, runs),
            split: benchmark.split.to_owned(),
        },
        runs: key_runs(runs),
        items: keys,
    };
    Ok(Drawn { items, key })
}

/// Refuses runs that do not go together, and answers that are neither right or wrong nor scored.
fn check(benchmark: &Benchmark, runs: &[RunFolder], rubric: &Instructions) -> Result<(), AgreementError> {
    let verdict = rubric.verdict;
    if !(verdict.is_right_or_wrong() || verdict.most().is_some()) {
        return Err(AgreementError::NotRated {
            benchmark: benchmark.title,
            values: verdict.values(&BTreeMap::new()),
        });
    }
    let benchmark_of = |run: &RunFolder| run.header.identity.benchmark.clone();
    for (at, run) in runs.iter().enumerate() {
        for before in runs.iter().take(at) {
            if benchmark_of(before) != benchmark_of(run) {
                return Err(AgreementError::Benchmarks {
                    first: before.dir.clone(),
                    first_benchmark: benchmark_of(before),
                    other: run.dir.clone(),
                    other_benchmark: benchmark_of(run),
                });
            }
            let same = before.header.identity_sha256 == run.header.identity_sha256;
            if same && before.header.shard == run.header.shard {
                return Err(AgreementError::SameRun(before.dir.clone(), run.dir.clone()));
            }
        }
    }
    Ok(())
}

/// Candidates that are drawn together, by the cell's value.
type Cells<'a> = Vec<(String, Vec<Vec<Candidate<'a>>>)>;

fn cells_of_cases<'a>(benchmark: &Benchmark, run: &'a RunFolder, index: usize) -> Cells<'a> {
    let of = |value: &'a str| {
        let cases = run.plan.iter().filter(|case| split_of(benchmark, case) == value);
        (value.to_owned(), cases.filter_map(|case| answered(run, index, case, value)).collect())
    };
    splits(benchmark, run).into_iter().map(of).collect()
}

/// A run's answered probes, one by one, by what they are grouped by.
fn cells_of_probes<'a>(benchmark: &Benchmark, run: &'a RunFolder, index: usize) -> Cells<'a> {
    // A history may have a thousand probes.
    let answers: HashMap<(&str, &str), (&str, bool)> = (run.answers.iter())
        .filter_map(|row| Some(((row.case.as_str(), row.probe.as_str()), answer_of(row)?)))
        .collect();
    let mut cells: Cells<'a> = dimensions(benchmark, std::slice::from_ref(run))
        .into_iter()
        .map(|value| (value, Vec::new()))
        .collect();
    for case in &run.plan {
        let split = split_of(benchmark, case);
        for probe in &case.probes {
            let Some((answer, cut)) = answers.get(&(case.case.as_str(), probe.id.as_str())) else { continue };
            let value = dimension_of(benchmark, probe);
            if let Some((_, cell)) = cells.iter_mut().find(|(own, _)| *own == value) {
                cell.push(vec![Candidate { run: index, case, probe, answer, cut: *cut, split }]);
            }
        }
    }
    cells
}

/// The value of the label that cases are split by; `all` without it.
fn split_of<'a>(benchmark: &Benchmark, case: &'a PlannedCase) -> &'a str {
    case.labels.get(benchmark.split).map_or("all", String::as_str)
}

fn splits<'a>(benchmark: &Benchmark, run: &'a RunFolder) -> Vec<&'a str> {
    sorted_unique(run.plan.iter().map(|case| split_of(benchmark, case)))
}

fn dimensions(benchmark: &Benchmark, runs: &[RunFolder]) -> Vec<String> {
    let probes = runs.iter().flat_map(|run| &run.plan).flat_map(|case| &case.probes);
    unique(probes.map(|probe| dimension_of(benchmark, probe)))
}

/// A case's answers where all of its probes have one.
fn answered<'a>(
    run: &'a RunFolder,
    index: usize,
    case: &'a PlannedCase,
    split: &'a str,
) -> Option<Vec<Candidate<'a>>> {
    let candidate = |probe: &'a PlannedProbe| {
        let row = run.answers.iter().find(|row| row.case == case.case && row.probe == probe.id);
        let (answer, cut) = answer_of(row?)?;
        Some(Candidate { run: index, case, probe, answer, cut, split })
    };
    case.probes.iter().map(candidate).collect()
}

/// An answer, and whether the limit of new tokens cut it off; `None` of an error.
fn answer_of(row: &AnswerRow) -> Option<(&str, bool)> {
    let answer = row.answer.as_deref().filter(|_| row.error.is_none())?;
    Some((answer, row.reached_limit()))
}

fn notes(case: &PlannedCase, probe: &PlannedProbe) -> Vec<(String, String)> {
    let text = |(name, note): (&String, &serde_json::Value)| {
        let note = note.as_str().map_or_else(|| format!("{note:#}"), str::to_owned);
        (name.clone(), note)
    };
    case.judge.iter().chain(&probe.judge).map(text).collect()
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
