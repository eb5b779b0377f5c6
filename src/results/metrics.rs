//! The table of results: accuracy by the label that a benchmark is split by and by what its probes are grouped by.
//!
//! It counts as [`Outcomes`] says, and the counts beside each accuracy say how many there were. Called by the commands and
//! the report.

use serde::Serialize;

use super::intervals::{Worths, of_worths};
use super::outcomes::{CaseOutcomes, Counts, Outcome, Outcomes, UNREADABLE};
use crate::statistics::Interval;
use crate::statistics::bounded::Intervals;

/// The table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccuracyTable {
    pub judge: String,
    pub split: &'static str,
    /// The label's values, sorted: the rows.
    pub kinds: Vec<String>,
    /// Dimensions of probes in dataset order: the columns.
    pub dimensions: Vec<String>,
    /// One a row and column that the plan has, row by row.
    pub cells: Vec<Cell>,
    /// The best score, where answers are scored.
    pub most: Option<u32>,
    /// Independent units: `cases` or `questions`.
    pub units: &'static str,
    /// The property of units that intervals hold fixed beside their kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strata: Option<&'static str>,
    pub intervals: Intervals,
    pub overall: Overall,
}

/// One row and column.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    pub kind: String,
    pub dimension: String,
    #[serde(flatten)]
    pub counts: Counts,
    /// `worth / expected`.
    pub accuracy: f64,
    /// Its 95% interval over units: Wilson's of single answers that are right or wrong.
    pub interval: Option<Interval>,
}

/// The mean of the cells' accuracies, each cell weighing the same, or the mean over all probes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Overall {
    /// The mean; absent where the plan is empty.
    pub accuracy: Option<f64>,
    /// Its 95% interval over the benchmark's units within each row, which are fixed by design. Where cases are units, each counts
    /// as one: their probes are not independent. Absent where no row has two.
    pub interval: Option<Interval>,
    /// Number of cells; those of broken rows whose split cannot be read are not among them where it is their mean.
    pub cells: usize,
    /// True if it is the mean of the cells, or else of all probes.
    pub of_cells: bool,
    /// True if every row has every column; false for filtered runs, whose mean is of what there is.
    pub complete: bool,
    pub correct: usize,
    pub judged: usize,
    /// In the plan, broken rows among them.
    pub expected: usize,
}

impl AccuracyTable {
    /// The table of `outcomes`.
    pub fn of(outcomes: &Outcomes<'_>, judge: &str) -> Self {
        let (counts, how) = (outcomes.counts(), outcomes.intervals);
        let cell = |(at, ((kind, dimension), counts)): (usize, (&(String, String), Counts))| Cell {
            kind: kind.clone(),
            dimension: dimension.clone(),
            counts,
            accuracy: counts.accuracy(),
            interval: of_worths(&[worths(outcomes.strata.iter().flatten(), |o| o.cell == at)], false, how),
        };
        let cells: Vec<Cell> = outcomes.cells.iter().zip(counts).enumerate().map(cell).collect();
        let strata: Vec<Vec<Worths>> =
            outcomes.strata.iter().map(|cases| worths(cases.iter(), |o| outcomes.weighs(o))).collect();
        let total = outcomes.total();
        // Unreadable rows are a cell that the mean of cells leaves out.
        let apart =
            if outcomes.of_cells { cells.iter().filter(|cell| cell.kind == UNREADABLE).count() } else { 0 };
        let kinds = outcomes.kinds.len() - usize::from(apart > 0);
        let overall = Overall {
            accuracy: outcomes.overall(outcomes.strata.iter().flatten()),
            interval: of_worths(&strata, outcomes.of_cells, how),
            cells: cells.len() - apart,
            of_cells: outcomes.of_cells,
            complete: cells.len() - apart == kinds * outcomes.dimensions.len() && kinds > 1,
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
            strata: outcomes.strata_of,
            intervals: how,
            overall,
        }
    }
}

fn worths<'s, 'a: 's>(
    cases: impl Iterator<Item = &'s CaseOutcomes<'a>>,
    meant: impl Fn(&Outcome<'_>) -> bool,
) -> Vec<Worths> {
    let of_case = |case: &CaseOutcomes<'_>| -> Worths {
        case.probes.iter().filter(|outcome| meant(outcome)).map(|o| (o.cell, o.worth)).collect()
    };
    cases.map(of_case).filter(|probes| !probes.is_empty()).collect()
}
