//! Gated short convolution: projections, causal convolution, gates, output projection.

use candle_core::{Result, Tensor};

use super::{Convolution, Phase, Projection};
use crate::model::ShortConvSpec;
use crate::model::cache::LayerState;
use crate::model::kv_view::KvView;

/// r * convolution(w * x) (transformers, `Lfm2ShortConv`). A token's output depends on itself and `taps - 1` tokens before it, through
/// weights of its own in each channel.
#[derive(Debug)]
pub(in crate::model) struct ShortConv {
    pub spec: ShortConvSpec,
    /// Gates w and r, and x, (channels) each.
    pub inputs: Projection,
    pub conv: Convolution,
    /// channels -> hidden; applied by the decoder.
    pub out: Projection,
}

impl ShortConv {
    /// (l, hidden) -> (l, channels), before the output projection.
    pub fn forward(&self, layer: usize, x: &Tensor, kv: &mut KvView<'_>, phase: Phase) -> Result<Tensor> {
        let (l, channels) = (x.dim(0)?, self.spec.channels);
        let inputs = self.inputs.forward(x, phase)?;
        let part = |nth: usize| inputs.narrow(1, nth * channels, channels);
        let written = (part(0)? * part(2)?)?;
        let mixed = kv.advance_states(layer, l, |rows, _, state, _| {
            let (out, conv) = self.conv.forward(&written.narrow(0, rows.start, rows.len())?, &state.conv)?;
            Ok((out, LayerState { conv, memory: None }))
        })?;
        part(1)? * mixed
    }
}
