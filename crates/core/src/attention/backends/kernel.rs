//! A family of kernels, and the rows that its sums are over.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};

use crate::attention::call::{Attended, Call};
use crate::attention::{AttentionShape, Site};

/// A kernel family. Its methods serve what the pure functions of [`AttentionKernel`](crate::attention::AttentionKernel) give it.
pub trait Kernel: Sync {
    /// A name for the log.
    fn name(&self) -> &'static str;

    /// Attention of a call's rows.
    fn attend(&self, call: Call<'_>) -> Result<Attended>;

    /// True where a call may have several rows for each of its tails behind a prefix.
    fn takes_rows_after_prefix(&self) -> bool {
        false
    }

    /// True where its attention of layers of this shape comes out on the device as by products; tried there the first time.
    fn agrees(&self, _device: &Device, _shape: &AttentionShape) -> Result<bool> {
        Ok(true)
    }

    /// Sums, over rows, of the softmax weight that each head pays to the sinks and to each segment: (heads, 1 + segments), f64 on
    /// the CPU, f32 on other devices, where the sums stay.
    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor>;
}

/// Rows of a chunk, and the segments of keys that something of them is summed over.
pub struct RowSums<'a> {
    pub site: &'a Site,
    /// Relative to `site.offset`.
    pub rows: Range<usize>,
    /// The ascending borders of the segments: segment s is `bounds[s]..bounds[s + 1]`.
    pub bounds: &'a [usize],
}

impl RowSums<'_> {
    /// The positions of the rows.
    pub fn positions(&self) -> Vec<usize> {
        self.rows.clone().map(|row| self.site.offset + row).collect()
    }

    pub fn segments(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }
}
