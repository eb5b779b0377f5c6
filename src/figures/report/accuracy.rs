//! The table of STALE, section 4.2: accuracy by type and probe, and overall the mean of the cells.
//!
//! Denominators are what the run was expected to answer: an answer that is missing, failed or was not judged counts as
//! not correct, and the table says how many there are.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, Normal};

use crate::lens::{Resampling, RunFolder, Verdicts};

/// Accuracy by type and probe.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Accuracy {
    /// The probes, in the order of the columns.
    pub probes: Vec<String>,
    /// One a type.
    pub rows: Vec<Row>,
    /// The mean of the cells, each weighing the same.
    pub overall: Option<f64>,
    /// 95% bootstrap interval of `overall`, resampled over the cases of each type.
    pub overall_interval: Option<(f64, f64)>,
    /// How many cells `overall` is the mean of.
    pub cells: usize,
}

/// The cells of one type.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The type, or `all` for data without types.
    pub kind: String,
    /// In the order of the probes; `None` where nothing was expected.
    pub cells: Vec<Option<Cell>>,
}

/// Answers of one type to one probe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cell {
    /// Judged correct.
    pub correct: usize,
    /// Expected by the run.
    pub expected: usize,
    /// Expected, but without a verdict.
    pub unjudged: usize,
    /// `correct / expected`.
    pub accuracy: f64,
    /// 95% Wilson interval.
    pub low: f64,
    /// 95% Wilson interval.
    pub high: f64,
}

const RESAMPLES: usize = 2000;

/// The table of a run by one judge's verdicts; `None` where there are no verdicts.
pub fn table(run: &RunFolder, verdicts: &Verdicts) -> Option<Accuracy> {
    verdicts.judge.as_ref()?;
    let probes = run.probes();
    let kinds = run.kinds();
    let kinds: Vec<Option<String>> =
        if kinds.is_empty() { vec![None] } else { kinds.into_iter().map(Some).collect() };
    let (mut rows, mut resampled) = (Vec::new(), vec![0.0; RESAMPLES]);
    let mut means = Vec::new();
    for (seed, kind) in kinds.iter().enumerate() {
        let cases: Vec<_> =
            run.cases.iter().filter(|c| kind.is_none() || c.labels.get("type") == kind.as_ref()).collect();
        let draws = Resampling::new(cases.len(), RESAMPLES, seed as u64);
        let mut cells = Vec::new();
        for probe in &probes {
            // (cases, 1): 1 correct, 0 not, NaN not expected
            let outcome = ndarray::Array2::from_shape_fn((cases.len(), 1), |(at, _)| {
                let asked = cases[at].probes.iter().any(|p| p.id == *probe);
                let correct = verdicts.correct(&cases[at].case, probe) == Some(true);
                if asked { f64::from(u8::from(correct)) } else { f64::NAN }
            });
            let expected = outcome.iter().filter(|o| !o.is_nan()).count();
            if expected == 0 {
                cells.push(None);
                continue;
            }
            let correct = outcome.iter().filter(|o| **o == 1.0).count();
            let asked = cases.iter().filter(|c| c.probes.iter().any(|p| p.id == *probe));
            let unjudged = asked.filter(|c| verdicts.correct(&c.case, probe).is_none()).count();
            let accuracy = correct as f64 / expected as f64;
            let (low, high) = wilson(correct, expected);
            cells.push(Some(Cell { correct, expected, unjudged, accuracy, low, high }));
            means.push(accuracy);
            for (sum, draw) in resampled.iter_mut().zip(draws.resampled(&outcome).iter()) {
                *sum += draw;
            }
        }
        rows.push(Row { kind: kind.clone().unwrap_or_else(|| "all".to_owned()), cells });
    }
    let count = means.len();
    let overall = (count > 0).then(|| means.iter().sum::<f64>() / count as f64);
    let overall_interval =
        crate::lens::band::interval(resampled.into_iter().map(|sum| sum / count as f64).collect())
            .filter(|_| run.cases.len() > 1);
    Some(Accuracy { probes, rows, overall, overall_interval, cells: count })
}

/// The 95% score interval of a proportion (Wilson), which stays within 0 and 1 and does not vanish at either end.
fn wilson(successes: usize, trials: usize) -> (f64, f64) {
    let z = Normal::standard().inverse_cdf(0.975);
    let (n, p) = (trials as f64, successes as f64 / trials as f64);
    let centre = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    ((centre - half).max(0.0), (centre + half).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_intervals_match_published_values() {
        // 0 of 10 and 8 of 10
        let (low, high) = wilson(0, 10);
        assert!(low.abs() < 1e-12 && (high - 0.2775).abs() < 1e-4, "{low} {high}");
        let (low, high) = wilson(8, 10);
        assert!((low - 0.4902).abs() < 1e-4 && (high - 0.9433).abs() < 1e-4, "{low} {high}");
    }
}
