//! The gated feed-forward block.

use candle_core::{Result, Tensor};

use super::{Linear, Phase};
use crate::model::Activation;

/// down(activation(gate(x), up(x))) (transformers, `LlamaMLP`, `Gemma3MLP`, and one expert of `GptOssExperts`).
#[derive(Debug)]
pub(in crate::model) struct Mlp {
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
    pub activation: Activation,
}

impl Mlp {
    /// (l, hidden) -> (l, hidden)
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        let [gate, up] = Linear::together([&self.gate, &self.up], x, phase)?;
        let gated = match self.activation {
            Activation::Silu => (gate.silu()? * up)?,
            // Candle's `gelu` is the tanh approximation.
            Activation::GeluTanh => (gate.gelu()? * up)?,
            Activation::Clamped { alpha, limit } => {
                let gate = gate.minimum(limit)?;
                let up = up.clamp(-limit, limit)?;
                let glu = (&gate * candle_nn::ops::sigmoid(&(&gate * alpha)?)?)?;
                ((up + 1.0)? * glu)?
            }
        };
        self.down.forward(&gated, phase)
    }
}
