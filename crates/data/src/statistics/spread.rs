//! Mean and standard deviation.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub n: usize,
    pub mean: f64,
    /// Sample standard deviation (n - 1); `None` for one number.
    pub sd: Option<f64>,
}

impl Spread {
    pub fn of(numbers: &[f64]) -> Option<Self> {
        let mean = mean(numbers)?;
        let squares: f64 = numbers.iter().map(|x| (x - mean).powi(2)).sum();
        let sd = (numbers.len() > 1).then(|| (squares / (numbers.len() - 1) as f64).sqrt());
        Some(Spread { n: numbers.len(), mean, sd })
    }
}

pub fn mean(numbers: &[f64]) -> Option<f64> {
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}
