//! Accuracy by split value and probe dimension, and its spread over repetitions (STALE's table 6, appendix E.2). Counts as in [`Outcomes`].

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
    pub kinds: Vec<String>,
    pub dimensions: Vec<String>,
    pub cells: Vec<Cell>,
    pub most: Option<u32>,
    /// Independent units: `cases` or `questions`.
    pub units: &'static str,
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
    pub accuracy: f64,
    /// 95% interval over units; Wilson's for single right/wrong answers.
    pub interval: Option<Interval>,
}

/// Mean of the cells' accuracies (equal weights), or the mean over all probes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Overall {
    /// `None` for an empty plan.
    pub accuracy: Option<f64>,
    /// 95% interval over units, stratified by row. `None` if no row has two units.
    pub interval: Option<Interval>,
    /// Number of cells; a mean of cells excludes broken rows without a readable split.
    pub cells: usize,
    /// True for the mean of cells, false for the mean over probes.
    pub of_cells: bool,
    /// True if every row has every column; filtered runs may lack some.
    pub complete: bool,
    pub correct: usize,
    pub judged: usize,
    /// Planned probes, broken rows included.
    pub expected: usize,
    #[serde(skip)]
    pub counts: Counts,
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
        // Unreadable rows form a cell that the mean of cells excludes.
        let apart = cells.iter().filter(|cell| of_cells && cell.kind == UNREADABLE).count();
        let kinds = outcomes.kinds.len() - usize::from(apart > 0);
        let overall = Overall {
            accuracy: outcomes.overall(outcomes.all()),
            interval: interval(&strata, of_cells, WORTH, how),
            cells: cells.len() - apart,
            of_cells,
            complete: cells.len() - apart == kinds * outcomes.dimensions.len() && kinds > 1,
            correct: total.correct,
            judged: total.judged,
            expected: total.expected,
            counts: total,
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

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repeated {
    /// `None` for all kinds.
    pub kind: Option<String>,
    pub cells: Vec<RepeatedCell>,
    /// Spread of the overall accuracies: mean of cells or of probes, as the benchmark defines it.
    pub overall: Spread,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RepeatedCell {
    pub dimension: String,
    pub accuracy: Spread,
}

/// One row per kind, plus a total if there are several. `repetitions` are outcomes of the same plan.
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
        let overall: Vec<f64> = repetitions.iter().filter_map(|r| r.overall(r.all())).collect();
        rows.extend(Spread::of(&overall).map(|overall| Repeated { kind: None, cells: Vec::new(), overall }));
    }
    rows
}
