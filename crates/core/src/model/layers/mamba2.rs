//! Mamba-2 block: projections, causal convolution, decaying state, gated norm, output projection.

use std::ops::Range;

use candle_core::{DType, Result, Tensor};

use super::delta_rule::{self, Inputs};
use super::{Convolution, Phase, Projection};
use crate::attention::delta::Rule;
use crate::attention::{DeltaSite, Event, Observer, Point};
use crate::fused;
use crate::model::cache::LayerState;
use crate::model::kv_view::KvView;
use crate::model::{DeltaNetSpec, Mamba2Spec};

/// Mamba-2 (transformers, `NemotronHMamba2Mixer`, `GraniteMoeHybridMambaLayer`). Projections use the model's dtype, the rest f32.
///
/// The output of a head at token t, before its skip, gate and norm, is the sum over s <= t of a_ts x_s with
/// a_ts = dt_s (C_t . B_s) e^(sum of -e^`A_log` dt over s + 1..=t): observers see B as keys, C as queries and dt as strengths.
#[derive(Debug)]
pub(in crate::model) struct Mamba2 {
    pub spec: Mamba2Spec,
    /// Gate (values); x (values), B and C (keys each); time steps (value_heads).
    pub inputs: Projection,
    pub conv: Convolution,
    /// (value_heads), f32: -e^`A_log`.
    pub rate: Tensor,
    /// (value_heads), f32: 1.
    pub ones: Tensor,
    /// (value_heads), f32.
    pub dt_bias: Tensor,
    /// Factor of x that is added to the output, (value_heads), f32.
    pub skip: Tensor,
    /// (values), f32.
    pub norm: Tensor,
    /// (values / key_heads), f32: 1.
    pub group: Tensor,
    pub eps: f64,
    /// values -> hidden; applied by the decoder.
    pub out: Projection,
}

struct Projected {
    /// (l, channels)
    xbc: Tensor,
    /// Time steps, (l, value_heads), f32.
    step: Tensor,
    /// Log decays, (l, value_heads), f32.
    g: Tensor,
}

impl Projected {
    fn narrow(&self, rows: &Range<usize>) -> Result<Projected> {
        let part = |x: &Tensor| x.narrow(0, rows.start, rows.len());
        Ok(Projected { xbc: part(&self.xbc)?, step: part(&self.step)?, g: part(&self.g)? })
    }
}

impl Mamba2 {
    /// (l, hidden) -> (l, values), gated and normalised, before the output projection.
    pub fn forward(&self, layer: usize, x: &Tensor, kv: &mut KvView<'_>, phase: Phase) -> Result<Tensor> {
        let heads = self.spec.heads;
        let all = self.inputs.forward(x, phase)?;
        let z = all.narrow(1, 0, heads.values())?;
        let xbc = all.narrow(1, heads.values(), heads.channels())?;
        let dt = all.narrow(1, heads.values() + heads.channels(), heads.value_heads)?;
        let step = fused::decay(&dt, &self.dt_bias, &self.ones)?.maximum(self.spec.least_step)?;
        let g = step.broadcast_mul(&self.rate)?;
        let projected = Projected { xbc, step, g };
        let out = kv.advance_states(layer, x.dim(0)?, |rows, site, state, observer| {
            self.read(site, &projected.narrow(&rows)?, state, phase, observer)
        })?;
        self.close(&z, &out)
    }

    /// Advances the state by l consecutive tokens: (l, value_heads, value_dim) f32.
    fn read(
        &self,
        site: &DeltaSite,
        Projected { xbc, step, g }: &Projected,
        state: &LayerState,
        phase: Phase,
        observer: &mut dyn Observer,
    ) -> Result<(Tensor, LayerState)> {
        let DeltaNetSpec { key_heads, value_heads, key_dim, value_dim, .. } = self.spec.heads;
        let (l, values, keys) = (xbc.dim(0)?, self.spec.heads.values(), self.spec.heads.keys());
        let Some(memory) = &state.memory else { candle_core::bail!("This is a bug: Mamba-2 without memory") };
        let (mixed, conv) = self.conv.forward(xbc, &state.conv)?;
        let v = mixed.narrow(1, 0, values)?.to_dtype(DType::F32)?.reshape((l, value_heads, value_dim))?;
        let part = |start| mixed.narrow(1, start, keys)?.reshape((l, key_heads, key_dim));
        let (k, q) = (part(values)?, part(values + keys)?);
        let rule = Rule::Mamba2;
        if observer.wants(Point::LinearAttention(site)).inputs {
            observer.observe(Event::LinearAttention { site, rule, q: &q, k: &k, g, beta: step })?;
        }
        let skipped = v.broadcast_mul(&self.skip.reshape((1, value_heads, 1))?)?;
        let (q, k) = (rule.read(&q, 1.0)?, rule.read(&k, 1.0)?);
        let inputs = Inputs { rule, q, k, v, g: g.clone(), beta: step.clone() };
        let (out, memory) = delta_rule::advance(&inputs, memory, phase)?;
        Ok(((out + skipped)?, LayerState { conv, memory: Some(memory) }))
    }

    /// Gates the output (l, value_heads, value_dim) by `z` (l, values) and normalises it by groups.
    fn close(&self, z: &Tensor, out: &Tensor) -> Result<Tensor> {
        let (l, values) = z.dims2()?;
        let gated = (out.reshape((l, values))? * z.to_dtype(DType::F32)?.silu()?)?;
        let groups = gated.reshape((l, self.spec.heads.key_heads, values / self.spec.heads.key_heads))?;
        let normed = fused::rms_norm(&groups, &self.group, self.eps as f32)?.reshape((l, values))?;
        normed.broadcast_mul(&self.norm)?.to_dtype(z.dtype())
    }
}
