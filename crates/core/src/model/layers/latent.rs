//! Latent attention block: projections, norms, rotary embedding, KV cache, output projection.

use candle_core::{DType, Result, Tensor};

use super::projections::{Outputs, Projections};
use super::{Indexer, PerHead, Phase, Projection, RmsNorm, Rope};
use crate::attention::{AttentionKernel, Site};
use crate::bfloat;
use crate::model::kv_view::{Choice, KvView};
use crate::model::{AttentionSpec, LatentSpec, Sees};

/// Multi-head latent attention (transformers, `DeepseekV3Attention`, `DeepseekV2Attention`, `Mistral4Attention`) over the latent vectors
/// themselves: a head's score q . (W_K c) is (W_K^T q) . c, and what it reads of values W_V c is W_V times what it reads of c. So every
/// head has its own weights on the one latent key of a token, which is also its value.
#[derive(Debug)]
pub(in crate::model) struct LatentAttention {
    pub spec: AttentionSpec,
    pub latent: LatentSpec,
    /// Queries, or what they are made of; the latent vector and the rotated key.
    pub inputs: Projections<2>,
    /// Norm and second projection of the queries, where there are two.
    pub queries: Option<(RmsNorm, Projection)>,
    /// Chooses the keys that rows see, where the layer has one.
    pub indexer: Option<Indexer>,
    /// Of the latent vector.
    pub norm: RmsNorm,
    /// Queries without rotation to the latent space: plain -> rank.
    pub keys: PerHead,
    /// From the heads' mean latent vectors to their values: rank -> value.
    pub values: PerHead,
    /// Output projection; applied by the decoder.
    pub o: Projection,
    pub kernel: AttentionKernel,
    /// bf16 products with f32 hidden states.
    pub half: bool,
}

impl LatentAttention {
    /// (l, hidden) -> (l, heads * value), before the output projection. `rope`: the tokens' rotary table; `choice`: that of
    /// the last layer with an indexer, which a layer with one replaces.
    pub fn forward(
        &self,
        layer: usize,
        x: &Tensor,
        rope: &Rope,
        kv: &mut KvView<'_>,
        choice: &mut Choice,
        phase: Phase,
    ) -> Result<Tensor> {
        let (l, heads, rotated) = (x.dim(0)?, self.spec.heads, self.spec.rope.dims);
        let LatentSpec { rank, plain, value, .. } = self.latent;

        // 1. Project: queries (l, heads, plain + rotated), the latent vector (l, rank) and the rotated key (l, 1, rotated).
        let Outputs { parts: [mut q, kv_a], .. } = self.inputs.forward(x, phase)?;
        if let Some((norm, second)) = &self.queries {
            let normed = norm.forward(&q.contiguous()?)?;
            if let Some(indexer) = &self.indexer {
                let (indexed, keys) = indexer.forward(x, &normed, rope, phase)?;
                *choice = kv.choose(&indexer.layers, &indexed, &keys)?;
            }
            q = second.forward(&normed, phase)?;
        }
        let q = q.reshape((l, heads, plain + rotated))?;
        let c = self.norm.forward(&kv_a.narrow(1, 0, rank)?.contiguous()?)?.reshape((l, 1, rank))?;
        let k = kv_a.narrow(1, rank, rotated)?.reshape((l, 1, rotated))?;

        // 2. Rotate, and take the rest of the queries to the latent space: (l, heads, rotated + rank) and (l, 1, rotated + rank).
        let turned = rope.apply(&q.narrow(2, plain, rotated)?)?;
        let absorbed = self.keys.forward(&q.narrow(2, 0, plain)?, phase)?;
        let mut q = rope.scale_queries(Tensor::cat(&[&turned, &absorbed], 2)?)?;
        let k = Tensor::cat(&[&rope.apply(&k)?, &c], 2)?;
        if self.half {
            q = bfloat::to_dtype(&q, DType::BF16)?;
        }

        // 3. Append and attend: (l, heads, rotated + rank), of which the rotated part of the keys is no value.
        let site = Site { layer, scale: self.spec.scale, kernel: self.kernel, ..Site::default() };
        let read = match self.latent.sees {
            Sees::All => kv.attend(&q, &k, &k, site)?,
            Sees::Chosen(_) | Sees::AsBefore => kv.attend_chosen([&q, &k, &k], site, &choice.at(layer)?)?,
        };
        let read = bfloat::to_dtype(&read.narrow(2, rotated, rank)?.contiguous()?, x.dtype())?;

        // 4. Values: (l, heads * value).
        self.values.forward(&read, phase)?.reshape((l, heads * value))
    }

    /// Output of each head per unit of its cached key: f32 (heads, rotated + rank, hidden).
    pub fn head_outputs(&self) -> Result<Tensor> {
        let weight = self.o.weight()?;
        let (heads, hidden) = (self.spec.heads, weight.dim(1)?);
        let written =
            self.values.weights()?.matmul(&weight.reshape((heads, self.latent.value, hidden))?)?;
        written.pad_with_zeros(1, self.spec.rope.dims, 0)
    }
}
