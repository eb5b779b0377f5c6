//! The kernels behind the door, and which of them serves which tensors.

use std::fmt;

use candle_core::{DType, Device, Result, Tensor};

use super::Site;
use crate::transfer;

pub(super) mod chunked;
pub(super) mod cpu;
#[cfg(feature = "flash-attn")]
pub(super) mod flash;
mod read_sums;
mod segment_sums;
pub(super) mod small_matmul;
#[cfg(test)]
mod tests;

pub(super) use read_sums::ValueSums;
pub(super) use segment_sums::SegmentSums;

/// A kernel family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    /// Blocked streaming softmax on f32 slices.
    Cpu,
    /// Matrix products over blocks of rows, on any device and dtype, with the softmax of [`crate::fused`].
    Chunked,
    /// Fused kernels for half precision on CUDA.
    #[cfg(feature = "flash-attn")]
    Flash,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Cpu => "blocked streaming softmax (CPU, f32)",
            Backend::Chunked => "chunked matrix products",
            #[cfg(feature = "flash-attn")]
            Backend::Flash => "FlashAttention 2 (CUDA)",
        })
    }
}

/// The kernel family that sums attention of tensors on `device` in `dtype` into segments.
pub(super) fn choose(device: &Device, dtype: DType) -> Backend {
    if transfer::cpu_kernels(device) && dtype == DType::F32 { Backend::Cpu } else { Backend::Chunked }
}

/// The kernel family for attention itself, of heads of `head_dim`.
#[cfg(feature = "flash-attn")]
pub(super) fn choose_forward(device: &Device, dtype: DType, head_dim: usize, site: &Site) -> Backend {
    if flash_serves(device.is_cuda(), dtype, head_dim, site) { Backend::Flash } else { choose(device, dtype) }
}

/// The kernel family for attention itself.
#[cfg(not(feature = "flash-attn"))]
pub(super) fn choose_forward(device: &Device, dtype: DType, _head_dim: usize, _site: &Site) -> Backend {
    choose(device, dtype)
}

/// Whether FlashAttention 2 computes what a site asks for: half precision on CUDA, heads that its kernels are built for,
/// causal with or without a window, and neither sinks nor a soft cap nor keys that are hidden.
#[cfg(any(feature = "flash-attn", test))]
pub(super) fn flash_serves(cuda: bool, dtype: DType, head_dim: usize, site: &Site) -> bool {
    cuda && matches!(dtype, DType::F16 | DType::BF16)
        && head_dim <= 256
        && head_dim.is_multiple_of(8)
        && site.sinks.is_none()
        && site.softcap.is_none()
        && site.holes.is_empty()
}

/// The softmax weights of one row of this chunk (relative to `site.offset`) over the keys held, one vector a head.
pub(super) fn row_weights(q: &Tensor, k: &Tensor, site: &Site, row: usize) -> Result<Vec<Vec<f32>>> {
    chunked::row_weights(q, k, site, row)
}

/// What the query rows `rows` of this chunk (relative to `site.offset`) read of each segment, whose ascending borders are `bounds`.
/// `lengths` is f32 (heads, keys). All weights of the rows over a block of keys are held at once: ask for few rows at a time.
pub(super) fn value_sums(
    qkv: (&Tensor, &Tensor, &Tensor),
    lengths: Option<&Tensor>,
    site: &Site,
    rows: std::ops::Range<usize>,
    bounds: &[usize],
) -> Result<ValueSums> {
    // 16 Mi scores are 64 MiB.
    let size = chunked::Blocks { scores: 16 << 20, ..chunked::BLOCKS };
    chunked::value_sums(qkv, lengths, site, rows, bounds, size)
}

/// Sums, over the query rows `rows` of this chunk (relative to `site.offset`), of the softmax weight that each head
/// pays to the sinks and to each segment: (heads, 1 + segments), f64 on the CPU, f32 on other devices, where the sums stay.
/// `bounds` are the ascending borders of the segments: segment s is `bounds[s]..bounds[s + 1]`.
pub(super) fn segment_sums(
    q: &Tensor,
    k: &Tensor,
    site: &Site,
    rows: std::ops::Range<usize>,
    bounds: &[usize],
) -> Result<Tensor> {
    match choose(q.device(), q.dtype()) {
        Backend::Cpu => cpu::segment_sums(q, k, site, rows, bounds)?.tensor(),
        _ => chunked::segment_sums(q, k, site, rows, bounds, chunked::BLOCKS_OF_SUMS),
    }
}
