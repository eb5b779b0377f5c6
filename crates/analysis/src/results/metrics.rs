//! The table of results: accuracy by the label that a benchmark is split by and by what its probes are grouped by; and the spread of
//! accuracies over repetitions (STALE's table 6, appendix E.2). It counts as [`Outcomes`] says.

use serde::Serialize;

use super::intervals::{Worths, interval};
use super::outcomes::{CaseOutcomes, Counts, Outcome, Outcomes, UNREADABLE};
use palimpsest_data::statistics::Interval;
use palimpsest_data::statistics::bounded::Intervals;
use palimpsest_data::statistics::spread::{Spread, mean};

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Overall {
    /// Absent where the plan is empty.
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
    pub fn of(outcomes: &Outcomes<'_>, judge: &str) -> Self {
        let (how, of_cells) = (outcomes.intervals, outcomes.of_cells());
        let cell = |(at, ((kind, dimension), counts)): (usize, (&(String, String), Counts))| Cell {
            kind: kind.clone(),
            dimension: dimension.clone(),
            counts,
            accuracy: counts.accuracy(),
            interval: interval(
                &[worths(outcomes.strata.iter().flatten(), |o| o.cell == at)],
                false,
                WORTH,
                how,
            ),
        };
        let cells: Vec<Cell> = outcomes.cells.iter().zip(outcomes.counts()).enumerate().map(cell).collect();
        let strata: Vec<Vec<Worths>> =
            outcomes.strata.iter().map(|cases| worths(cases.iter(), |o| outcomes.weighs(o))).collect();
        let total = outcomes.total();
        // Unreadable rows are a cell that the mean of cells leaves out.
        let apart = cells.iter().filter(|cell| of_cells && cell.kind == UNREADABLE).count();
        let kinds = outcomes.kinds.len() - usize::from(apart > 0);
        let overall = Overall {
            accuracy: outcomes.overall(outcomes.strata.iter().flatten()),
            interval: interval(&strata, of_cells, WORTH, how),
            cells: cells.len() - apart,
            of_cells,
            complete: cells.len() - apart == kinds * outcomes.dimensions.len() && kinds > 1,
            correct: total.correct,
            judged: total.judged,
            expected: total.expected,
        };
        AccuracyTable {
            judge: judge.to_owned(),
            split: outcomes.benchmark.split,
            kinds: outcomes.kinds.clone(),
            dimensions: outcomes.dimensions.clone(),
            cells,
            most: outcomes.most,
            units: outcomes.benchmark.unit.many(),
            strata: outcomes.benchmark.strata,
            intervals: how,
            overall,
        }
    }
}

/// The bounds of a worth.
const WORTH: (f64, f64) = (0.0, 1.0);

fn worths<'s, 'a: 's>(
    cases: impl Iterator<Item = &'s CaseOutcomes<'a>>,
    meant: impl Fn(&Outcome<'_>) -> bool,
) -> Vec<Worths> {
    let of_case = |case: &CaseOutcomes<'_>| -> Worths {
        case.probes.iter().filter(|outcome| meant(outcome)).map(|o| (o.cell, o.worth)).collect()
    };
    cases.map(of_case).filter(|probes| !probes.is_empty()).collect()
}

/// The accuracy of one kind of cases over repetitions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repeated {
    /// Absent over all kinds.
    pub kind: Option<String>,
    /// By dimension that the kind has; over all kinds none.
    pub cells: Vec<RepeatedCell>,
    /// Of the repetitions' overall accuracies: in a repetition the mean of the kind's cells, or of all its probes, as the benchmark
    /// makes its overall number.
    pub overall: Spread,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RepeatedCell {
    pub dimension: String,
    pub accuracy: Spread,
}

/// A row a kind and, where there are several, one over all of them. Each of `repetitions` is the same plan's outcomes under one
/// repetition.
pub fn repeats(repetitions: &[Outcomes<'_>]) -> Vec<Repeated> {
    let Some(first) = repetitions.first() else { return Vec::new() };
    let counts: Vec<Vec<Counts>> = repetitions.iter().map(Outcomes::counts).collect();
    let mut rows = Vec::new();
    for kind in &first.kinds {
        let own: Vec<usize> = (0..first.cells.len()).filter(|at| first.cells[*at].0 == *kind).collect();
        let cell = |at: &usize| {
            let accuracies: Vec<f64> = counts.iter().map(|counts| counts[*at].accuracy()).collect();
            let (dimension, accuracy) = (first.cells[*at].1.clone(), Spread::of(&accuracies)?);
            Some(RepeatedCell { dimension, accuracy })
        };
        let of_repetition = |counts: &Vec<Counts>| {
            let own = || own.iter().map(|at| counts[*at]);
            if first.of_cells() {
                return mean(&own().map(|cell| cell.accuracy()).collect::<Vec<f64>>());
            }
            let expected: usize = own().map(|cell| cell.expected).sum();
            (expected > 0).then(|| own().map(|cell| cell.worth).sum::<f64>() / expected as f64)
        };
        let overall = Spread::of(&counts.iter().filter_map(of_repetition).collect::<Vec<f64>>());
        let cells = own.iter().filter_map(cell).collect();
        rows.extend(overall.map(|overall| Repeated { kind: Some(kind.clone()), cells, overall }));
    }
    if first.kinds.len() > 1 {
        let overall: Vec<f64> =
            repetitions.iter().filter_map(|r| r.overall(r.strata.iter().flatten())).collect();
        rows.extend(Spread::of(&overall).map(|overall| Repeated { kind: None, cells: Vec::new(), overall }));
    }
    rows
}
