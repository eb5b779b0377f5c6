//! How sure counts are: pure functions of numbers and a seed.
//!
//! Intervals are here; beside them tests ([`mcnemar`], [`holm`]), agreement of raters ([`mod@kappa`], [`agreement`]), spread over
//! repetitions ([`spread`]), differences ([`paired`]), rank correlation ([`rank`]), ridge regression ([`ridge`]) sparse linear fits ([`mod@lasso`])
//! and controls of effects ([`control`]).
//! Every bootstrap draws from ChaCha8 seeded by the caller, so that a table made
//! again is the same table. It knows no benchmark and no run: [`crate::results`] counts those.

pub mod agreement;
pub mod control;
pub mod holm;
pub mod kappa;
pub mod lasso;
pub mod mcnemar;
pub mod paired;
pub mod rank;
pub mod ridge;
pub mod spread;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statrs::distribution::{ContinuousCDF, Normal};

use crate::ground::numbers::quantile;

/// The level of every interval in the reports.
pub const LEVEL: f64 = 0.95;

/// A closed interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Wilson's score interval for `successes` of `trials` at `level` (0.95 for 95%); absent without trials, or with more
/// successes than trials. Ends lie in [0, 1]. (Wilson 1927; unlike the normal approximation it holds at 0 and n.)
pub fn wilson(successes: usize, trials: usize, level: f64) -> Option<Interval> {
    if trials == 0 || successes > trials || !(level > 0.0 && level < 1.0) {
        return None;
    }
    let z = Normal::standard().inverse_cdf(0.5 + level / 2.0);
    let (n, p) = (trials as f64, successes as f64 / trials as f64);
    let centre = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    // At the borders the formula is exact but rounding is not.
    let low = if successes == 0 { 0.0 } else { (centre - half).max(0.0) };
    let high = if successes == trials { 1.0 } else { (centre + half).min(1.0) };
    Some(Interval { low, high })
}

/// The percentile interval at [`LEVEL`] of `draws`, which are sorted in place; absent where there are none.
fn percentile_interval(draws: &mut [f64]) -> Option<Interval> {
    draws.sort_by(f64::total_cmp);
    let tail = (1.0 - LEVEL) / 2.0;
    (!draws.is_empty()).then(|| Interval { low: quantile(draws, tail), high: quantile(draws, 1.0 - tail) })
}

/// A 95% percentile-bootstrap interval of `statistic` under resampling of the units within each stratum.
///
/// `strata` is `[strata][units]`; each draw takes as many units of every stratum as it has, with replacement. A draw for
/// which the statistic is absent is left out; the interval is absent when there is no unit or no draw is left.
pub fn stratified_bootstrap<U>(
    strata: &[Vec<U>],
    statistic: impl Fn(&[Vec<&U>]) -> Option<f64>,
    resamples: usize,
    seed: u64,
) -> Option<Interval> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut draws: Vec<f64> = Vec::with_capacity(resamples);
    for _ in 0..resamples {
        let sample: Vec<Vec<&U>> = strata
            .iter()
            .map(|units| units.iter().filter_map(|_| units.get(rng.random_range(0..units.len()))).collect())
            .collect();
        draws.extend(statistic(&sample).filter(|value| value.is_finite()));
    }
    percentile_interval(&mut draws)
}
