//! The table of results: accuracy by the label that a benchmark is split by and by what its probes are grouped by.
//!
//! It counts as [`Outcomes`] says, and the counts beside each accuracy say how many there were. Called by the commands and
//! the report.

use serde::Serialize;

use super::outcomes::{CaseOutcomes, Counts, Outcomes, mean_worth};
use crate::benchmarks::Benchmark;
use crate::run::plan::PlannedCase;
use crate::run::rows::{AnswerRow, VerdictRow};
use crate::statistics::{Interval, LEVEL, stratified_bootstrap, wilson};

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
    /// What bootstraps draw: `cases` or `questions`.
    pub units: &'static str,
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
    /// Not asked yet: the run is not finished.
    pub missing: usize,
    /// In the plan: the denominator.
    pub expected: usize,
    /// `worth / expected`.
    pub accuracy: f64,
    /// Its 95% interval: Wilson's, or of scores a bootstrap's over units.
    pub interval: Option<Interval>,
}

/// The mean of the cells' accuracies, each cell weighing the same, or the mean over all probes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overall {
    /// The mean; absent where the plan is empty.
    pub accuracy: Option<f64>,
    /// 95% percentile interval of a bootstrap over the benchmark's units within each row, which are fixed by design. Where cases
    /// are units, whole cases are drawn: their probes are not independent.
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

/// The table of the verdicts of one judge by one rubric. `seed` is the bootstrap's.
pub fn accuracy_table<'a>(
    benchmark: &dyn Benchmark,
    plan: &[PlannedCase],
    answers: &[AnswerRow],
    verdicts: impl IntoIterator<Item = &'a VerdictRow>,
    judge: &str,
    seed: u64,
) -> AccuracyTable {
    AccuracyTable::of(&Outcomes::of(benchmark, plan, answers, verdicts, judge), judge, seed)
}

impl AccuracyTable {
    /// The table of `outcomes`. `seed` is the bootstrap's.
    pub fn of(outcomes: &Outcomes<'_>, judge: &str, seed: u64) -> Self {
        let counts = outcomes.counts();
        let cell = |(at, ((kind, dimension), counts)): (usize, (&(String, String), Counts))| {
            let Counts { correct, worth, judged, answered, missing, expected } = counts;
            Cell {
                kind: kind.clone(),
                dimension: dimension.clone(),
                correct,
                worth,
                judged,
                answered,
                missing,
                expected,
                accuracy: counts.accuracy(),
                interval: match outcomes.most {
                    None => wilson(correct, expected, LEVEL),
                    Some(_) => interval_of_scores(outcomes, at, seed),
                },
            }
        };
        let cells: Vec<Cell> = outcomes.cells.iter().zip(counts).enumerate().map(cell).collect();
        let of_draw = |sample: &[Vec<&CaseOutcomes<'_>>]| outcomes.overall(sample.iter().flatten().copied());
        let total = outcomes.total();
        let overall = Overall {
            accuracy: outcomes.overall(outcomes.strata.iter().flatten()),
            // Of one unit in each stratum every draw is the same.
            interval: (outcomes.strata.iter().any(|cases| cases.len() > 1))
                .then(|| stratified_bootstrap(&outcomes.strata, of_draw, RESAMPLES, seed))
                .flatten(),
            cells: cells.len(),
            of_cells: outcomes.of_cells,
            complete: cells.len() == outcomes.kinds.len() * outcomes.dimensions.len()
                && outcomes.kinds.len() > 1,
            correct: total.correct,
            judged: total.judged,
            expected: total.expected,
        };
        AccuracyTable {
            judge: judge.to_owned(),
            split: outcomes.split,
            kinds: outcomes.kinds.clone(),
            dimensions: outcomes.dimensions.clone(),
            cells,
            most: outcomes.most,
            units: outcomes.unit.many(),
            overall,
        }
    }
}

/// The bootstrap's interval of the mean score of one cell, over the units that have a probe in it; absent for a single one.
fn interval_of_scores(outcomes: &Outcomes<'_>, cell: usize, seed: u64) -> Option<Interval> {
    let in_cell = |case: &CaseOutcomes<'_>| case.probes.iter().any(|outcome| outcome.cell == cell);
    let cases: Vec<&CaseOutcomes<'_>> =
        outcomes.strata.iter().flatten().filter(|case| in_cell(case)).collect();
    let of_draw = |sample: &[Vec<&&CaseOutcomes<'_>>]| {
        let drawn = sample.iter().flatten().flat_map(|case| &case.probes);
        mean_worth(drawn.filter(|outcome| outcome.cell == cell))
    };
    (cases.len() > 1).then(|| stratified_bootstrap(&[cases], of_draw, RESAMPLES, seed)).flatten()
}
