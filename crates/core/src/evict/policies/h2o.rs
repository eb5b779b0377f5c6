//! Heavy hitters (H2O, arXiv 2306.14048) as KVPress's `ObservedAttentionPress` has them: the mean weight of a key from all rows that see
//! it, not accumulated while keys are evicted.

use candle_core::{Result, Tensor};

use super::super::policy::{LayerKeys, Policy};
use crate::transfer;

pub struct H2o;

impl Policy for H2o {
    fn scores(&self, layer: &LayerKeys<'_>) -> Result<Tensor> {
        let weights = layer.weights()?;
        let rows: Vec<f32> = (0..layer.keys()?).map(|key| (layer.rows.end - key) as f32).collect();
        let rows = transfer::upload(rows, (1, layer.keys()?), weights.device())?;
        layer.by_kv_head(&weights.broadcast_div(&rows)?)
    }
}
