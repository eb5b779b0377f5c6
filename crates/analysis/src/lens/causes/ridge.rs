//! Ridge regression of effects on the question's mass by layer and head.
//!
//! Two-fold over units: each half is fitted with a cross-validated penalty and evaluated on the other, so no answer is evaluated by a fit
//! that saw its case.

use std::collections::BTreeSet;

use ndarray::{Array1, Array2, ArrayView1, Axis};

use super::halves::halves;
use super::{CausedAnswer, Causes, Predictor, UnitName};
use palimpsest_data::statistics::ridge::Ridge;

/// Candidate penalties, for features of variance 1.
const PENALTIES: [f64; 6] = [1.0, 10.0, 100.0, 1e3, 1e4, 1e5];

const FOLDS: usize = 4;

impl Causes {
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
            let Some(fit) = Fit::best(&self.answers, &folds) else { return };
            self.penalties.push(fit.penalty);
            for (at, answer) in self.answers.iter().enumerate() {
                if test.contains(&self.unit_of(answer)) {
                    judged.push((at, fit.predict(&answer.features)));
                }
            }
            tried.extend(fit.left_out);
        }
        for (at, values) in judged {
            self.answers[at].overall.insert(Predictor::Ridge, values);
        }
        for (at, values) in tried {
            self.answers[at].tried = Some(values);
        }
    }
}

struct Scaled {
    mean: Array1<f64>,
    deviation: Array1<f64>,
}

impl Scaled {
    fn by(features: &Array2<f64>) -> Option<Self> {
        let mean = features.mean_axis(Axis(0))?;
        // Avoids division by 0 for constant features.
        let deviation = features.std_axis(Axis(0), 0.0).mapv(|x| if x > 0.0 { x } else { 1.0 });
        Some(Scaled { mean, deviation })
    }

    fn of(&self, features: &Array2<f64>) -> Array2<f64> {
        (features - &self.mean) / &self.deviation
    }
}

/// A regression, and cross-validated predictions for the answers of its own half.
struct Fit {
    scaled: Scaled,
    ridge: Ridge,
    penalty: f64,
    left_out: Vec<(usize, Vec<f64>)>,
}

impl Fit {
    /// Fits with the best cross-validated penalty. `folds` pairs an answer with its fold.
    fn best(answers: &[CausedAnswer], folds: &[(usize, usize)]) -> Option<Self> {
        let of = |wanted: &dyn Fn(usize) -> bool| -> Vec<usize> {
            folds.iter().filter(|(part, _)| wanted(*part)).map(|(_, at)| *at).collect()
        };
        let mut errors = [0.0; PENALTIES.len()];
        let mut left_out: [Vec<(usize, Vec<f64>)>; PENALTIES.len()] = Default::default();
        for fold in 0..FOLDS {
            let (held, kept) = (of(&|part| part == fold), of(&|part| part != fold));
            if held.is_empty() || kept.is_empty() {
                continue;
            }
            let (x, y) = gathered(answers, &kept)?;
            let scaled = Scaled::by(&x)?;
            let x = scaled.of(&x);
            for ((penalty, error), predicted) in PENALTIES.iter().zip(&mut errors).zip(&mut left_out) {
                let ridge = Ridge::fit(&x, &y, *penalty)?;
                for &at in &held {
                    let found = predict(&ridge, &scaled, &answers[at].features);
                    let pairs = found.iter().zip(answers[at].effects());
                    *error += pairs.map(|(found, effect)| (found - effect).powi(2)).sum::<f64>();
                    predicted.push((at, found));
                }
            }
        }
        let best = (0..PENALTIES.len()).min_by(|&a, &b| errors[a].total_cmp(&errors[b]))?;
        let (x, y) = gathered(answers, &of(&|_| true))?;
        let scaled = Scaled::by(&x)?;
        let ridge = Ridge::fit(&scaled.of(&x), &y, PENALTIES[best])?;
        Some(Fit { scaled, ridge, penalty: PENALTIES[best], left_out: left_out.into_iter().nth(best)? })
    }

    fn predict(&self, features: &Array2<f64>) -> Vec<f64> {
        predict(&self.ridge, &self.scaled, features)
    }
}

fn predict(ridge: &Ridge, scaled: &Scaled, features: &Array2<f64>) -> Vec<f64> {
    scaled.of(features).outer_iter().map(|row: ArrayView1<'_, f64>| ridge.predict(row)).collect()
}

fn gathered(answers: &[CausedAnswer], of: &[usize]) -> Option<(Array2<f64>, Array1<f64>)> {
    let features: Vec<_> = of.iter().map(|&at| answers[at].features.view()).collect();
    let effects: Vec<f64> = of.iter().flat_map(|&at| answers[at].effects()).collect();
    Some((ndarray::concatenate(Axis(0), &features).ok()?, Array1::from(effects)))
}
