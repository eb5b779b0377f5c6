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
