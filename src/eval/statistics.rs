//! Interval estimates: Wilson's for a proportion, the percentile bootstrap for means.
//!
//! Pure functions of numbers and a seed; called by the metrics here and by the lens for its bands. Every bootstrap
//! draws from ChaCha8 seeded by the caller, so that a figure drawn again is the same figure.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statrs::distribution::{ContinuousCDF, Normal};

/// The level of every interval in the reports.
pub const LEVEL: f64 = 0.95;

/// Why a statistic could not be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StatisticsError {
    /// Nothing to compute it from.
    #[error("no {0} to compute an interval from")]
    Empty(&'static str),
    /// The examples have curves of different lengths.
    #[error(
        "example {example} has {found} values and the first has {expected}; curves of one model have one length"
    )]
    Ragged {
        /// Zero-based.
        example: usize,
        /// Its length.
        found: usize,
        /// The length of the first.
        expected: usize,
    },
    /// A value is not a number.
    #[error("example {example} has {value} at position {position}; leave it out or mend it first")]
    NotFinite {
        /// Zero-based.
        example: usize,
        /// Zero-based.
        position: usize,
        /// What stands there.
        value: f64,
    },
}

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

/// The `q` quantile of sorted values by linear interpolation between order statistics (Hyndman and Fan's type 7, the
/// default of R and numpy); NaN without values.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let position = q.clamp(0.0, 1.0) * sorted.len().saturating_sub(1) as f64;
    let below = position.floor() as usize;
    let Some(&low) = sorted.get(below) else { return f64::NAN };
    let high = sorted.get(below + 1).copied().unwrap_or(low);
    low + (high - low) * (position - below as f64)
}

/// The percentile interval at [`LEVEL`] of `draws`, which are sorted in place; absent where there are none.
fn percentile_interval(draws: &mut [f64]) -> Option<Interval> {
    draws.sort_by(f64::total_cmp);
    let tail = (1.0 - LEVEL) / 2.0;
    (!draws.is_empty()).then(|| Interval { low: quantile(draws, tail), high: quantile(draws, 1.0 - tail) })
}

/// A 95% percentile-bootstrap band of the mean curve: lower and upper ends, one a position.
///
/// `values` is `[examples][positions]` (for example layers). Each of `resamples` draws takes whole examples with
/// replacement, so that the dependence between the positions of an example stays. With one example the band is the curve.
pub fn bootstrap_mean_band(
    values: &[Vec<f64>],
    resamples: usize,
    seed: u64,
) -> Result<(Vec<f64>, Vec<f64>), StatisticsError> {
    let first = values.first().ok_or(StatisticsError::Empty("examples"))?;
    if resamples == 0 {
        return Err(StatisticsError::Empty("resamples"));
    }
    for (example, curve) in values.iter().enumerate() {
        if curve.len() != first.len() {
            return Err(StatisticsError::Ragged { example, found: curve.len(), expected: first.len() });
        }
        if let Some((position, &value)) = curve.iter().enumerate().find(|(_, v)| !v.is_finite()) {
            return Err(StatisticsError::NotFinite { example, position, value });
        }
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // draws: [positions][resamples]
    let mut draws = vec![Vec::with_capacity(resamples); first.len()];
    for _ in 0..resamples {
        let mut sum = vec![0.0; first.len()];
        for _ in 0..values.len() {
            if let Some(curve) = values.get(rng.random_range(0..values.len())) {
                sum.iter_mut().zip(curve).for_each(|(s, v)| *s += v);
            }
        }
        for (draws, sum) in draws.iter_mut().zip(sum) {
            draws.push(sum / values.len() as f64);
        }
    }
    let ends = draws.iter_mut().filter_map(|draws| percentile_interval(draws)).map(|i| (i.low, i.high));
    Ok(ends.unzip())
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
