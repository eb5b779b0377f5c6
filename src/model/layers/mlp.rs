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
        let gated = self.activation.gated(gate, &up)?;
        self.down.forward(&gated, phase)
    }
}
