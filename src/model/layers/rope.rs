//! Rotary position embedding.

use candle_core::{DType, Device, Result, Tensor};

use crate::model::RopeSpec;
use crate::transfer;

/// The cosines and sines of the positions of one forward pass.
#[derive(Debug)]
pub(in crate::model) struct Rope {
    /// (l, dims / 2)
    cos: Tensor,
    sin: Tensor,
    dims: usize,
}

impl Rope {
    /// Angles for tokens at `positions`, in f32 as in transformers (`LlamaRotaryEmbedding`).
    pub fn new(spec: &RopeSpec, positions: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        let frequencies = spec.frequencies();
        let factor = spec.attention_factor() as f32;
        let angles = positions.iter().flat_map(|&p| frequencies.iter().map(move |f| p as f32 * f));
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for angle in angles {
            cos.push(angle.cos() * factor);
            sin.push(angle.sin() * factor);
        }
        let table =
            |values| transfer::upload(values, (positions.len(), spec.dims / 2), device)?.to_dtype(dtype);
        Ok(Rope { cos: table(cos)?, sin: table(sin)?, dims: spec.dims })
    }

    /// Turns the first `dims` dimensions of every head: (l, heads, head_dim) -> the same.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, d) = x.dims3()?;
        let turn = |x: Tensor| {
            let turned = candle_nn::rotary_emb::rope_thd(&x.unsqueeze(0)?, &self.cos, &self.sin)?;
            transfer::unrecorded(turned, &[&x])?.squeeze(0)
        };
        if d == self.dims {
            return turn(x.contiguous()?);
        }
        let turned = turn(x.narrow(2, 0, self.dims)?.contiguous()?)?;
        Tensor::cat(&[&turned, &x.narrow(2, self.dims, d - self.dims)?], 2)
    }
}
