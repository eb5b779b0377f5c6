//! Softmax attention block: projections, norms, rotary embedding, KV cache, gate, output projection.

use candle_core::{DType, Result, Tensor};

use super::projections::{Outputs, Projections};
use super::{Phase, Projection, RmsNorm, Rope};
use crate::attention::{AttentionKernel, Holes, Sinks, Site};
use crate::model::kv_view::KvView;
use crate::model::{AttentionSpec, OutputGate, QkNorm};
use crate::{bfloat, transfer};

/// Grouped-query attention (transformers, `LlamaAttention`; depending on the spec also `Qwen3Attention`, `Qwen3_5Attention`,
/// `Gemma3Attention`, `Gemma4TextAttention`, `GptOssAttention`, `Glm4MoeAttention`, `MiniMaxM2Attention`, `Lfm3Attention`).
#[derive(Debug)]
pub(in crate::model) struct Attention {
    pub spec: AttentionSpec,
    pub inputs: Inputs,
    /// Of [`OutputGate::PerHead`]: hidden -> heads.
    pub gate: Option<Projection>,
    /// Output projection; applied by the decoder.
    pub o: Projection,
    pub qk_norm: Option<(RmsNorm, RmsNorm)>,
    pub value_norm: Option<RmsNorm>,
    /// One logit per head.
    pub sinks: Option<Sinks>,
    pub kernel: AttentionKernel,
    /// bf16 products with f32 hidden states.
    pub half: bool,
}

/// Projections of the input, by [`crate::model::KeyValues`].
#[derive(Debug)]
pub(in crate::model) enum Inputs {
    /// Queries (with an elementwise gate, query and gate per head), keys and values.
    Qkv(Projections<3>),
    /// Queries, and keys that are also the values.
    Qk(Projections<2>),
    /// Queries alone, and their norm.
    Q(Projection, Option<RmsNorm>),
}

/// A pass's new keys and values of a layer, both (l, kv_heads, head_dim).
pub(in crate::model) type NewKeys = [Tensor; 2];

impl Attention {
    /// (l, hidden) -> (l, heads * head_dim), before the output projection, and the new keys and values. `rope`: the tokens' rotary table;
    /// `shared`: the new keys and values of the layer that this one shares them with.
    pub fn forward(
        &self,
        layer: usize,
        x: &Tensor,
        (rope, shared): (&Rope, Option<&NewKeys>),
        kv: &mut KvView<'_>,
        phase: Phase,
    ) -> Result<(Tensor, NewKeys)> {
        let AttentionSpec { heads, kv_heads, head_dim, .. } = self.spec;
        let l = x.dim(0)?;

        // 1. Project: (l, heads or kv_heads, head_dim), and the gate (l, heads * head_dim).
        let (q, own, whole) = match &self.inputs {
            Inputs::Qkv(maps) => {
                let Outputs { parts: [q, k, v], whole } = maps.forward(x, phase)?;
                (q, Some((k, v)), whole)
            }
            Inputs::Qk(maps) => {
                let [q, k] = maps.forward(x, phase)?.parts;
                (q, Some((k.clone(), k)), None)
            }
            Inputs::Q(map, _) => (map.forward(x, phase)?, None, None),
        };
        let elementwise = self.spec.gate == OutputGate::Elementwise;
        let (mut q, gate) = if elementwise {
            let both = q.reshape((l, heads, 2 * head_dim))?;
            let gate = both.narrow(2, head_dim, head_dim)?.contiguous()?.reshape((l, heads * head_dim))?;
            (both.narrow(2, 0, head_dim)?, Some(candle_nn::ops::sigmoid(&gate)?))
        } else {
            let of_heads = |map: &Projection| {
                let gate = candle_nn::ops::sigmoid(&map.forward(x, phase)?)?; // (l, heads)
                let wide = gate.unsqueeze(2)?.broadcast_as((l, heads, head_dim))?;
                wide.contiguous()?.reshape((l, heads * head_dim))
            };
            (q, self.gate.as_ref().map(of_heads).transpose()?)
        };

        // 2. Normalise queries and keys, whole or per head, and rotate them: in one call if they are still adjacent.
        let heads_of_k = |k: &Tensor| k.reshape((l, kv_heads, head_dim));
        let heads_of_q = |q: Tensor| match q.rank() {
            3 => Ok(q),
            _ => q.reshape((l, heads, head_dim)),
        };
        let own = match (own, &self.qk_norm, whole.filter(|_| !elementwise)) {
            (Some((k, v)), Some(norms), _) if self.spec.qk_norm == QkNorm::PerHead => {
                let [turned, k] = rope.apply_normed(&heads_of_q(q)?, &heads_of_k(&k)?, norms)?;
                q = turned;
                Some((k, v))
            }
            (Some((_, v)), None, Some(all)) => {
                let both = all.narrow(1, 0, (heads + kv_heads) * head_dim)?;
                let both = rope.apply(&both.reshape((l, heads + kv_heads, head_dim))?)?;
                q = both.narrow(1, 0, heads)?;
                Some((both.narrow(1, heads, kv_heads)?, v))
            }
            (Some((mut k, v)), norms, _) => {
                if let Some((q_norm, k_norm)) = norms {
                    (q, k) = (q_norm.forward(&q)?, k_norm.forward(&k)?);
                }
                q = rope.apply(&heads_of_q(q)?)?;
                Some((rope.apply(&heads_of_k(&k)?)?, v))
            }
            (None, ..) => {
                q = heads_of_q(q)?;
                if let Inputs::Q(_, Some(norm)) = &self.inputs {
                    q = norm.forward(&q)?;
                }
                q = rope.apply(&q)?;
                None
            }
        };
        let new = match (own, shared) {
            (Some((k, v)), _) => {
                let v = v.reshape((l, kv_heads, head_dim))?;
                [k, self.value_norm.as_ref().map_or(Ok(v.clone()), |norm| norm.forward(&v))?]
            }
            (None, Some(shared)) => shared.clone(),
            (None, None) => candle_core::bail!("This is a bug: layer {layer} got no keys to share"),
        };

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
        if let Some(gate) = &gate {
            kv.show_gate(gate)?;
        }
        if self.half {
            q = bfloat::to_dtype(&q, DType::BF16)?;
        }
        // Where shared keys are on another device, so is the attention.
        q = transfer::moved(&q, new[0].device())?;
        let out = kv.attend(&q, &new[0], &new[1], site)?.reshape((l, heads * head_dim))?;
        let mut out = transfer::moved(&out, x.device())?;

        // 4. Gate.
        if let Some(gate) = gate {
            out = bfloat::to_dtype(&out, gate.dtype())?;
            out = (out * gate)?;
        }
        Ok((out, new))
    }
}
