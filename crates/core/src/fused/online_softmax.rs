//! Softmax state of rows after some of their keys.

use candle_core::Tensor;

/// Running maximum and sum; all (kv_heads, group * r, 1), f32.
#[derive(Debug, Clone)]
pub(crate) struct OnlineSoftmax {
    pub max: Tensor,
    /// Sum of e^(score - max).
    pub sum: Tensor,
    /// Factor for sums before the last block, e^(earlier max - max); `None` for the first block.
    pub rescale: Option<Tensor>,
}
