//! SnapKV (arXiv 2404.14469): the mean weight of a key from the last 64 rows, pooled over five keys. These rows' own keys stay.

use candle_core::{Result, Tensor};

use super::super::policy::{LayerKeys, Policy};

/// Rows whose attention is read.
pub const WINDOW: usize = 64;
const KERNEL: usize = 5;

pub struct SnapKv;

impl Policy for SnapKv {
    fn scores(&self, layer: &LayerKeys<'_>) -> Result<Tensor> {
        let scored = layer.before_window()?;
        let mean = (layer.weights()?.narrow(1, 0, scored)? / layer.rows.len() as f64)?;
        // As KVPress, neighbours beyond the ends count as zeros.
        let padded = mean.pad_with_zeros(1, KERNEL / 2, KERNEL / 2)?;
        let mut pooled = padded.narrow(1, 0, scored)?;
        for shift in 1..KERNEL {
            pooled = (pooled + padded.narrow(1, shift, scored)?)?;
        }
        layer.with_window(&layer.by_kv_head(&(pooled / KERNEL as f64)?)?)
    }
}
