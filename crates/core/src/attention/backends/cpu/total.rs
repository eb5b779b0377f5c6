//! The end of a row's softmax, whose keys were walked over in parts.

use crate::attention::Site;

/// A row's softmax, closed: sums of e^(score - max).
pub struct Total {
    pub max: f64,
    /// Of everything, the sink included.
    pub total: f64,
    /// Of the sink.
    pub sink: f64,
}

/// Closes a row's softmax over its parts' maxima and sums and its head's sink.
pub fn total(site: &Site, head: usize, parts: impl Iterator<Item = (f32, f32)> + Clone) -> Total {
    let sink = site
        .sinks
        .as_ref()
        .and_then(|sinks| sinks.logits().get(head))
        .map_or(f64::NEG_INFINITY, |&s| f64::from(s));
    // Not f64::max, which would drop a NaN.
    let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
    let max = parts.clone().map(|(max, _)| f64::from(max)).fold(sink, larger);
    let sink = (sink - max).exp();
    let total = parts.map(|(m, sum)| f64::from(sum) * (f64::from(m) - max).exp()).sum::<f64>() + sink;
    Total { max, total, sink }
}
