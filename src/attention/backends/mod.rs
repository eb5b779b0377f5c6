//! The kernels behind the door, and which of them serves which tensors.

use std::fmt;

use candle_core::{DType, Device, Result, Tensor};

#[cfg(any(feature = "cuda", test))]
use super::AttentionKernel;
use super::Site;
use crate::transfer;

pub(super) mod chunked;
pub(super) mod cpu;
#[cfg(feature = "cuda")]
pub(super) mod cuda;
#[cfg(feature = "flash-attn")]
pub(super) mod flash;
mod lengths;
mod segment_sums;
pub(super) mod small_matmul;
#[cfg(test)]
mod tests;

pub(super) use lengths::{Carried, LengthSums};
pub(super) use segment_sums::SegmentSums;

/// A kernel family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    /// Blocked streaming softmax on f32 slices.
    Cpu,
    /// Matrix products over blocks of rows, on any device and dtype, with the softmax of [`crate::fused`].
    Chunked,
    /// Kernels of our own on CUDA.
    #[cfg(feature = "cuda")]
    Fused,
    /// FlashAttention 2 for half precision on CUDA.
    #[cfg(feature = "flash-attn")]
    Flash,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Cpu => "blocked streaming softmax (CPU, f32)",
            Backend::Chunked => "chunked matrix products",
            #[cfg(feature = "cuda")]
            Backend::Fused => "fused kernels (CUDA)",
            #[cfg(feature = "flash-attn")]
            Backend::Flash => "FlashAttention 2 (CUDA)",
        })
    }
}

/// The kernel family that serves tensors on `device` in `dtype` whatever they hold.
pub(super) fn choose(device: &Device, dtype: DType) -> Backend {
    if transfer::cpu_kernels(device) && dtype == DType::F32 { Backend::Cpu } else { Backend::Chunked }
}

/// The kernel family for attention of queries `q` (l, heads, head_dim).
pub(super) fn choose_forward(q: &Tensor, kv_heads: usize, site: &Site) -> Result<Backend> {
    #[cfg(feature = "flash-attn")]
    if matches!(AttentionKernel::chosen(), AttentionKernel::Auto | AttentionKernel::Flash)
        && flash_serves(q.device().is_cuda(), q.dtype(), q.dim(2)?, site)
    {
        return Ok(Backend::Flash);
    }
    choose_branches(q, kv_heads, site)
}

/// The kernel family for one query each of several branches, (branches, heads, head_dim), from which `site` hides nothing
/// that the others see.
pub(super) fn choose_branches(q: &Tensor, kv_heads: usize, site: &Site) -> Result<Backend> {
    #[cfg(feature = "cuda")]
    if fused_serves(AttentionKernel::chosen(), q.device().is_cuda(), q.dtype(), q.dim(2)?, site)
        && is_trusted(q, kv_heads, site)?
    {
        return Ok(Backend::Fused);
    }
    let _ = (kv_heads, site);
    Ok(choose(q.device(), q.dtype()))
}

/// The kernel family that sums attention of queries `q` (l, heads, head_dim) into segments.
fn choose_sums(q: &Tensor, kv_heads: usize, site: &Site) -> Result<Backend> {
    #[cfg(feature = "cuda")]
    if sums_served(AttentionKernel::chosen(), q.device().is_cuda(), q.dtype(), site)
        && is_trusted(q, kv_heads, site)?
    {
        return Ok(Backend::Fused);
    }
    let _ = (kv_heads, site);
    Ok(choose(q.device(), q.dtype()))
}

/// Whether our own kernels may be used: where they are the choice, or have been tried on the card.
#[cfg(feature = "cuda")]
fn is_trusted(q: &Tensor, kv_heads: usize, site: &Site) -> Result<bool> {
    let sums_alone = !fused_serves(AttentionKernel::Fused, true, q.dtype(), q.dim(2)?, site);
    Ok(AttentionKernel::chosen() == AttentionKernel::Fused || cuda::holds(q, kv_heads, site, sums_alone)?)
}

/// Whether our own kernels compute what a site asks for: half precision on CUDA, heads whose rows begin at multiples of
/// 8 bytes and are no wider than the widest kernel, and no keys that are hidden.
#[cfg(any(feature = "cuda", test))]
pub(super) fn fused_serves(
    choice: AttentionKernel,
    cuda: bool,
    dtype: DType,
    head_dim: usize,
    site: &Site,
) -> bool {
    sums_served(choice, cuda, dtype, site)
        && matches!(dtype, DType::F16 | DType::BF16)
        && head_dim <= 256
        && head_dim.is_multiple_of(4)
        // The greatest product is the greatest score.
        && site.scale > 0.0
}

/// Whether our own kernels sum a site's weights into segments.
#[cfg(any(feature = "cuda", test))]
fn sums_served(choice: AttentionKernel, cuda: bool, dtype: DType, site: &Site) -> bool {
    cuda && matches!(choice, AttentionKernel::Auto | AttentionKernel::Fused)
        && matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
        && site.holes.is_empty()
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

/// What the query rows `rows` of this chunk (relative to `site.offset`) read of each segment, whose ascending borders are `bounds`:
/// f32 (heads, segments, rows, head_dim), the sums over its keys j of the weight A_ij times the value v_j. But on the CPU all weights
/// of the rows over a block of keys are held at once: ask for few rows at a time.
pub(super) fn value_sums(
    qkv: (&Tensor, &Tensor, &Tensor),
    site: &Site,
    rows: std::ops::Range<usize>,
    bounds: &[usize],
) -> Result<Tensor> {
    match choose(qkv.0.device(), qkv.0.dtype()) {
        Backend::Cpu => cpu::value_sums(qkv, site, rows, bounds),
        _ => Ok(chunked::value_sums(qkv, None, site, rows, bounds, lengths::BLOCKS)?.read),
    }
}

/// The length of what each head writes of each key: the square root of v^T (W_O^h)^T W_O^h v, f32 (heads, keys). `v`: (kv_heads, keys,
/// head_dim), `gram`: f32 (heads, head_dim, head_dim), the products of each head's output weights with themselves.
pub(super) fn key_lengths(v: &Tensor, gram: &Tensor) -> Result<Tensor> {
    match choose(v.device(), v.dtype()) {
        Backend::Cpu => cpu::key_lengths(v, gram),
        _ => lengths::key_lengths(v, gram),
    }
}

/// Sums, over the query rows `rows` of this chunk (relative to `site.offset`), of the lengths of what they read and write of each of
/// `spans`, which are runs of the segments whose ascending borders are `bounds`.
pub(super) fn length_sums(
    qkv: (&Tensor, &Tensor, &Tensor),
    carried: &Carried<'_>,
    site: &Site,
    rows: std::ops::Range<usize>,
    spans: (&[usize], &[std::ops::Range<usize>]),
) -> Result<LengthSums> {
    match choose(qkv.0.device(), qkv.0.dtype()) {
        Backend::Cpu => cpu::length_sums(qkv, carried, site, rows, spans),
        _ => lengths::length_sums(qkv, carried, site, rows, spans),
    }
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
    match choose_sums(q, k.dim(0)?, site)? {
        Backend::Cpu => cpu::segment_sums(q, k, site, rows, bounds)?.tensor(),
        #[cfg(feature = "cuda")]
        Backend::Fused => cuda::segment_sums(q, k, site, rows, bounds),
        _ => chunked::segment_sums(q, k, site, rows, bounds, chunked::BLOCKS_OF_SUMS),
    }
}
