//! The softmax of rows after some of their keys.

use candle_core::Tensor;

/// The running maximum and sum of rows after some of their keys, all (kv_heads, group * r, 1) in f32.
#[derive(Debug, Clone)]
pub(crate) struct OnlineSoftmax {
    /// The greatest score.
    pub max: Tensor,
    /// The sum of e^(score - max).
    pub sum: Tensor,
    /// The factor of sums of before the last block, e^(max before - max); `None` for the first block.
    pub rescale: Option<Tensor>,
}
