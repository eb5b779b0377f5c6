//! Pure statistical functions; knows no benchmark and no run.

pub mod agreement;
pub mod bootstrap;
pub mod bounded;
pub mod control;
pub mod holm;
pub mod kappa;
pub mod lasso;
pub mod logistic;
pub mod mcnemar;
pub mod means;
pub mod rank;
pub mod ridge;
pub mod spread;

use statrs::distribution::{ContinuousCDF, Normal};

pub const LEVEL: f64 = 0.95;

#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// Wilson's score interval (1927) in [0, 1] at `level` (0.95 for 95%). `None` without trials or with more successes than trials.
pub fn wilson(successes: usize, trials: usize, level: f64) -> Option<Interval> {
    if trials == 0 || successes > trials || !(level > 0.0 && level < 1.0) {
        return None;
    }
    let z = Normal::standard().inverse_cdf(0.5 + level / 2.0);
    let (n, p) = (trials as f64, successes as f64 / trials as f64);
    let centre = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    // Exact ends at 0 and n, where rounding is not.
    let low = if successes == 0 { 0.0 } else { (centre - half).max(0.0) };
    let high = if successes == trials { 1.0 } else { (centre + half).min(1.0) };
    Some(Interval { low, high })
}
