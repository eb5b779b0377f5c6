//! Softmax normaliser of a row whose keys were processed in parts.

use crate::attention::Site;

/// Sums of e^(score - max) of one row.
pub struct Total {
    pub max: f64,
    /// Includes the sink.
    pub total: f64,
    pub sink: f64,
}

pub fn total(site: &Site, head: usize, parts: impl Iterator<Item = (f32, f32)> + Clone) -> Total {
    let sink = site
        .sinks
        .as_ref()
        .and_then(|sinks| sinks.logits().get(head))
        .map_or(f64::NEG_INFINITY, |&s| f64::from(s));
    // Not f64::max, which drops NaN.
    let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
    let max = parts.clone().map(|(max, _)| f64::from(max)).fold(sink, larger);
    let sink = (sink - max).exp();
    let total = parts.map(|(m, sum)| f64::from(sum) * (f64::from(m) - max).exp()).sum::<f64>() + sink;
    Total { max, total, sink }
}
