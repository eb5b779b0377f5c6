//! Means and shares over items, with intervals.

use palimpsest_data::statistics::bounded::Stratum;
use palimpsest_data::statistics::spread::Spread;
use palimpsest_data::statistics::{Interval, bounded, means};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub n: usize,
    pub mean: f64,
    /// 95% interval of the mean; `None` for one item or equal values.
    pub interval: Option<Interval>,
    /// Standard deviation between items; `None` for one item.
    pub sd: Option<f64>,
}

impl Estimate {
    /// One value per item; non-finite values are dropped. `None` if none remain.
    pub fn of(values: &[f64]) -> Option<Self> {
        let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let Spread { n, mean, sd } = Spread::of(&values)?;
        Some(Estimate { n, mean, interval: means::signed(&values), sd })
    }

    /// The same for bounded values; the interval is clamped to `bounds`.
    pub fn between(values: &[f64], bounds: (f64, f64)) -> Option<Self> {
        let estimate = Estimate::of(values)?;
        let units = values.iter().copied().filter(|value| value.is_finite()).collect();
        let interval = bounded::adjusted_mean(&[Stratum { weight: 1.0, units }], bounds);
        Some(Estimate { interval, ..estimate })
    }

    /// One share per item; uses Wilson's interval if every share is 0 or 1.
    pub fn share(shares: &[f64]) -> Option<Self> {
        let Spread { n, mean, .. } = Spread::of(shares)?;
        Some(Estimate { n, mean, interval: bounded::of_shares(shares), sd: None })
    }

    pub fn is_above(&self, number: f64) -> bool {
        self.interval.is_some_and(|interval| interval.low > number)
    }
}

/// Least-squares slope; `None` for fewer than two distinct x.
pub fn slope(x: &[f64], y: &[f64]) -> Option<f64> {
    let n = x.len().min(y.len()) as f64;
    let mean = |all: &[f64]| all.iter().sum::<f64>() / n;
    let (mean_x, mean_y) = (mean(x), mean(y));
    let product: f64 = x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let square: f64 = x.iter().map(|x| (x - mean_x).powi(2)).sum();
    (n >= 2.0 && square > 0.0).then(|| product / square)
}
