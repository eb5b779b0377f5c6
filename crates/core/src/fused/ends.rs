//! How rows of scores stand after some of their keys.

use candle_core::{Result, Tensor};

/// What rows have seen so far, all (kv_heads, group * r, 1) in f32.
#[derive(Debug, Clone)]
pub(crate) struct Ends {
    /// The greatest score.
    pub max: Tensor,
    /// The sum of e^(score - max).
    pub sum: Tensor,
    /// What sums of before the last block are multiplied by, e^(max before - max); `None` for the first block.
    pub factor: Option<Tensor>,
}

impl Ends {
    /// Of a tensor (2 or 3, kv_heads, group * r, 1) of all of them.
    pub(super) fn of(all: &Tensor) -> Result<Self> {
        let factor = if all.dim(0)? > 2 { Some(all.get(2)?) } else { None };
        Ok(Ends { max: all.get(0)?, sum: all.get(1)?, factor })
    }
}
