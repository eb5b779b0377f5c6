//! StreamingLLM (arXiv 2309.17453): the first four keys, which draw attention whatever their text, and the most recent ones.

use candle_core::{Device, Result, Tensor};

use super::super::policy::{LayerKeys, Policy};

const SINKS: usize = 4;

/// Positions stay as they were, as in KVPress; the paper moves the kept keys together.
pub struct Streaming {
    pub budget: usize,
}

impl Policy for Streaming {
    fn scores(&self, layer: &LayerKeys<'_>) -> Result<Tensor> {
        let (kv_heads, keys, _) = layer.k.dims3()?;
        let recent = keys - self.budget.saturating_sub(SINKS).min(keys);
        let stays = |key: usize| f32::from(u8::from(key < SINKS || key >= recent));
        let scores: Vec<f32> = (0..keys).map(stays).collect();
        Tensor::from_vec(scores, (1, keys), &Device::Cpu)?.repeat((kv_heads, 1))
    }
}
