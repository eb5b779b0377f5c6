//! Rank correlation of each predictor with the sessions' effects.

use std::collections::BTreeSet;

use super::halves::{HeldOut, choose, halves};
use super::{CausedAnswer, Causes, Predictor, estimate};
use crate::lens::Series;
use crate::lens::band::{Estimate, Numbers};
use palimpsest_data::statistics::rank::spearman;

/// Top k within which the evidence counts as found.
pub const TOP: usize = 3;

impl Causes {
    pub fn rank_by_layer(&self, predictor: Predictor) -> Series {
        let of_answer = |answer: &CausedAnswer| {
            let values = answer.by_layer.get(&predictor)?;
            let effects = answer.effects();
            let of_layer = |layer: &[f64]| spearman(layer, &effects).unwrap_or(f64::NAN);
            Some(values.outer_iter().map(|layer| of_layer(&layer.to_vec())).collect())
        };
        let rows: Vec<Vec<f64>> = self.by_unit(of_answer, self.layers.len()).into_values().collect();
        self.series(predictor.key(), &rows, Numbers::Correlation)
    }

    pub fn rank(&self, predictor: Predictor) -> Option<Estimate> {
        self.one(Numbers::Correlation, |answer| spearman(answer.overall.get(&predictor)?, &answer.effects()))
    }

    /// Measure with the largest rank correlation, chosen on one half and measured on the other, both ways. Excludes interventions; ridge is
    /// tried by fits within the choosing half. `None` with too few units or a single measure.
    pub fn best_measure(&self) -> Option<HeldOut<Predictor>> {
        let measures: Vec<Predictor> = self.predictors().into_iter().filter(|one| one.is_measure()).collect();
        if measures.len() < 2 {
            return None;
        }
        let ranks = |answer: &CausedAnswer, tried: bool| -> Vec<f64> {
            let effects = answer.effects();
            let values = |one: &Predictor| match one {
                Predictor::Ridge if tried => answer.tried.as_ref(),
                one => answer.overall.get(one),
            };
            let rank = |one| values(one).and_then(|values| spearman(values, &effects)).unwrap_or(f64::NAN);
            measures.iter().map(rank).collect()
        };
        let by_unit = |tried| self.by_unit(|answer| Some(ranks(answer, tried)), measures.len());
        let units: BTreeSet<_> = self.answers.iter().map(|answer| self.unit_of(answer)).collect();
        let halves = halves(units, self.seed)?;
        let (chosen, values) = choose(&halves, &by_unit(true), &by_unit(false))?;
        let estimate = estimate(&values, Numbers::Correlation)?;
        Some(HeldOut { chosen: chosen.map(|at| measures[at]), estimate })
    }

    /// Share of a role's sessions among the [`TOP`] by predictor. Tied sessions share the remaining places, as in random order.
    pub fn found(&self, predictor: Predictor, role: &str) -> Option<Estimate> {
        self.one(Numbers::Found, |answer| {
            let effects = answer.effects();
            let values = match predictor {
                Predictor::Effect => &effects,
                other => answer.overall.get(&other)?,
            };
            let playing = answer.playing(role);
            let found: f64 = playing.iter().map(|&at| chance_of_place(values, at)).sum();
            (!playing.is_empty()).then(|| found / playing.len() as f64)
        })
    }

    pub fn chance(&self, role: &str) -> Option<f64> {
        let of_answer = |answer: &CausedAnswer| {
            let sessions = answer.sessions.len();
            (!answer.playing(role).is_empty()).then(|| TOP.min(sessions) as f64 / sessions as f64)
        };
        self.one(Numbers::Found, of_answer)?.value
    }
}

/// Probability that a value is among the [`TOP`] largest with ties in random order; 0 for NaN.
fn chance_of_place(values: &[f64], at: usize) -> f64 {
    let own = values[at];
    let above = values.iter().filter(|value| **value > own).count();
    // 0.0 and -0.0 are equal.
    let equal = values.iter().filter(|value| **value == own).count();
    if equal == 0 { 0.0 } else { (TOP.saturating_sub(above) as f64 / equal as f64).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(n: usize) -> Vec<Vec<usize>> {
        if n == 0 {
            return vec![Vec::new()];
        }
        let longer = |order: Vec<usize>| {
            (0..n).map(move |at| {
                let mut order = order.clone();
                order.insert(at, n - 1);
                order
            })
        };
        orders(n - 1).into_iter().flat_map(longer).collect()
    }

    #[test]
    fn sessions_with_equal_numbers_share_the_places_left_by_expectation() {
        let examples: [&[f64]; 6] = [
            &[0.0, 0.0, 0.0, 0.0, 0.0],
            &[0.0, -0.0, 2.0, 0.0, -0.0],
            &[1.0, 3.0, 1.0, 2.0, 1.0, 0.0],
            &[5.0, 4.0, 3.0, 2.0],
            &[0.5, 0.5],
            &[f64::NAN, 1.0, -1.0, 1.0, 1.0, 1.0],
        ];
        for values in examples {
            let all = orders(values.len());
            for at in 0..values.len() {
                let among = |order: &&Vec<usize>| {
                    let mut known: Vec<usize> =
                        order.iter().copied().filter(|&one| !values[one].is_nan()).collect();
                    known.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).unwrap());
                    known.iter().take(TOP).any(|&one| one == at)
                };
                let expected = all.iter().filter(among).count() as f64 / all.len() as f64;
                let found = chance_of_place(values, at);
                assert!((found - expected).abs() < 1e-12, "{values:?}, {at}: {found}, not {expected}");
            }
        }
    }
}
