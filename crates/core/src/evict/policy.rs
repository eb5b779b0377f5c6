//! The trait of the policies, and the keys of a layer that they score.

use std::ops::Range;

use candle_core::{D, DType, Result, Tensor};

use super::collector::Sums;
use crate::model::AttentionSpec;

/// Scores the keys of a history.
pub(super) trait Policy {
    /// Scores of a layer's keys, f32 (kv_heads, keys): the largest stay, and of equal ones the earlier.
    fn scores(&self, layer: &LayerKeys<'_>) -> Result<Tensor>;

    /// Keys that stay under a budget of `budget`: as many, but for policies that evict whole sessions.
    fn kept(&self, budget: usize) -> usize {
        budget
    }
}

/// The keys of a layer before the eviction.
pub(super) struct LayerKeys<'a> {
    pub layer: usize,
    pub spec: &'a AttentionSpec,
    /// (kv_heads, keys, head_dim), rotated.
    pub k: Tensor,
    /// As `k`.
    pub v: Tensor,
    /// The sums that the policy asked for.
    pub read: Option<&'a Sums>,
    /// Rows that were read.
    pub rows: Range<usize>,
}

impl LayerKeys<'_> {
    pub fn keys(&self) -> Result<usize> {
        self.k.dim(1)
    }

    /// Keys and values in f32; of a latent key the value is the part that is not rotated.
    pub fn wide(&self) -> Result<(Tensor, Tensor)> {
        let (k, v) = (self.k.to_dtype(DType::F32)?, self.v.to_dtype(DType::F32)?);
        match self.spec.latent {
            None => Ok((k, v)),
            Some(latent) => Ok((k, v.narrow(2, self.spec.rope.dims, latent.rank)?)),
        }
    }

    /// Sums of the read rows' weights by key: f32 (heads, keys).
    pub fn weights(&self) -> Result<&Tensor> {
        match self.read {
            Some(Sums::Weights(weights)) => Ok(weights),
            _ => candle_core::bail!("This is a bug: no weights were read at layer {}", self.layer),
        }
    }

    /// Mean over the query heads of each key/value head: (heads, keys) -> (kv_heads, keys).
    pub fn by_kv_head(&self, scores: &Tensor) -> Result<Tensor> {
        let (heads, keys) = scores.dims2()?;
        scores.reshape((self.spec.kv_heads, heads / self.spec.kv_heads, keys))?.mean(1)
    }

    /// Puts the keys from the first row read on, of which there are n, above all `scores` (kv_heads, keys - n): KVPress keeps the rows
    /// whose attention it reads. The latest stay first.
    pub fn with_window(&self, scores: &Tensor) -> Result<Tensor> {
        let (heads, scored) = scores.dims2()?;
        let window = self.keys()? - scored;
        if window == 0 {
            return Ok(scores.clone());
        }
        let above = scores.max(D::Minus1)?.max(0)?.unsqueeze(0)?;
        let order = Tensor::arange(1u32, window as u32 + 1, scores.device())?.to_dtype(DType::F32)?;
        let order = order.broadcast_add(&above)?.unsqueeze(0)?.expand((heads, window))?;
        Tensor::cat(&[scores, &order.contiguous()?], 1)
    }

    /// Keys before the first row read.
    pub fn before_window(&self) -> Result<usize> {
        Ok(self.keys()?.min(self.rows.start))
    }
}

/// Positions of the `keep` largest of `scores`, ascending. Of equal scores, the earlier position stays.
pub(super) fn largest(scores: &[f32], keep: usize) -> Vec<u32> {
    let mut positions: Vec<u32> = (0..scores.len() as u32).collect();
    let order = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
    if keep < positions.len() {
        positions.select_nth_unstable_by(keep, order);
        positions.truncate(keep);
    }
    positions.sort_unstable();
    positions
}
