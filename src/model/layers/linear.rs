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
            _ => product(x, &self.dense, phase)?,
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

/// x W^T with a dense `weight` (out, in): (l, in) -> (l, out).
///
/// On the CPU the few rows of a decoding step are multiplied one after the other: Candle's product has a fast path for one
/// row, while for a few it is several times slower a row and sums in another order, so that a row's bits would depend on
/// how many others there are.
pub(super) fn product(x: &Tensor, weight: &Tensor, phase: Phase) -> Result<Tensor> {
    let weight = weight.t()?;
    let l = x.dim(0)?;
    if phase == Phase::Prefill || l == 1 || !x.device().is_cpu() {
        return x.matmul(&weight);
    }
    let rows = (0..l).map(|row| x.narrow(0, row, 1)?.matmul(&weight));
    Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 0)
}
