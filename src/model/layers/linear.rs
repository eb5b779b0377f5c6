//! Linear maps, dense or quantised.

use candle_core::{Result, Tensor};

use super::{GroupedInt8, Phase};
use crate::stats;

/// y = x W^T (+ b). On the CPU a quantised weight is kept twice: repacked as it is in the file for decoding, where reading
/// it is what takes time, and dequantised for prefill, where multiplying is.
#[derive(Debug)]
pub(in crate::model) struct Linear {
    /// (out, in)
    dense: Tensor,
    quantised: Option<GroupedInt8>,
    /// (out)
    bias: Option<Tensor>,
}

impl Linear {
    pub fn new(dense: Tensor, quantised: Option<GroupedInt8>, bias: Option<Tensor>) -> Self {
        Linear { dense, quantised, bias }
    }

    /// (l, in) -> (l, out)
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        let _span = stats::linear();
        let y = match (&self.quantised, phase) {
            (Some(weight), Phase::Decode) => weight.forward(x)?,
            _ => x.matmul(&self.dense.t()?)?,
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}
