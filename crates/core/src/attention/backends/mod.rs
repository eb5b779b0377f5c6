//! The kernels behind the door, and which of them serves which tensors.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use super::call::Call;
use super::{AttentionKernel, AttentionShape, Settled, Site};
use crate::transfer;

mod chunked;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "flash-attn")]
mod flash;
mod kernel;
mod lengths;
pub(super) mod small_matmul;
#[cfg(test)]
mod tests;

use chunked::{BLOCKS, Chunked};
use cpu::Cpu;
use kernel::Kernel;
pub(super) use kernel::RowSums;
pub(super) use lengths::{Carried, LengthSums};

/// The kernels of a choice on CUDA; products where this build has no others.
fn of_choice(kernel: AttentionKernel) -> &'static dyn Kernel {
    match kernel {
        #[cfg(feature = "cuda")]
        AttentionKernel::Fused => &cuda::Fused,
        #[cfg(feature = "flash-attn")]
        AttentionKernel::Flash => &flash::Flash,
        _ => &Chunked(BLOCKS),
    }
}

/// The kernels that serve tensors on `device` in `dtype` whatever they hold.
pub(super) fn plain(device: &Device, dtype: DType) -> &'static dyn Kernel {
    if takes_slices(device, dtype) { &Cpu } else { &Chunked(BLOCKS) }
}

/// True for tensors that the CPU's kernel takes.
fn takes_slices(device: &Device, dtype: DType) -> bool {
    transfer::cpu_kernels(device) && matches!(dtype, DType::F32 | DType::BF16)
}

/// The kernels for a call.
pub(super) fn of_forward(call: &Call<'_>) -> Result<&'static dyn Kernel> {
    let of = if call.prefix.is_some() { AttentionKernel::of_branches } else { AttentionKernel::of_layer };
    let kv_heads = call.tails.first().map_or(Ok(1), |(k, _)| k.dim(0))?;
    chosen(call.q, kv_heads, &call.site, !call.hidden.is_empty(), of)
}

/// The kernels that `of` makes of the choice on CUDA where nothing is hidden.
fn chosen(
    q: &Tensor,
    kv_heads: usize,
    site: &Site,
    holes: bool,
    of: fn(AttentionKernel, &AttentionShape) -> AttentionKernel,
) -> Result<&'static dyn Kernel> {
    if holes || !q.device().is_cuda() {
        return Ok(plain(q.device(), q.dtype()));
    }
    let (_, heads, head_dim) = q.dims3()?;
    let Site { scale, window, softcap, kernel, .. } = *site;
    let sinks = site.sinks.is_some();
    let shape = AttentionShape { dtype: q.dtype(), heads, kv_heads, head_dim, scale, window, softcap, sinks };
    Ok(of_choice(trusted(kernel, of(kernel, &shape), q.device(), &shape)?))
}

/// A kernel that is the choice itself or agrees with products on the device; else products.
fn trusted(
    choice: AttentionKernel,
    kernel: AttentionKernel,
    device: &Device,
    shape: &AttentionShape,
) -> Result<AttentionKernel> {
    let trusted = kernel == choice || of_choice(kernel).agrees(device, shape)?;
    Ok(if trusted { kernel } else { AttentionKernel::Products })
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
    let forward = trusted(choice, choice.of_layer(shape), device, shape)?;
    Ok(Some(Settled { forward, sums: trusted(choice, choice.of_sums(shape), device, shape)? }))
}

/// The softmax weights of one row of this chunk (relative to `site.offset`) over the keys held, one vector a head.
pub(super) fn row_weights(q: &Tensor, k: &Tensor, site: &Site, row: usize) -> Result<Vec<Vec<f32>>> {
    chunked::row_weights(q, k, site, row)
}

/// [`Kernel::segment_sums`] by the kernels of the choice.
pub(super) fn segment_sums(q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
    let hides = !of.site.holes.is_empty();
    chosen(q, k.dim(0)?, of.site, hides, AttentionKernel::of_sums)?.segment_sums(q, k, of)
}

/// The sums of values that rows read of each segment: f32 (heads, segments, rows, head_dim), over its keys j of the weight A_ij
/// times the value v_j. But on the CPU all weights of the rows over a block of keys are held at once: ask for few rows at a time.
pub(super) fn value_sums(qkv: [&Tensor; 3], of: &RowSums<'_>) -> Result<Tensor> {
    let [q, ..] = qkv;
    match takes_slices(q.device(), q.dtype()) {
        true => cpu::value_sums(qkv, of),
        false => Ok(Chunked(lengths::BLOCKS).values_and_lengths(qkv, None, of)?.read),
    }
}

/// The length of each head's output for each key: the square root of v^T (W_O^h)^T W_O^h v, f32 (heads, keys). `v`: (kv_heads,
/// keys, head_dim), `gram`: f32 (heads, head_dim, head_dim), the products of each head's output weights with themselves.
pub(super) fn key_lengths(v: &Tensor, gram: &Tensor) -> Result<Tensor> {
    // Whatever dtype the cache keeps values in.
    match transfer::cpu_kernels(v.device()) {
        true => cpu::key_lengths(v, gram),
        false => lengths::key_lengths(v, gram),
    }
}

/// Sums, over rows, of the lengths of what they read and write of each of `spans`, which are runs of the segments.
pub(super) fn length_sums(
    qkv: [&Tensor; 3],
    carried: &Carried<'_>,
    of: &RowSums<'_>,
    spans: &[Range<usize>],
) -> Result<LengthSums> {
    let [q, ..] = qkv;
    match takes_slices(q.device(), q.dtype()) {
        true => cpu::length_sums(qkv, carried, of, spans),
        false => lengths::length_sums(qkv, carried, of, spans),
    }
}
