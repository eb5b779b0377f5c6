//! Holm's correction for multiple tests.

/// Adjusted p-values in input order: for the i-th smallest of m, max over j <= i of (m - j + 1) p_j, at most 1 (Holm 1979).
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<(usize, f64)> = p_values.iter().copied().enumerate().collect();
    order.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut largest: f64 = 0.0;
    for (rank, (at, p)) in order.into_iter().enumerate() {
        largest = largest.max((p_values.len() - rank) as f64 * p).min(1.0);
        if let Some(place) = adjusted.get_mut(at) {
            *place = largest;
        }
    }
    adjusted
}
