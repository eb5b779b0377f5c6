//! The results table of STALE, section 4.2: accuracy by conflict type and probe, overall the mean of the six.
//!
//! Denominators are the plan's, so that an error or a missing verdict counts as not correct instead of vanishing; the
//! counts beside each accuracy say how many there were. Called by the commands and the report.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{Interval, LEVEL, stratified_bootstrap, wilson};
use crate::run::plan::PlannedCase;
use crate::run::rows::{AnswerRow, VerdictRow};

/// Draws behind the interval of the overall accuracy.
pub const RESAMPLES: usize = 10_000;

/// The label that STALE groups by.
const TYPE: &str = "type";

/// The table of section 4.2.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccuracyTable {
    /// Whose verdicts it counts.
    pub judge: String,
    /// Types, sorted: the table's row groups.
    pub types: Vec<String>,
    /// Probes, in dataset order: the columns of each type.
    pub probes: Vec<String>,
    /// One a type and probe that the plan has, type by type.
    pub cells: Vec<Cell>,
    /// The mean over the cells.
    pub overall: Overall,
}

/// One type and probe.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// The conflict type, for example `T1`.
    pub kind: String,
    /// The probe, for example `SR`.
    pub probe: String,
    /// Judged correct.
    pub correct: usize,
    /// With a clean verdict.
    pub judged: usize,
    /// With a clean answer.
    pub answered: usize,
    /// In the plan: the denominator.
    pub expected: usize,
    /// `correct / expected`.
    pub accuracy: f64,
    /// Wilson's 95% interval of it.
    pub interval: Option<Interval>,
}

/// The mean of the cells' accuracies, each cell weighing the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overall {
    /// The mean; absent where the plan is empty.
    pub accuracy: Option<f64>,
    /// 95% percentile interval of a bootstrap over whole cases within each type: the probes of a case are not
    /// independent, and the types are fixed by design.
    pub interval: Option<Interval>,
    /// How many cells it is the mean of.
    pub cells: usize,
    /// Whether every type has every probe (six cells in STALE); false for filtered runs, whose mean is of what there is.
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
    judged: bool,
    answered: bool,
}

/// The table for one judge. `seed` is the bootstrap's.
pub fn accuracy_table(
    plan: &[PlannedCase],
    answers: &[AnswerRow],
    verdicts: &[VerdictRow],
    judge: &str,
    seed: u64,
) -> AccuracyTable {
    let answered: HashMap<(&str, &str), bool> = answers
        .iter()
        .map(|row| ((row.case.as_str(), row.probe.as_str()), row.error.is_none() && row.answer.is_some()))
        .collect();
    let verdict: HashMap<(&str, &str), Option<bool>> = verdicts
        .iter()
        .filter(|row| row.judge == judge)
        .map(|row| ((row.case.as_str(), row.probe.as_str()), row.correct.filter(|_| row.error.is_none())))
        .collect();

    let mut probes: Vec<String> = Vec::new();
    for probe in plan.iter().flat_map(|case| &case.probes) {
        if !probes.contains(&probe.id) {
            probes.push(probe.id.clone());
        }
    }
    let kind = |case: &PlannedCase| case.labels.get(TYPE).cloned().unwrap_or_else(|| "all".to_owned());
    // Cases by type: the strata of the bootstrap, with the types sorted.
    let mut by_type: BTreeMap<String, Vec<&PlannedCase>> = BTreeMap::new();
    for case in plan {
        by_type.entry(kind(case)).or_default().push(case);
    }
    let types: Vec<String> = by_type.keys().cloned().collect();

    let mut cells: Vec<Cell> = Vec::new();
    let mut strata: Vec<Vec<Vec<Outcome>>> = Vec::new();
    for (kind, cases) in &by_type {
        let first = cells.len();
        for probe in &probes {
            if cases.iter().any(|case| case.probes.iter().any(|p| &p.id == probe)) {
                cells.push(Cell {
                    kind: kind.clone(),
                    probe: probe.clone(),
                    correct: 0,
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
                    let cell = cells.iter().skip(first).position(|cell| cell.probe == probe.id)? + first;
                    let key = (case.case.as_str(), probe.id.as_str());
                    let verdict = verdict.get(&key).copied().flatten();
                    Some(Outcome {
                        cell,
                        correct: verdict == Some(true),
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
            cell.judged += usize::from(outcome.judged);
            cell.answered += usize::from(outcome.answered);
            cell.expected += 1;
        }
    }
    for cell in &mut cells {
        cell.accuracy = cell.correct as f64 / cell.expected.max(1) as f64;
        cell.interval = wilson(cell.correct, cell.expected, LEVEL);
    }
    let count = cells.len();
    let interval = stratified_bootstrap(&strata, |sample| mean_of_cells(sample, count), RESAMPLES, seed);
    let accuracies: Vec<f64> = cells.iter().map(|cell| cell.accuracy).collect();
    let overall = Overall {
        accuracy: mean(&accuracies),
        interval,
        cells: count,
        complete: count == types.len() * probes.len() && types.len() > 1,
        correct: cells.iter().map(|cell| cell.correct).sum(),
        judged: cells.iter().map(|cell| cell.judged).sum(),
        expected: cells.iter().map(|cell| cell.expected).sum(),
    };
    AccuracyTable { judge: judge.to_owned(), types, probes, cells, overall }
}

/// The mean of cells that each weigh the same (table 2's Overall of its six columns); absent without cells.
pub fn mean(accuracies: &[f64]) -> Option<f64> {
    (!accuracies.is_empty()).then(|| accuracies.iter().sum::<f64>() / accuracies.len() as f64)
}

fn mean_of_cells(sample: &[Vec<&Vec<Outcome>>], count: usize) -> Option<f64> {
    let mut totals = vec![(0_usize, 0_usize); count];
    for outcome in sample.iter().flatten().flat_map(|case| case.iter()) {
        if let Some((correct, expected)) = totals.get_mut(outcome.cell) {
            *correct += usize::from(outcome.correct);
            *expected += 1;
        }
    }
    // A cell that a draw misses (mixed plans) has no accuracy in it.
    let drawn: Vec<f64> =
        totals.iter().filter(|(_, expected)| *expected > 0).map(|(c, e)| *c as f64 / *e as f64).collect();
    mean(&drawn)
}
