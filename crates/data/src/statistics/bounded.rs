//! Intervals of means of bounded numbers: accuracies, scores and their differences. Equal values are common in small samples and have zero
//! variance, so a pseudo-observation is added at either bound before Student's t is taken: Laplace's adjustment (Bonett and Price 2012).

use super::bootstrap::percentile;
use super::means::t_quantile;
use super::{Interval, wilson};

/// Method for intervals of accuracies and of paired differences of accuracies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Intervals {
    /// Wilson's of single answers, else Student's t with a unit added at either bound
    #[default]
    Adjusted,
    /// The percentile bootstrap of the benchmark's paper
    Paper,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Stratum {
    /// Stratum weight; weights sum to 1.
    pub weight: f64,
    pub units: Vec<f64>,
}

/// Interval at [`LEVEL`](super::LEVEL) of the weighted mean of strata whose units lie within `bounds`. Each stratum gets its weight's share
/// of the two pseudo-observations; degrees of freedom are units + 2 - strata. `None` if no stratum has two units.
pub fn adjusted_mean(strata: &[Stratum], bounds: (f64, f64)) -> Option<Interval> {
    let filled = || strata.iter().filter(|stratum| !stratum.units.is_empty());
    if !filled().any(|stratum| stratum.units.len() > 1) {
        return None;
    }
    let middle = (bounds.0 + bounds.1) / 2.0;
    let (mut mean, mut variance, mut freedom) = (0.0, 0.0, 0.0);
    for Stratum { weight, units } in filled() {
        let added = 2.0 * weight;
        let n = units.len() as f64 + added;
        let own = (units.iter().sum::<f64>() + added * middle) / n;
        let off = |x: f64| (x - own).powi(2);
        let squares = units.iter().map(|x| off(*x)).sum::<f64>() + weight * (off(bounds.0) + off(bounds.1));
        mean += weight * own;
        variance += weight * weight * squares / (n - 1.0) / n;
        freedom += n - 1.0;
    }
    let reach = t_quantile(freedom)? * variance.sqrt();
    Some(Interval { low: (mean - reach).max(bounds.0), high: (mean + reach).min(bounds.1) })
}

/// Interval of the mean of equally weighted units: binary outcomes (0, 1) or paired differences in [-1, 1].
pub fn of_units(strata: &[Stratum], bounds: (f64, f64), intervals: Intervals) -> Option<Interval> {
    match (intervals, strata) {
        (Intervals::Paper, _) => {
            percentile(&strata.iter().map(|stratum| stratum.units.as_slice()).collect::<Vec<_>>())
        }
        (Intervals::Adjusted, [only]) if bounds.0 == 0.0 => of_shares(&only.units),
        (Intervals::Adjusted, _) => adjusted_mean(strata, bounds),
    }
}

/// Interval of an accuracy: Wilson if units are binary.
pub fn of_shares(units: &[f64]) -> Option<Interval> {
    let right = units.iter().filter(|x| **x == 1.0).count();
    if units.iter().all(|x| *x == 0.0 || *x == 1.0) {
        return wilson(right, units.len(), super::LEVEL);
    }
    adjusted_mean(&[Stratum { weight: 1.0, units: units.to_vec() }], (0.0, 1.0))
}
