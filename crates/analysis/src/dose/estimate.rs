//! Means over items and shares of items, with their intervals.

use palimpsest_data::statistics::bounded::Stratum;
use palimpsest_data::statistics::spread::Spread;
use palimpsest_data::statistics::{Interval, bounded, means};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub n: usize,
    pub mean: f64,
    /// The interval of the mean at 95%; absent of one item and of equal ones.
    pub interval: Option<Interval>,
    /// Standard deviation between items; absent of one.
    pub sd: Option<f64>,
}

impl Estimate {
    /// Of a number an item; `None` without any. Numbers that are not finite are left out.
    pub fn of(values: &[f64]) -> Option<Self> {
        let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let Spread { n, mean, sd } = Spread::of(&values)?;
        Some(Estimate { n, mean, interval: means::signed(&values), sd })
    }

    /// The same of numbers between two bounds, whose interval does not leave them.
    pub fn between(values: &[f64], bounds: (f64, f64)) -> Option<Self> {
        let estimate = Estimate::of(values)?;
        let units = values.iter().copied().filter(|value| value.is_finite()).collect();
        let interval = bounded::adjusted_mean(&[Stratum { weight: 1.0, units }], bounds);
        Some(Estimate { interval, ..estimate })
    }

    /// Of a share an item; its interval is Wilson's where each item is all or nothing.
    pub fn share(shares: &[f64]) -> Option<Self> {
        let Spread { n, mean, .. } = Spread::of(shares)?;
        Some(Estimate { n, mean, interval: bounded::of_shares(shares), sd: None })
    }

    /// True if the whole interval lies above a number.
    pub fn is_above(&self, number: f64) -> bool {
        self.interval.is_some_and(|interval| interval.low > number)
    }

    /// -1 or 1 where the interval lies below or above 0; 0 where it holds 0 or there is none.
    pub fn side(&self) -> i32 {
        match self.interval {
            Some(Interval { low, .. }) if low > 0.0 => 1,
            Some(Interval { high, .. }) if high < 0.0 => -1,
            _ => 0,
        }
    }
}

/// The slope of a line of least squares through points; `None` of fewer than two places.
pub fn slope(x: &[f64], y: &[f64]) -> Option<f64> {
    let n = x.len().min(y.len()) as f64;
    let mean = |all: &[f64]| all.iter().sum::<f64>() / n;
    let (mean_x, mean_y) = (mean(x), mean(y));
    let product: f64 = x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let square: f64 = x.iter().map(|x| (x - mean_x).powi(2)).sum();
    (n >= 2.0 && square > 0.0).then(|| product / square)
}
