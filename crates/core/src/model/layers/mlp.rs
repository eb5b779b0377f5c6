//! The gated feed-forward block.

use candle_core::{Result, Tensor};

use super::{Phase, Projection, Projections};
use crate::model::Activation;
use crate::transfer;

/// down(activation(gate(x), up(x))) (transformers, `LlamaMLP`, `Gemma3MLP`, one expert of `GptOssExperts`).
#[derive(Debug)]
pub(in crate::model) struct Mlp {
    gate_up: Projections<2>,
    pub down: Projection,
    pub activation: Activation,
}

impl Mlp {
    pub fn new(gate: Projection, up: Projection, down: Projection, activation: Activation) -> Result<Self> {
        Ok(Mlp { gate_up: Projections::new([gate, up])?, down, activation })
    }

    /// Gate and up as one map, where they are.
    pub fn gate_up(&self) -> Option<&Projection> {
        self.gate_up.whole()
    }

    /// Input of `down`: (l, hidden) -> (l, intermediate).
    pub fn inner(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        // Decode repeats the same shapes.
        let _layouts = if x.dim(0)? == 1 { transfer::keep_layouts(x.device()) } else { None };
        let [gate, up] = self.gate_up.forward(x, phase)?.parts;
        self.activation.gated(gate, &up)
    }

    /// (l, hidden) -> (l, hidden)
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        self.down.forward(&self.inner(x, phase)?, phase)
    }
}
