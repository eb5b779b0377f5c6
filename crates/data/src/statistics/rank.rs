//! Rank correlation.

/// Spearman's rank correlation of finite pairs, ties at their mean rank. `None` for fewer than three pairs or a constant side.
pub fn spearman(first: &[f64], second: &[f64]) -> Option<f64> {
    let pairs = first.iter().zip(second).filter(|(a, b)| a.is_finite() && b.is_finite());
    let (first, second): (Vec<f64>, Vec<f64>) = pairs.map(|(a, b)| (*a, *b)).unzip();
    if first.len() < 3 {
        return None;
    }
    pearson(&ranks(&first), &ranks(&second))
}

/// Ranks from 1, ties at their mean.
pub fn ranks(numbers: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|&a, &b| numbers[a].total_cmp(&numbers[b]));
    let mut ranks = vec![0.0; numbers.len()];
    let mut before = 0;
    for equal in order.chunk_by(|&a, &b| numbers[a] == numbers[b]) {
        let place = before as f64 + (equal.len() as f64 + 1.0) / 2.0;
        equal.iter().for_each(|&at| ranks[at] = place);
        before += equal.len();
    }
    ranks
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
