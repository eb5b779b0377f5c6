//! Mean and standard deviation.

use serde::Serialize;

/// The mean of a few numbers, and how far they lie apart.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub n: usize,
    pub mean: f64,
    /// Their sample standard deviation, with n - 1 in the denominator; absent of a single number.
    pub sd: Option<f64>,
}

impl Spread {
    /// Of `numbers`; absent where there are none.
    pub fn of(numbers: &[f64]) -> Option<Self> {
        let mean = mean(numbers)?;
        let squares: f64 = numbers.iter().map(|x| (x - mean).powi(2)).sum();
        let sd = (numbers.len() > 1).then(|| (squares / (numbers.len() - 1) as f64).sqrt());
        Some(Spread { n: numbers.len(), mean, sd })
    }
}

/// The mean; absent where there are no numbers. Of the accuracies of cells that each weigh the same: table 2's Overall.
pub fn mean(numbers: &[f64]) -> Option<f64> {
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}
