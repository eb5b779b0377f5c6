//! The kernel trait and the rows of its sums.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};

use crate::attention::call::{Attended, Call};
use crate::attention::{AttentionShape, Site};

/// A kernel family. [`AttentionKernel`](crate::attention::AttentionKernel) decides which calls it gets.
pub trait Kernel: Sync {
    fn name(&self) -> &'static str;

    fn attend(&self, call: Call<'_>) -> Result<Attended>;

    /// True if a call may have several rows per tail behind a prefix.
    fn takes_rows_after_prefix(&self) -> bool {
        false
    }

    /// True if attention of this shape agrees with matrix products on the device; tested on first use.
    fn agrees(&self, _device: &Device, _shape: &AttentionShape) -> Result<bool> {
        Ok(true)
    }

    /// Sums over rows of each head's softmax weight on the sinks and each segment: (heads, 1 + segments). f64 on the CPU; f32 on other
    /// devices, where the result stays.
    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor>;
}

/// Rows of a chunk and the segments to sum over.
pub struct RowSums<'a> {
    pub site: &'a Site,
    /// Relative to `site.offset`.
    pub rows: Range<usize>,
    /// Ascending: segment s is `bounds[s]..bounds[s + 1]`.
    pub bounds: &'a [usize],
}

impl RowSums<'_> {
    pub fn positions(&self) -> Vec<usize> {
        self.rows.clone().map(|row| self.site.offset + row).collect()
    }

    pub fn segments(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }
}

/// Reduction of a key's weights over rows to one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverRows {
    Sum,
    Largest,
}

impl OverRows {
    pub fn merge(self, key: &mut f32, weights: impl Iterator<Item = f32>) {
        match self {
            OverRows::Sum => *key += weights.sum::<f32>(),
            OverRows::Largest => *key = weights.fold(*key, f32::max),
        }
    }

    /// Merges f32 (heads, keys) of further rows.
    pub fn merged(self, one: &Tensor, other: &Tensor) -> Result<Tensor> {
        match self {
            OverRows::Sum => one + other,
            OverRows::Largest => one.maximum(other),
        }
    }
}
