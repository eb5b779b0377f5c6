//! Holm's correction of p-values for several tests.

/// The adjusted p-values, in the order given: of the m tests the i-th smallest p becomes the largest (m - j + 1) p_j over all
/// j <= i, at most 1 (Holm 1979). An adjusted p below a level rejects at that level over the whole family.
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
