//! What decoders are built of: linear maps, norms, rotary embedding, attention and feed-forward blocks.

use candle_core::{Result, Tensor};

mod attention;
#[allow(dead_code)]
mod delta_net;
mod delta_rule;
mod grouped;
mod linear;
mod mlp;
mod rope;

pub(super) use attention::Attention;
pub(super) use grouped::GroupedInt8;
pub(super) use linear::{Linear, Quantised};
pub(super) use mlp::Mlp;
pub(super) use rope::Rope;

/// What a forward pass is for, which decides how quantised weights are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Reading a prompt: full-precision products with dequantised weights. Exact, whatever the chunk size.
    Prefill,
    /// Generating: products with the weights as they are quantised in the file.
    Decode,
}

/// Root-mean-square norm with a learned weight, in f32 (transformers, `LlamaRMSNorm`).
#[derive(Debug)]
pub(super) struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    pub fn new(weight: Tensor, eps: f64) -> Self {
        RmsNorm { weight, eps: eps as f32 }
    }

    /// (l, hidden) -> (l, hidden)
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_nn::ops::rms_norm(&x.contiguous()?, &self.weight, self.eps)
    }
}
