//! The softmax attention block: projections, norms, rotary embedding, the past, gate, output projection.

use candle_core::{DType, Result, Tensor};

use super::projections::{Outputs, Projections};
use super::{Phase, Projection, RmsNorm, Rope};
use crate::attention::{AttentionKernel, Holes, Sinks, Site};
use crate::bfloat;
use crate::model::kv_view::KvView;
use crate::model::{AttentionSpec, QkNorm};

/// Grouped-query attention (transformers, `LlamaAttention`, and with what the spec asks for `Qwen3Attention`,
/// `Qwen3_5Attention`, `Gemma3Attention`, `GptOssAttention`, `Glm4MoeAttention`, `MiniMaxM2Attention`).
#[derive(Debug)]
pub(in crate::model) struct Attention {
    pub spec: AttentionSpec,
    /// To queries (for gated attention a query and a gate a head, one after the other), keys and values.
    pub qkv: Projections<3>,
    /// Back from what the heads read. The decoder applies it.
    pub o: Projection,
    /// Norms of queries and keys, if any.
    pub qk_norm: Option<(RmsNorm, RmsNorm)>,
    /// One logit a head.
    pub sinks: Option<Sinks>,
    /// The choice of kernels on CUDA.
    pub kernel: AttentionKernel,
    /// Scores and outputs are products of bf16 numbers, between hidden states in f32.
    pub half: bool,
}

impl Attention {
    /// (l, hidden) -> what the heads read, (l, heads * head_dim), for the tokens after `past`, whose rotary table is `rope`.
    pub fn forward(
        &self,
        layer: usize,
        x: &Tensor,
        rope: &Rope,
        kv: &mut KvView<'_>,
        phase: Phase,
    ) -> Result<Tensor> {
        let AttentionSpec { heads, kv_heads, head_dim, gated, .. } = self.spec;
        let l = x.dim(0)?;

        // 1. Project: (l, heads or kv_heads, head_dim), and the gate (l, heads * head_dim).
        let Outputs { parts: [q, k, v], whole } = self.qkv.forward(x, phase)?;
        let (mut q, gate) = if gated {
            let both = q.reshape((l, heads, 2 * head_dim))?;
            let gate = both.narrow(2, head_dim, head_dim)?.contiguous()?.reshape((l, heads * head_dim))?;
            (both.narrow(2, 0, head_dim)?.contiguous()?, Some(gate))
        } else {
            (q, None)
        };
        let (mut k, v) = (k, v.reshape((l, kv_heads, head_dim))?);

        // 2. Norm queries and keys, whole or head by head.
        if self.spec.qk_norm == QkNorm::PerHead {
            (q, k) = (q.reshape((l, heads, head_dim))?, k.reshape((l, kv_heads, head_dim))?);
        }
        if let Some((q_norm, k_norm)) = &self.qk_norm {
            (q, k) = (q_norm.forward(&q)?, k_norm.forward(&k)?);
        }
        (q, k) = (q.reshape((l, heads, head_dim))?, k.reshape((l, kv_heads, head_dim))?);

        // 3. Turn queries and keys by their positions, together where they lie side by side as they were projected.
        let beside = whole.filter(|_| self.qk_norm.is_none() && !gated);
        (q, k) = match beside {
            Some(all) => {
                let both = all.narrow(1, 0, (heads + kv_heads) * head_dim)?;
                let both = rope.apply(&both.reshape((l, heads + kv_heads, head_dim))?)?;
                (both.narrow(1, 0, heads)?, both.narrow(1, heads, kv_heads)?)
            }
            None => (rope.apply(&q)?, rope.apply(&k)?),
        };

        // 4. Remember keys and values, and attend: (l, heads, head_dim).
        let site = Site {
            layer,
            // The past knows.
            offset: 0,
            first_key: 0,
            scale: self.spec.scale,
            window: self.spec.window,
            // No architecture of the table caps its scores; the kernels and the observer can.
            softcap: None,
            sinks: self.sinks.clone(),
            holes: Holes::default(),
            kernel: self.kernel,
        };
        let gate = gate.map(|gate| candle_nn::ops::sigmoid(&gate)).transpose()?;
        if let Some(gate) = &gate {
            kv.show_gate(gate)?;
        }
        if self.half {
            q = bfloat::to_dtype(&q, DType::BF16)?;
        }
        let mut out = kv.attend(&q, &k, &v, site)?.reshape((l, heads * head_dim))?;

        // 5. Gate.
        if let Some(gate) = gate {
            out = bfloat::to_dtype(&out, gate.dtype())?;
            out = (out * gate)?;
        }
        Ok(out)
    }
}
