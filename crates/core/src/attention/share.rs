//! Mass under uniform attention, the baseline of densities.
//!
//! A row i that attends equally to all visible keys has mass |visible(i) and Y| / |visible(i)| on span Y; a row span has the mean over its
//! rows. Causality and the layer's window define visibility. Sinks are excluded: they are not keys.

use std::ops::Range;

use ndarray::Array3;

use crate::span::Span;

/// Masses of uniform attention at every softmax layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Uniform {
    /// Window per softmax layer: visible keys per row, itself included; `None` for full causal attention.
    pub windows: Vec<Option<usize>>,
    /// f32 `[softmax layers, row spans, key spans]`.
    pub share: Array3<f32>,
}

impl Uniform {
    /// Computes the masses for layers with these windows.
    pub fn new(windows: Vec<Option<usize>>, rows: &[Span], keys: &[Span]) -> Self {
        let mut share = Array3::zeros((windows.len(), rows.len(), keys.len()));
        for layer in 0..windows.len() {
            // Layers with equal windows share the result.
            if let Some(same) = windows[..layer].iter().position(|window| *window == windows[layer]) {
                let done = share.index_axis(ndarray::Axis(0), same).to_owned();
                share.index_axis_mut(ndarray::Axis(0), layer).assign(&done);
                continue;
            }
            for (r, row) in rows.iter().enumerate() {
                for (k, key) in keys.iter().enumerate() {
                    share[[layer, r, k]] = uniform_share(row.range(), key.range(), windows[layer]) as f32;
                }
            }
        }
        Uniform { windows, share }
    }
}

/// Mass of uniform attention from `rows` to `keys`, both position ranges: the mean over the rows i of the fraction of visible keys that lie
/// in `keys`. A row sees the last `window` keys up to itself, or all. 0 without rows.
pub fn uniform_share(rows: Range<usize>, keys: Range<usize>, window: Option<usize>) -> f64 {
    let count = rows.len().max(1) as f64;
    let part = |i: usize| {
        let end = i + 1;
        let first = window.map_or(0, |window| end.saturating_sub(window));
        let visible = keys.end.min(end).saturating_sub(keys.start.max(first)) as f64;
        visible / (end - first) as f64
    };
    rows.map(part).sum::<f64>() / count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_attention_pays_a_preceding_span_its_visible_share() {
        // rows 4 and 5 see 5 and 6 tokens; the key span has 2
        let share = uniform_share(4..6, 1..3, None);
        assert!((share - (2.0 / 5.0 + 2.0 / 6.0) / 2.0).abs() < 1e-15);
        assert_eq!(uniform_share(0..2, 2..4, None), 0.0);
    }

    #[test]
    fn a_window_hides_what_lies_before_it_and_makes_the_rest_worth_more() {
        // row 4 sees 2, 3, 4, one of them in the span; row 5 sees 3, 4, 5, none of them
        let share = uniform_share(4..6, 1..3, Some(3));
        assert!((share - (1.0 / 3.0 + 0.0) / 2.0).abs() < 1e-15);
        assert_eq!(uniform_share(4..6, 1..3, Some(60)), uniform_share(4..6, 1..3, None));
        for window in [None, Some(1), Some(2), Some(7)] {
            let all = [0..2, 2..3, 3..9].map(|keys| uniform_share(3..9, keys, window));
            assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-15, "{window:?}: {all:?}");
        }
    }

    #[test]
    fn layers_with_one_window_have_one_share() {
        let (row, keys) = (Span::new("query", 4..6), [Span::new("a", 0..3), Span::new("b", 3..6)]);
        let windows = vec![Some(3), None, Some(3)];
        let Uniform { share, .. } = Uniform::new(windows, &[row], &keys);
        assert_eq!(share.dim(), (3, 1, 2));
        assert_eq!(share[[0, 0, 0]], share[[2, 0, 0]]);
        assert!(share[[0, 0, 0]] < share[[1, 0, 0]]);
    }
}
