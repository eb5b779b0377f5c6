//! Rank correlation.

use statrs::statistics::{Data, OrderStatistics, RankTieBreaker};

/// Spearman's rank correlation of finite pairs, ties at their mean rank. `None` for fewer than three pairs or a constant side.
pub fn spearman(first: &[f64], second: &[f64]) -> Option<f64> {
    let pairs = first.iter().zip(second).filter(|(a, b)| a.is_finite() && b.is_finite());
    let (mut first, mut second): (Vec<f64>, Vec<f64>) = pairs.map(|(a, b)| (*a, *b)).unzip();
    if first.len() < 3 {
        return None;
    }
    let ranks = |numbers: &mut [f64]| Data::new(numbers).ranks(RankTieBreaker::Average);
    pearson(&ranks(&mut first), &ranks(&mut second))
}

fn pearson(first: &[f64], second: &[f64]) -> Option<f64> {
    let n = first.len() as f64;
    let mean = |all: &[f64]| all.iter().sum::<f64>() / n;
    let (of_first, of_second) = (mean(first), mean(second));
    let product = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        first.iter().zip(second).map(|(a, b)| f(a - of_first, b - of_second)).sum()
    };
    let scale = (product(&|a, _| a * a) * product(&|_, b| b * b)).sqrt();
    (scale > 0.0).then(|| (product(&|a, b| a * b) / scale).clamp(-1.0, 1.0))
}
