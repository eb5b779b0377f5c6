//! Linear maps, dense or quantised.

use candle_core::quantized::QMatMul;
use candle_core::{Module, Result, Tensor};

use super::{GroupedInt8, Phase};

/// y = x W^T (+ b). A quantised weight is kept twice: as in the file for decoding, where reading it is what takes time,
/// and dequantised for prefill, where multiplying is.
#[derive(Debug)]
pub(in crate::model) struct Linear {
    /// (out, in)
    dense: Tensor,
    quantised: Option<Quantised>,
    /// (out)
    bias: Option<Tensor>,
}

/// A weight as it is quantised in the file.
#[derive(Debug)]
pub(in crate::model) enum Quantised {
    /// Block types of one scale for 32 weights.
    Grouped(GroupedInt8),
    /// All others.
    Candle(QMatMul),
}

impl Linear {
    pub fn new(dense: Tensor, quantised: Option<Quantised>, bias: Option<Tensor>) -> Self {
        Linear { dense, quantised, bias }
    }

    /// (l, in) -> (l, out)
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        let y = match (&self.quantised, phase) {
            (Some(Quantised::Grouped(weight)), Phase::Decode) => weight.forward(x)?,
            (Some(Quantised::Candle(weight)), Phase::Decode) => weight.forward(x)?,
            _ => x.matmul(&self.dense.t()?)?,
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}
