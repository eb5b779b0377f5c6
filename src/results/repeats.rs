//! Spread of results over repetitions: STALE's table 6 (appendix E.2).

use serde::Serialize;

use super::outcomes::Outcomes;
use crate::statistics::spread::{Spread, mean};

/// The accuracy of one kind of cases over repetitions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repeated {
    pub kind: Option<String>,
    /// By dimension that the kind has; over all kinds none.
    pub cells: Vec<RepeatedCell>,
    /// Of the repetitions' overall accuracies: in a repetition the mean of the kind's cells, or of all its probes, as the benchmark
    /// makes its overall number.
    pub overall: Spread,
}

/// The accuracy of one cell over repetitions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RepeatedCell {
    pub dimension: String,
    pub accuracy: Spread,
}

/// A row a kind and, where there are several, one over all of them. Each of `repetitions` is the same plan's outcomes under one
/// repetition.
pub fn repeats(repetitions: &[Outcomes<'_>]) -> Vec<Repeated> {
    let Some(first) = repetitions.first() else { return Vec::new() };
    // Of each repetition the counts of each cell.
    let counts: Vec<_> = repetitions.iter().map(Outcomes::counts).collect();
    let mut rows = Vec::new();
    for kind in &first.kinds {
        let own: Vec<usize> =
            (0..first.cells.len()).filter(|at| first.cells.get(*at).is_some_and(|c| c.0 == *kind)).collect();
        let mut cells = Vec::new();
        for at in &own {
            let accuracies: Vec<f64> = counts.iter().filter_map(|c| Some(c.get(*at)?.accuracy())).collect();
            let dimension = first.cells.get(*at).map(|cell| cell.1.clone());
            let spread = dimension.zip(Spread::of(&accuracies));
            cells.extend(spread.map(|(dimension, accuracy)| RepeatedCell { dimension, accuracy }));
        }
        let overall: Vec<f64> = counts
            .iter()
            .filter_map(|counts| {
                let own = || own.iter().filter_map(|at| counts.get(*at));
                if first.of_cells {
                    return mean(&own().map(|cell| cell.accuracy()).collect::<Vec<f64>>());
                }
                let expected: usize = own().map(|cell| cell.expected).sum();
                (expected > 0).then(|| own().map(|cell| cell.worth).sum::<f64>() / expected as f64)
            })
            .collect();
        rows.extend(Spread::of(&overall).map(|overall| Repeated {
            kind: Some(kind.clone()),
            cells,
            overall,
        }));
    }
    if first.kinds.len() > 1 {
        let overall: Vec<f64> =
            repetitions.iter().filter_map(|r| r.overall(r.strata.iter().flatten())).collect();
        rows.extend(Spread::of(&overall).map(|overall| Repeated { kind: None, cells: Vec::new(), overall }));
    }
    rows
}
