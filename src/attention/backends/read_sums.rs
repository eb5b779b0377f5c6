//! What rows read of segments of keys, beside how much weight they give them.

use candle_core::Tensor;

/// What rows read of segments of keys, by segment.
pub struct ValueSums {
    /// The sums over the segment's keys j of the weight A_ij times the value v_j, f32 (heads, rows, head_dim) each.
    pub read: Vec<Tensor>,
    /// The sums of A_ij times a length of key j, f32 (heads, rows) each; zeros where no lengths are given.
    pub long: Vec<Tensor>,
}
