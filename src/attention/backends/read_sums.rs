//! What rows read of segments of keys, beside how much weight they give them.

use candle_core::Tensor;

/// What rows read of segments of keys.
pub struct ValueSums {
    /// The sums over the segment's keys j of the weight A_ij times the value v_j, f32 (heads, segments, rows, head_dim).
    pub read: Tensor,
    /// The sums of A_ij times a length of key j, f32 (heads, segments, rows); zeros where no lengths are given.
    pub long: Tensor,
}
