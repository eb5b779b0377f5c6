//! The table of results: accuracy by the label that a benchmark is split by and by what its probes are grouped by.
//!
//! An answer is worth 1 or 0 where it is right or wrong, its share of the best score where it has one.
//! Denominators are the plan's, so that an error or a missing verdict counts as not correct instead of vanishing; the
//! counts beside each accuracy say how many there were. Called by the commands and the report.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{Interval, LEVEL, stratified_bootstrap, wilson};
use crate::benchmarks::{Benchmark, Overall as Weighing, VerdictKind};
use crate::run::plan::{PlannedCase, dimension_of};
use crate::run::rows::{AnswerRow, VerdictRow};

/// Draws behind the interval of the overall accuracy.
pub const RESAMPLES: usize = 10_000;

/// The table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccuracyTable {
    /// Whose verdicts it counts.
    pub judge: String,
    /// What its rows are called.
    pub split: &'static str,
    /// The label's values, sorted: the rows.
    pub kinds: Vec<String>,
    /// What probes are grouped by, in dataset order: the columns.
    pub dimensions: Vec<String>,
    /// One a row and column that the plan has, row by row.
    pub cells: Vec<Cell>,
    /// The best score, where answers are scored.
    pub most: Option<u32>,
    /// The number above all cells.
    pub overall: Overall,
}

/// One row and column.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// The row.
    pub kind: String,
    /// The column.
    pub dimension: String,
    /// Judged correct.
    pub correct: usize,
    /// What all answers are worth together; as many as are correct, unless they are scored.
    pub worth: f64,
    /// With a clean verdict.
    pub judged: usize,
    /// With a clean answer.
    pub answered: usize,
    /// In the plan: the denominator.
    pub expected: usize,
    /// `worth / expected`.
    pub accuracy: f64,
    /// Its 95% interval: Wilson's, or of scores a bootstrap's over cases.
    pub interval: Option<Interval>,
}

/// The mean of the cells' accuracies, each cell weighing the same, or the mean over all probes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overall {
    /// The mean; absent where the plan is empty.
    pub accuracy: Option<f64>,
    /// 95% percentile interval of a bootstrap over whole cases within each row: the probes of a case are not
    /// independent, and the rows are fixed by design.
    pub interval: Option<Interval>,
    /// How many cells there are.
    pub cells: usize,
    /// Whether it is the mean of the cells, or else of all probes.
    pub of_cells: bool,
    /// Whether every row has every column; false for filtered runs, whose mean is of what there is.
    pub complete: bool,
    /// Judged correct, over all cells.
    pub correct: usize,
    /// With a clean verdict.
    pub judged: usize,
    /// In the plan.
    pub expected: usize,
}

/// What is known of one probe of one case.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    cell: usize,
    correct: bool,
    worth: f64,
    judged: bool,
    answered: bool,
}

/// The table of the verdicts of one judge by one rubric. `seed` is the bootstrap's.
pub fn accuracy_table<'a>(
    benchmark: &dyn Benchmark,
    plan: &[PlannedCase],
    answers: &[AnswerRow],
    verdicts: impl IntoIterator<Item = &'a VerdictRow>,
    judge: &str,
    seed: u64,
) -> AccuracyTable {
    let most = match benchmark.rubric().verdict {
        VerdictKind::Score { most } => Some(most),
        VerdictKind::Correct | VerdictKind::Choice { .. } => None,
    };
    let answered: HashMap<(&str, &str), bool> = answers
        .iter()
        .map(|row| ((row.case.as_str(), row.probe.as_str()), row.error.is_none() && row.answer.is_some()))
        .collect();
    let verdict: HashMap<(&str, &str), Option<f64>> = verdicts
        .into_iter()
        .filter(|row| row.judge == judge)
        .map(|row| ((row.case.as_str(), row.probe.as_str()), row.worth(most.unwrap_or(1))))
        .collect();

    // A broken row whose split cannot be read belongs to no cell, and to no mean of cells.
    let of_cells = benchmark.overall() == Weighing::Cells;
    let plan: Vec<&PlannedCase> = (plan.iter())
        .filter(|case| !of_cells || case.broken.is_none() || case.labels.contains_key(benchmark.split()))
        .collect();
    let mut dimensions: Vec<String> = Vec::new();
    for probe in plan.iter().flat_map(|case| &case.probes) {
        let dimension = dimension_of(benchmark, probe);
        if !dimensions.contains(&dimension) {
            dimensions.push(dimension);
        }
    }
    let split = benchmark.split();
    let kind = |case: &PlannedCase| {
        let unknown = if case.broken.is_some() { "unreadable" } else { "all" };
        case.labels.get(split).cloned().unwrap_or_else(|| unknown.to_owned())
    };
    // Cases by row: the strata of the bootstrap, sorted.
    let mut by_kind: BTreeMap<String, Vec<&PlannedCase>> = BTreeMap::new();
    for case in plan {
        by_kind.entry(kind(case)).or_default().push(case);
    }
    let kinds: Vec<String> = by_kind.keys().cloned().collect();

    let mut cells: Vec<Cell> = Vec::new();
    let mut strata: Vec<Vec<Vec<Outcome>>> = Vec::new();
    for (kind, cases) in &by_kind {
        let first = cells.len();
        for dimension in &dimensions {
            if cases.iter().flat_map(|c| &c.probes).any(|p| dimension_of(benchmark, p) == *dimension) {
                cells.push(Cell {
                    kind: kind.clone(),
                    dimension: dimension.clone(),
                    correct: 0,
                    worth: 0.0,
                    judged: 0,
                    answered: 0,
                    expected: 0,
                    accuracy: 0.0,
                    interval: None,
                });
            }
        }
        let mut units = Vec::with_capacity(cases.len());
        for case in cases {
            let outcomes: Vec<Outcome> = case
                .probes
                .iter()
                .filter_map(|probe| {
                    let cell = {
                        let dimension = dimension_of(benchmark, probe);
                        cells.iter().skip(first).position(|cell| cell.dimension == dimension)? + first
                    };
                    let key = (case.case.as_str(), probe.id.as_str());
                    let verdict = verdict.get(&key).copied().flatten();
                    Some(Outcome {
                        cell,
                        correct: verdict == Some(1.0),
                        worth: verdict.unwrap_or(0.0),
                        judged: verdict.is_some(),
                        answered: answered.get(&key).copied().unwrap_or(false),
                    })
                })
                .collect();
            units.push(outcomes);
        }
        strata.push(units);
    }
    for outcome in strata.iter().flatten().flatten() {
        if let Some(cell) = cells.get_mut(outcome.cell) {
            cell.correct += usize::from(outcome.correct);
            cell.worth += outcome.worth;
            cell.judged += usize::from(outcome.judged);
            cell.answered += usize::from(outcome.answered);
            cell.expected += 1;
        }
    }
    for (at, cell) in cells.iter_mut().enumerate() {
        cell.accuracy = cell.worth / cell.expected.max(1) as f64;
        cell.interval = match most {
            None => wilson(cell.correct, cell.expected, LEVEL),
            Some(_) => {
                let of_cell = |case: &Vec<Outcome>| case.iter().filter(|o| o.cell == at).copied().collect();
                let cases: Vec<Vec<Outcome>> = strata.iter().flatten().map(of_cell).collect();
                let cases = vec![cases.into_iter().filter(|case| !case.is_empty()).collect::<Vec<_>>()];
                let several = cases.iter().all(|cases| cases.len() > 1);
                several.then(|| stratified_bootstrap(&cases, mean_of_probes, RESAMPLES, seed)).flatten()
            }
        };
    }
    let count = cells.len();
    let statistic = |sample: &[Vec<&Vec<Outcome>>]| match of_cells {
        true => mean_of_cells(sample, count),
        false => mean_of_probes(sample),
    };
    let interval = stratified_bootstrap(&strata, statistic, RESAMPLES, seed);
    let accuracies: Vec<f64> = cells.iter().map(|cell| cell.accuracy).collect();
    let expected: usize = cells.iter().map(|cell| cell.expected).sum();
    let of_probes = || cells.iter().map(|cell| cell.worth).sum::<f64>() / expected as f64;
    let overall = Overall {
        accuracy: if of_cells { mean(&accuracies) } else { (expected > 0).then(of_probes) },
        interval,
        cells: count,
        of_cells,
        complete: count == kinds.len() * dimensions.len() && kinds.len() > 1,
        correct: cells.iter().map(|cell| cell.correct).sum(),
        judged: cells.iter().map(|cell| cell.judged).sum(),
        expected,
    };
    AccuracyTable { judge: judge.to_owned(), split, kinds, dimensions, cells, most, overall }
}

/// The mean of cells that each weigh the same (table 2's Overall of its six columns); absent without cells.
pub fn mean(accuracies: &[f64]) -> Option<f64> {
    (!accuracies.is_empty()).then(|| accuracies.iter().sum::<f64>() / accuracies.len() as f64)
}

fn mean_of_cells(sample: &[Vec<&Vec<Outcome>>], count: usize) -> Option<f64> {
    let mut totals = vec![(0.0, 0_usize); count];
    for outcome in sample.iter().flatten().flat_map(|case| case.iter()) {
        if let Some((worth, expected)) = totals.get_mut(outcome.cell) {
            *worth += outcome.worth;
            *expected += 1;
        }
    }
    // A cell that a draw misses (mixed plans) has no accuracy in it.
    let drawn: Vec<f64> =
        totals.iter().filter(|(_, expected)| *expected > 0).map(|(worth, e)| worth / *e as f64).collect();
    mean(&drawn)
}

fn mean_of_probes(sample: &[Vec<&Vec<Outcome>>]) -> Option<f64> {
    let all = || sample.iter().flatten().flat_map(|case| case.iter());
    let count = all().count();
    (count > 0).then(|| all().map(|outcome| outcome.worth).sum::<f64>() / count as f64)
}
