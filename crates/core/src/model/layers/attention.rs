//! Softmax attention block: projections, norms, rotary embedding, KV cache, gate, output projection.

use candle_core::{DType, Result, Tensor};

use super::projections::{Outputs, Projections};
use super::{Phase, Projection, RmsNorm, Rope};
use crate::attention::{AttentionKernel, Holes, Sinks, Site};
use crate::bfloat;
use crate::model::kv_view::KvView;
use crate::model::{AttentionSpec, QkNorm};

/// Grouped-query attention (transformers, `LlamaAttention`; depending on the spec also `Qwen3Attention`, `Qwen3_5Attention`,
/// `Gemma3Attention`, `GptOssAttention`, `Glm4MoeAttention`, `MiniMaxM2Attention`).
#[derive(Debug)]
pub(in crate::model) struct Attention {
    pub spec: AttentionSpec,
    /// Queries (with gated attention, query and gate per head), keys and values.
    pub qkv: Projections<3>,
    /// Output projection; applied by the decoder.
    pub o: Projection,
    pub qk_norm: Option<(RmsNorm, RmsNorm)>,
    /// One logit per head.
    pub sinks: Option<Sinks>,
    pub kernel: AttentionKernel,
    /// bf16 products with f32 hidden states.
    pub half: bool,
}

impl Attention {
    /// (l, hidden) -> (l, heads * head_dim), before the output projection. `rope`: the tokens' rotary table.
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
            (both.narrow(2, 0, head_dim)?, Some(gate))
        } else {
            (q, None)
        };
        let (mut k, v) = (k, v.reshape((l, kv_heads, head_dim))?);

        // 2. Normalise queries and keys, whole or per head, and rotate them: in one call if they are still adjacent.
        let heads_of_k = |k: &Tensor| k.reshape((l, kv_heads, head_dim));
        let heads_of_q = |q: Tensor| match q.rank() {
            3 => Ok(q),
            _ => q.reshape((l, heads, head_dim)),
        };
        match (&self.qk_norm, whole.filter(|_| !gated)) {
            (Some(norms), _) if self.spec.qk_norm == QkNorm::PerHead => {
                [q, k] = rope.apply_normed(&heads_of_q(q)?, &heads_of_k(&k)?, norms)?;
            }
            (None, Some(all)) => {
                let both = all.narrow(1, 0, (heads + kv_heads) * head_dim)?;
                let both = rope.apply(&both.reshape((l, heads + kv_heads, head_dim))?)?;
                (q, k) = (both.narrow(1, 0, heads)?, both.narrow(1, heads, kv_heads)?);
            }
            (norms, _) => {
                if let Some((q_norm, k_norm)) = norms {
                    (q, k) = (q_norm.forward(&q)?, k_norm.forward(&k)?);
                }
                (q, k) = (rope.apply(&heads_of_q(q)?)?, rope.apply(&heads_of_k(&k)?)?);
            }
        }

        q = rope.scale_queries(q)?;

        // 3. Append keys and values, and attend: (l, heads, head_dim).
        let site = Site {
            layer,
            // Set by the KV view.
            offset: 0,
            first_key: 0,
            scale: self.spec.scale,
            window: self.spec.window,
            // No supported architecture has a soft cap; kernels and observer support it.
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

        // 4. Gate.
        if let Some(gate) = gate {
            out = bfloat::to_dtype(&out, gate.dtype())?;
            out = (out * gate)?;
        }
        Ok(out)
    }
}
