//! The feed-forward block.

use candle_core::{Result, Tensor};

use super::{Phase, Projection, Projections};
use crate::model::Activation;
use crate::transfer;

/// down(activation(gate(x), up(x))), or down(activation(up(x))) (transformers, `LlamaMLP`, `Gemma3MLP`, one expert of
/// `GptOssExperts`, `NemotronHMLP`).
#[derive(Debug)]
pub(in crate::model) struct Mlp {
    inputs: Inputs,
    pub down: Projection,
    pub activation: Activation,
}

#[derive(Debug)]
enum Inputs {
    GateUp(Box<Projections<2>>),
    Up(Projection),
}

impl Mlp {
    /// `gate`: if the activation has one.
    pub fn new(
        gate: Option<Projection>,
        up: Projection,
        down: Projection,
        activation: Activation,
    ) -> Result<Self> {
        let inputs = match gate {
            Some(gate) => Inputs::GateUp(Box::new(Projections::new([gate, up])?)),
            None => Inputs::Up(up),
        };
        Ok(Mlp { inputs, down, activation })
    }

    /// Gate and up as one map, where they are.
    pub fn gate_up(&self) -> Option<&Projection> {
        match &self.inputs {
            Inputs::GateUp(gate_up) => gate_up.whole(),
            Inputs::Up(_) => None,
        }
    }

    /// Input of `down`: (l, hidden) -> (l, intermediate).
    pub fn inner(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        // Decode repeats the same shapes.
        let _layouts = if x.dim(0)? == 1 { transfer::keep_layouts(x.device()) } else { None };
        match &self.inputs {
            Inputs::GateUp(gate_up) => {
                let [gate, up] = gate_up.forward(x, phase)?.parts;
                self.activation.gated(gate, &up)
            }
            Inputs::Up(up) => up.forward(x, phase)?.relu()?.sqr(),
        }
    }

    /// (l, hidden) -> (l, hidden)
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        self.down.forward(&self.inner(x, phase)?, phase)
    }
}
