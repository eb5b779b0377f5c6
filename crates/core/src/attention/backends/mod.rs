//! The kernels behind the door, and which of them serves which tensors.

use std::fmt;

use candle_core::{DType, Device, Result, Tensor};

use super::{AttentionKernel, AttentionShape, Settled, Site};
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
    choose_of(q, kv_heads, site, AttentionKernel::of_layer)
}

/// The kernel family for one query each of several branches, (branches, heads, head_dim), from which `site` hides nothing
/// that the others see.
pub(super) fn choose_branches(q: &Tensor, kv_heads: usize, site: &Site) -> Result<Backend> {
    choose_of(q, kv_heads, site, AttentionKernel::of_branches)
}

/// The kernel family that sums attention of queries `q` (l, heads, head_dim) into segments.
fn choose_sums(q: &Tensor, kv_heads: usize, site: &Site) -> Result<Backend> {
    choose_of(q, kv_heads, site, AttentionKernel::of_sums)
}

/// What `of` makes of the choice of kernels, on CUDA where nothing is hidden; and products where the card's check failed.
fn choose_of(
    q: &Tensor,
    kv_heads: usize,
    site: &Site,
    of: fn(AttentionKernel, &AttentionShape) -> AttentionKernel,
) -> Result<Backend> {
    #[cfg(feature = "cuda")]
    if q.device().is_cuda() && site.holes.is_empty() {
        let shape = shape_of(q, kv_heads, site)?;
        match of(site.kernel, &shape) {
            AttentionKernel::Fused if is_trusted(site.kernel, q.device(), &shape)? => {
                return Ok(Backend::Fused);
            }
            #[cfg(feature = "flash-attn")]
            AttentionKernel::Flash => return Ok(Backend::Flash),
            _ => {}
        }
    }
    let _ = (kv_heads, site, of);
    Ok(choose(q.device(), q.dtype()))
}

#[cfg(feature = "cuda")]
fn shape_of(q: &Tensor, kv_heads: usize, site: &Site) -> Result<AttentionShape> {
    let (_, heads, head_dim) = q.dims3()?;
    let Site { scale, window, softcap, .. } = *site;
    let sinks = site.sinks.is_some();
    Ok(AttentionShape { dtype: q.dtype(), heads, kv_heads, head_dim, scale, window, softcap, sinks })
}

/// Whether our own kernels may be used: where they are the choice, or have been tried on the card.
#[cfg(feature = "cuda")]
fn is_trusted(choice: AttentionKernel, device: &Device, shape: &AttentionShape) -> Result<bool> {
    Ok(choice == AttentionKernel::Fused || cuda::holds(device.as_cuda_device()?, shape)?)
}

/// See [`super::settle`].
pub(super) fn settle(
    choice: AttentionKernel,
    device: &Device,
    shape: &AttentionShape,
) -> Result<Option<Settled>> {
    if !device.is_cuda() {
        return Ok(None);
    }
    let settled = |kernel| -> Result<AttentionKernel> {
        #[cfg(feature = "cuda")]
        if kernel == AttentionKernel::Fused && !is_trusted(choice, device, shape)? {
            return Ok(AttentionKernel::Products);
        }
        Ok(kernel)
    };
    let (forward, sums) = (settled(choice.of_layer(shape))?, settled(choice.of_sums(shape))?);
    Ok(Some(Settled { forward, sums }))
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
