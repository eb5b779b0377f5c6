//! Decoder layers: projections, norms, rotary embedding, attention and feed-forward blocks.

use candle_core::{DType, Result, Tensor};

use super::NormSpec;
use crate::fused;

mod activation;
mod attention;
mod convolution;
mod delta_net;
mod delta_rule;
mod dequantise;
mod embedding;
mod experts;
mod half_weight;
mod indexer;
mod lanes;
mod latent;
mod layer_inputs;
mod mamba2;
mod mlp;
mod packed;
mod packed_matmul;
mod per_head;
mod projection;
mod projections;
mod rope;
mod short_conv;

pub(super) use attention::{Attention, Inputs, NewKeys};
pub(super) use convolution::Convolution;
pub(super) use delta_net::DeltaNet;
pub(super) use embedding::Embedding;
pub(super) use experts::{Experts, Grouped, OwnNorms};
pub(super) use half_weight::HalfWeight;
pub(super) use indexer::{Indexed, Indexer};
pub(super) use latent::LatentAttention;
pub(super) use layer_inputs::{LayerEmbeddings, LayerInput};
pub(super) use mamba2::Mamba2;
pub(super) use mlp::Mlp;
pub use packed::PackedWeight;
pub(super) use per_head::PerHead;
pub use projection::Projection;
pub(super) use projections::Projections;
pub(super) use rope::Rope;
pub(super) use short_conv::ShortConv;

/// Phase of a forward pass; decides how quantised weights are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Prompt: dequantised weights, in f32 or, for bf16 models, bf16. Independent of the chunk size.
    Prefill,
    /// Generation: weights as quantised in the file.
    Decode,
}

/// RMS norm with a learned factor, in f32 (transformers, `LlamaRMSNorm`, `Gemma3RMSNorm`).
#[derive(Debug)]
pub(super) struct RmsNorm {
    /// f32: candle's norm rounds every step to the dtype of the factor.
    factor: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// `weight`: (width), for norms over the last dimension.
    pub fn new(weight: Tensor, spec: NormSpec) -> Result<Self> {
        let weight = weight.to_dtype(DType::F32)?;
        let factor = if spec.plus_one { (weight + 1.0)? } else { weight };
        Ok(RmsNorm { factor, eps: spec.eps as f32 })
    }

    /// Factors applied to `x` (l, width): factor / sqrt(mean(x^2) + eps), f32 (l, width).
    pub fn scales(&self, x: &Tensor) -> Result<Tensor> {
        let mean = x.to_dtype(DType::F32)?.sqr()?.mean_keepdim(1)?;
        let inverse = (mean + f64::from(self.eps))?.sqrt()?.recip()?;
        inverse.broadcast_mul(&self.factor.unsqueeze(0)?)
    }

    /// (..., width) -> (..., width)
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        fused::rms_norm(x, &self.factor, self.eps)
    }
}
