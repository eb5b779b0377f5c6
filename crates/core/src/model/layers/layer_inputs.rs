//! Per-layer embeddings: what each layer adds of a second embedding of the token.

use candle_core::{Result, Tensor};

use super::{Embedding, Phase, Projection, RmsNorm};
use crate::model::Activation;

/// The second embedding, which holds a part for every layer (transformers, `get_per_layer_inputs` and `project_per_layer_inputs` of
/// `Gemma4TextModel`).
#[derive(Debug)]
pub(in crate::model) struct LayerEmbeddings {
    /// (vocab, layers * width)
    pub rows: Embedding,
    /// Of the first embedding: hidden -> layers * width.
    pub projection: Projection,
    /// Of a layer's part of the projection.
    pub norm: RmsNorm,
    pub width: usize,
    /// Scale of the rows: the root of the width, rounded to the weights' dtype.
    pub scale: f64,
}

impl LayerEmbeddings {
    /// `x`: the tokens' first embeddings, (l, hidden). Returns (l, layers, width).
    pub fn of(&self, tokens: &[u32], x: &Tensor, phase: Phase) -> Result<Tensor> {
        let (l, hidden) = x.dims2()?;
        let projected = (self.projection.forward(x, phase)? * (hidden as f64).powf(-0.5))?;
        let projected = self.norm.forward(&projected.reshape((l, (), self.width))?)?;
        let rows = (self.rows.of(tokens, x.dtype())? * self.scale)?.reshape(projected.dims())?;
        (projected + rows)? * std::f64::consts::FRAC_1_SQRT_2
    }
}

/// A layer's part of it (transformers, the end of `Gemma4TextDecoderLayer.forward`).
#[derive(Debug)]
pub(in crate::model) struct LayerInput {
    /// hidden -> width
    pub gate: Projection,
    /// width -> hidden
    pub out: Projection,
    /// Of the output.
    pub norm: RmsNorm,
    pub activation: Activation,
}

impl LayerInput {
    /// The term that it adds to the residual stream `x` (l, hidden), by the layer's part `input` (l, width).
    pub fn forward(&self, x: &Tensor, input: &Tensor, phase: Phase) -> Result<Tensor> {
        let gated = self.activation.gated(self.gate.forward(x, phase)?, input)?;
        self.norm.forward(&self.out.forward(&gated, phase)?)
    }
}
