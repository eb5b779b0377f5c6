//! Ridge regression of effects on the question's mass by layer and head.
//!
//! Two-fold over units: each half is fitted with a cross-validated penalty and evaluated on the other, so no answer is evaluated by a fit
//! that saw its case.

use std::collections::BTreeSet;

use ndarray::{Array1, Array2, Axis};

use super::halves::halves;
use super::{CausedAnswer, Causes, Predictor, UnitName};
use palimpsest_data::benchmarks::Unit;
use palimpsest_data::statistics::ridge::Ridge;

/// Candidate penalties, for features of variance 1.
const PENALTIES: [f64; 6] = [1.0, 10.0, 100.0, 1e3, 1e4, 1e5];

const FOLDS: usize = 4;

impl Causes {
    /// Answers alone, with each half's predictions for the other.
    pub(crate) fn fitted(answers: Vec<CausedAnswer>, unit: Unit, seed: u64) -> Self {
        let mut causes = Causes { answers, unit, seed, ..Causes::default() };
        causes.fit();
        causes
    }

    /// Fits all answers, and predicts those of another run. Returns the penalty too; `None` with too few units.
    pub(crate) fn predict(&self, others: &[CausedAnswer]) -> Option<(f64, Predicted)> {
        let units: BTreeSet<UnitName> = self.answers.iter().map(|answer| self.unit_of(answer)).collect();
        if units.len() < FOLDS {
            return None;
        }
        let fold = |answer: &CausedAnswer| {
            units.iter().position(|unit| *unit == self.unit_of(answer)).unwrap_or(0) % FOLDS
        };
        let all: Vec<usize> = (0..self.answers.len()).collect();
        let folds: Vec<(usize, usize)> = all.iter().map(|&at| (fold(&self.answers[at]), at)).collect();
        let (penalty, _) = best_penalty(&self.answers, &folds)?;
        let fit = Fit::of(&self.answers, &all, penalty)?;
        Some((penalty, others.iter().map(|answer| fit.predict(&answer.features)).enumerate().collect()))
    }

    /// Fits both halves and stores each one's predictions for the other.
    pub(super) fn fit(&mut self) {
        let units: BTreeSet<UnitName> = self.answers.iter().map(|answer| self.unit_of(answer)).collect();
        let Some(halves) = halves(units, self.seed) else { return };
        let [one, other] = &halves;
        let mut judged: Vec<(usize, Vec<f64>)> = Vec::new();
        let mut tried: Vec<(usize, Vec<f64>)> = Vec::new();
        for (train, test) in [(one, other), (other, one)] {
            let folds: Vec<(usize, usize)> = (self.answers.iter().enumerate())
                .filter_map(|(at, answer)| {
                    Some((train.iter().position(|unit| *unit == self.unit_of(answer))? % FOLDS, at))
                })
                .collect();
            let Some((penalty, left_out)) = best_penalty(&self.answers, &folds) else { return };
            let own: Vec<usize> = folds.iter().map(|(_, at)| *at).collect();
            let Some(fit) = Fit::of(&self.answers, &own, penalty) else { return };
            self.penalties.push(penalty);
            for (at, answer) in self.answers.iter().enumerate() {
                if test.contains(&self.unit_of(answer)) {
                    judged.push((at, fit.predict(&answer.features)));
                }
            }
            tried.extend(left_out);
        }
        for (at, values) in judged {
            self.answers[at].overall.insert(Predictor::Ridge, values);
        }
        for (at, values) in tried {
            self.answers[at].tried = Some(values);
        }
    }
}

/// A regression on features of mean 0 and variance 1.
struct Fit {
    mean: Array1<f64>,
    deviation: Array1<f64>,
    ridge: Ridge,
}

impl Fit {
    fn of(answers: &[CausedAnswer], of: &[usize], penalty: f64) -> Option<Self> {
        let features: Vec<_> = of.iter().map(|&at| answers[at].features.view()).collect();
        let x = ndarray::concatenate(Axis(0), &features).ok()?;
        let y: Array1<f64> = of.iter().flat_map(|&at| answers[at].effects()).collect();
        let mean = x.mean_axis(Axis(0))?;
        // Avoids division by 0 for constant features.
        let deviation = x.std_axis(Axis(0), 0.0).mapv(|x| if x > 0.0 { x } else { 1.0 });
        let ridge = Ridge::fit(&((x - &mean) / &deviation), &y, penalty)?;
        Some(Fit { mean, deviation, ridge })
    }

    fn predict(&self, features: &Array2<f64>) -> Vec<f64> {
        let scaled = (features - &self.mean) / &self.deviation;
        scaled.outer_iter().map(|row| self.ridge.predict(row)).collect()
    }
}

/// Predictions by the index of their answer.
pub(crate) type Predicted = Vec<(usize, Vec<f64>)>;

/// The best cross-validated penalty, and its predictions for the answers left out. `folds` pairs a fold with an answer.
fn best_penalty(answers: &[CausedAnswer], folds: &[(usize, usize)]) -> Option<(f64, Predicted)> {
    let mut best: Option<(f64, f64, Predicted)> = None;
    for penalty in PENALTIES {
        let (mut error, mut left_out) = (0.0, Vec::new());
        for fold in 0..FOLDS {
            let (held, kept): (Vec<_>, Vec<_>) = folds.iter().partition(|(part, _)| *part == fold);
            if held.is_empty() || kept.is_empty() {
                continue;
            }
            let kept: Vec<usize> = kept.into_iter().map(|(_, at)| at).collect();
            let fit = Fit::of(answers, &kept, penalty)?;
            for (_, at) in held {
                let found = fit.predict(&answers[at].features);
                let pairs = found.iter().zip(answers[at].effects());
                error += pairs.map(|(found, effect)| (found - effect).powi(2)).sum::<f64>();
                left_out.push((at, found));
            }
        }
        if best.as_ref().is_none_or(|(_, least, _)| error.total_cmp(least).is_lt()) {
            best = Some((penalty, error, left_out));
        }
    }
    best.map(|(penalty, _, left_out)| (penalty, left_out))
}
