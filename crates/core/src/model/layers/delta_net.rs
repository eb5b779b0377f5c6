//! Gated DeltaNet block: projections, causal convolution, gated delta rule, gated norm, output projection.

use std::ops::Range;

use candle_core::{DType, Result, Tensor};

use super::delta_rule::{self, Inputs};
use super::{Convolution, Phase, Projection, Projections};
use crate::attention::delta::{Rule, normalised_by};
use crate::attention::{DeltaSite, Event, Observer, Point};
use crate::fused;
use crate::model::DeltaNetSpec;
use crate::model::cache::LayerState;
use crate::model::kv_view::KvView;

/// Gated delta rule linear attention (transformers, `Qwen3_5GatedDeltaNet`). Projections use the model's dtype, the rest f32.
#[derive(Debug)]
pub(in crate::model) struct DeltaNet {
    pub spec: DeltaNetSpec,
    /// Queries, keys and values (channels); output gate (values); write strength and decay (value_heads each).
    pub inputs: Projections<4>,
    pub conv: Convolution,
    /// (value_heads), f32: -e^`A_log`.
    pub rate: Tensor,
    /// RMS-norm factors that give queries norm key_dim^-0.5 and keys norm 1, (key_dim) each, f32.
    pub norms: [Tensor; 2],
    /// (value_heads), f32.
    pub dt_bias: Tensor,
    /// (value_dim), f32.
    pub norm: Tensor,
    pub eps: f64,
    /// values -> hidden; applied by the decoder.
    pub out: Projection,
}

struct Projected {
    /// (l, channels)
    qkv: Tensor,
    /// Log decays, (l, value_heads), f32.
    g: Tensor,
    /// Write strengths, (l, value_heads), f32.
    beta: Tensor,
}

impl Projected {
    fn narrow(&self, rows: &Range<usize>) -> Result<Projected> {
        let part = |x: &Tensor| x.narrow(0, rows.start, rows.len());
        Ok(Projected { qkv: part(&self.qkv)?, g: part(&self.g)?, beta: part(&self.beta)? })
    }
}

impl DeltaNet {
    /// (l, hidden) -> (l, values), normalised and gated, before the output projection.
    pub fn forward(&self, layer: usize, x: &Tensor, kv: &mut KvView<'_>, phase: Phase) -> Result<Tensor> {
        let (projected, z) = self.project(x, phase)?;
        let out = kv.advance_states(layer, x.dim(0)?, |rows, site, state, observer| {
            self.read(site, &projected.narrow(&rows)?, state, phase, observer)
        })?;
        self.close(&z, &out)
    }

    /// Projects (l, hidden) to the rule's inputs and the gate (l, values).
    fn project(&self, x: &Tensor, phase: Phase) -> Result<(Projected, Tensor)> {
        let [qkv, z, b, a] = self.inputs.forward(x, phase)?.parts;
        let beta = candle_nn::ops::sigmoid(&b.to_dtype(DType::F32)?)?;
        let g = fused::decay(&a, &self.dt_bias, &self.rate)?;
        Ok((Projected { qkv, g, beta }, z))
    }

    /// Advances the state by l consecutive tokens: (l, value_heads, value_dim) f32.
    fn read(
        &self,
        site: &DeltaSite,
        Projected { qkv, g, beta }: &Projected,
        state: &LayerState,
        phase: Phase,
        observer: &mut dyn Observer,
    ) -> Result<(Tensor, LayerState)> {
        let DeltaNetSpec { key_heads, value_heads, key_dim, value_dim, .. } = self.spec;
        let l = qkv.dim(0)?;

        // 1. Causal convolution.
        let Some(memory) = &state.memory else {
            candle_core::bail!("This is a bug: a delta net without memory")
        };
        let (mixed, conv) = self.conv.forward(qkv, &state.conv)?;
        let part = |start, heads, dim| mixed.narrow(1, start, heads * dim)?.reshape((l, heads, dim));
        let q = part(0, key_heads, key_dim)?;
        let k = part(self.spec.keys(), key_heads, key_dim)?;
        let v = mixed.narrow(1, 2 * self.spec.keys(), value_heads * value_dim)?.to_dtype(DType::F32)?;
        let v = v.reshape((l, value_heads, value_dim))?;

        // 2. The rule.
        if observer.wants(Point::LinearAttention(site)).inputs {
            observer.observe(Event::LinearAttention { site, rule: Rule::Delta, q: &q, k: &k, g, beta })?;
        }
        let [of_q, of_k] = &self.norms;
        let (q, k) = (normalised_by(&q, of_q)?, normalised_by(&k, of_k)?);
        let (g, beta) = (g.clone(), beta.clone());
        let (out, memory) =
            delta_rule::advance(&Inputs { rule: Rule::Delta, q, k, v, g, beta }, memory, phase)?;
        Ok((out, LayerState { conv, memory: Some(memory) }))
    }

    /// Normalises each head of the output (l, value_heads, value_dim) and gates it by `z` (l, values).
    fn close(&self, z: &Tensor, out: &Tensor) -> Result<Tensor> {
        let gated = fused::gated_norm(out, &self.norm, self.eps as f32, &z.reshape(out.dims())?)?;
        gated.reshape((z.dim(0)?, self.spec.values()))
    }
}
