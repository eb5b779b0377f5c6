//! The gated feed-forward block.

use candle_core::{Result, Tensor};

use super::{Linear, Phase};

/// down(silu(gate(x)) * up(x)) (transformers, `LlamaMLP`).
#[derive(Debug)]
pub(in crate::model) struct Mlp {
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

impl Mlp {
    /// (l, hidden) -> (l, hidden)
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        let gated = (self.gate.forward(x, phase)?.silu()? * self.up.forward(x, phase)?)?;
        self.down.forward(&gated, phase)
    }
}
