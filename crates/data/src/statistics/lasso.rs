//! LASSO by coordinate descent (Friedman, Hastie and Tibshirani 2010), tested against scikit-learn with `StandardScaler`.

#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// Per column, on the original scale.
    pub weights: Vec<f64>,
    pub intercept: f64,
}

/// Convergence: largest change of a weight relative to the spread of `y`.
const TOLERANCE: f64 = 1e-10;
/// A hundred columns take some dozens.
const ROUNDS: usize = 10_000;

/// Minimises 1/(2n) |y - b - Z w|^2 + `alpha` |w|_1 with Z the standardised `x` `[rows][columns]`. Constant columns get weight 0.
pub fn lasso(x: &[Vec<f64>], y: &[f64], alpha: f64) -> Linear {
    let (n, columns) = (y.len() as f64, x.first().map_or(0, Vec::len));
    let mean = |values: &[f64]| if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / n };
    let y_mean = mean(y);
    let mut standard: Vec<(f64, f64, Vec<f64>)> = Vec::with_capacity(columns);
    for column in 0..columns {
        let values: Vec<f64> = x.iter().map(|row| row[column]).collect();
        let mean = mean(&values);
        let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        let unit = |v: f64| if deviation > 0.0 { (v - mean) / deviation } else { 0.0 };
        standard.push((mean, deviation, values.into_iter().map(unit).collect()));
    }
    let mut left: Vec<f64> = y.iter().map(|y| y - y_mean).collect();
    let spread = (left.iter().map(|r| r * r).sum::<f64>() / n.max(1.0)).sqrt();
    let mut weights = vec![0.0f64; columns];
    for _ in 0..ROUNDS {
        let mut most = 0.0f64;
        for (weight, (_, deviation, unit)) in weights.iter_mut().zip(&standard) {
            if *deviation == 0.0 {
                continue;
            }
            // A standardised column's sum of squares is n.
            let pull = unit.iter().zip(&left).map(|(z, r)| z * r).sum::<f64>() / n + *weight;
            let new = pull.signum() * (pull.abs() - alpha).max(0.0);
            let change = new - *weight;
            if change != 0.0 {
                left.iter_mut().zip(unit).for_each(|(r, z)| *r -= change * z);
                *weight = new;
            }
            most = most.max(change.abs());
        }
        if most <= TOLERANCE * spread {
            break;
        }
    }
    let scaled = |(weight, (_, deviation, _)): (&f64, &(f64, f64, Vec<f64>))| {
        if *deviation > 0.0 { weight / deviation } else { 0.0 }
    };
    let weights: Vec<f64> = weights.iter().zip(&standard).map(scaled).collect();
    let intercept = y_mean - weights.iter().zip(&standard).map(|(w, (mean, ..))| w * mean).sum::<f64>();
    Linear { weights, intercept }
}

impl Linear {
    pub fn at(&self, row: &[f64]) -> f64 {
        self.intercept + self.weights.iter().zip(row).map(|(w, x)| w * x).sum::<f64>()
    }
}

/// R^2 of a fit; `None` if `y` is constant.
pub fn r2(fit: &Linear, x: &[Vec<f64>], y: &[f64]) -> Option<f64> {
    let mean = y.iter().sum::<f64>() / y.len().max(1) as f64;
    let all: f64 = y.iter().map(|y| (y - mean).powi(2)).sum();
    let left: f64 = x.iter().zip(y).map(|(x, y)| (y - fit.at(x)).powi(2)).sum();
    (all > 0.0).then(|| 1.0 - left / all)
}
