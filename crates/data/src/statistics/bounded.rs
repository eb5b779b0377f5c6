//! Intervals of means of numbers between two bounds: shares of right answers, scores, and differences of either.
//!
//! All right, all wrong and no difference at all are common in small samples, and say nothing of their spread. So a unit at either
//! bound is added before Student's t is taken: Laplace's adjustment, as Bonett and Price have it for paired proportions (2012). The
//! interval then has a width at the bounds too, and holds for units that weigh unequally, such as cases of several questions.

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

/// Units of one kind, of which the sample has as many by design.
#[derive(Debug, Clone, PartialEq)]
pub struct Stratum {
    /// The weight of its units' mean in the whole; of all strata 1.
    pub weight: f64,
    pub units: Vec<f64>,
}

/// The interval at [`LEVEL`](super::LEVEL) of the weighted mean of strata whose units lie within `bounds`.
///
/// To each stratum its weight's share of one unit at either bound is added. The variance of its mean is then that of n units, and
/// Student's t has n + 2 less the number of strata for its degrees of freedom. Absent where no stratum has two units: then
/// nothing tells how far units differ.
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

/// The interval of the mean of units that all weigh the same, within their strata: of answers that are right (1) or wrong (0), or within
/// `bounds` of -1 and 1 of their paired differences.
pub fn of_units(strata: &[Stratum], bounds: (f64, f64), intervals: Intervals) -> Option<Interval> {
    match (intervals, strata) {
        (Intervals::Paper, _) => {
            percentile(&strata.iter().map(|stratum| stratum.units.as_slice()).collect::<Vec<_>>())
        }
        (Intervals::Adjusted, [only]) if bounds.0 == 0.0 => of_shares(&only.units),
        (Intervals::Adjusted, _) => adjusted_mean(strata, bounds),
    }
}

/// The interval of a share of right answers that all weigh the same: Wilson's where each is a unit of its own.
pub fn of_shares(units: &[f64]) -> Option<Interval> {
    let right = units.iter().filter(|x| **x == 1.0).count();
    if units.iter().all(|x| *x == 0.0 || *x == 1.0) {
        return wilson(right, units.len(), super::LEVEL);
    }
    adjusted_mean(&[Stratum { weight: 1.0, units: units.to_vec() }], (0.0, 1.0))
}
