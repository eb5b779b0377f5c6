//! Keys that a cache eviction kept.

use candle_core::{Result, Tensor};
use ndarray::Array3;

/// Keys of one layer that an eviction kept. Rows from `from` on see these and the keys from `from` on; earlier rows see all.
#[derive(Debug)]
pub struct Kept {
    /// The first row after the eviction; only earlier keys were evicted.
    pub from: usize,
    /// One entry per key/value head.
    pub heads: Vec<KeptHead>,
}

/// Kept keys of one key/value head.
#[derive(Debug)]
pub struct KeptHead {
    /// Ascending positions, all before [`Kept::from`].
    pub positions: Vec<u32>,
    /// (1, positions, head_dim), rotated as they were.
    pub k: Tensor,
    /// As `k`.
    pub v: Tensor,
}

/// Share of each span's keys that were kept: f32 `[layers that evict, kv_heads, spans]`, with the layers' indices.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptShares {
    /// Decoder layers whose keys were evicted, ascending.
    pub layers: Vec<usize>,
    /// f32 `[layers, kv_heads, spans]`; NaN for spans without a key before the eviction.
    pub shares: Array3<f32>,
}

/// Two evictions are equal if they are the same one.
impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Kept {}

impl KeptHead {
    /// Place of each of the ascending `borders` among the head's kept keys and those from `from` on.
    pub(super) fn borders(&self, borders: &[usize], from: usize) -> Vec<usize> {
        let place = |border: &usize| match border.checked_sub(from) {
            Some(after) => self.positions.len() + after,
            None => self.positions.partition_point(|&position| (position as usize) < *border),
        };
        borders.iter().map(place).collect()
    }

    /// The head's kept keys, or values, and its part of the later ones `own`, (kv_heads, n, head_dim).
    pub(super) fn with(&self, kept: &Tensor, own: &Tensor, head: usize) -> Result<Tensor> {
        Tensor::cat(&[kept, &own.narrow(0, head, 1)?], 1)
    }
}
