//! The attention kernels and their selection.

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
pub(super) use chunked::{row_weights, weighted_keys};
use cpu::Cpu;
use kernel::Kernel;
pub use kernel::OverRows;
pub(super) use kernel::RowSums;
pub(super) use lengths::{Carried, LengthSums};

/// The CUDA kernel of a choice; matrix products if it is not compiled in.
fn of_choice(kernel: AttentionKernel) -> &'static dyn Kernel {
    match kernel {
        #[cfg(feature = "cuda")]
        AttentionKernel::Fused => &cuda::Fused,
        #[cfg(feature = "cuda")]
        AttentionKernel::Hopper => &cuda::Hopper,
        #[cfg(feature = "flash-attn")]
        AttentionKernel::Flash => &flash::Flash,
        _ => &Chunked(BLOCKS),
    }
}

pub(super) fn plain(device: &Device, dtype: DType) -> &'static dyn Kernel {
    if takes_slices(device, dtype) { &Cpu } else { &Chunked(BLOCKS) }
}

fn takes_slices(device: &Device, dtype: DType) -> bool {
    transfer::cpu_kernels(device) && matches!(dtype, DType::F32 | DType::BF16)
}

pub(super) fn of_forward(call: &Call<'_>) -> Result<&'static dyn Kernel> {
    let of = if call.prefix.is_some() { AttentionKernel::of_branches } else { AttentionKernel::of_layer };
    let kv_heads = call.tails.first().map_or(Ok(1), |(k, _)| k.dim(0))?;
    chosen(call.q, kv_heads, &call.site, !call.hidden.is_empty(), of)
}

/// The kernel that `of` derives from the configured choice.
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

impl AttentionKernel {
    /// False if no layer can be computed by it on this device.
    pub fn runs_on(self, device: &Device) -> bool {
        self != AttentionKernel::Hopper || is_hopper(device)
    }
}

#[cfg(feature = "cuda")]
fn is_hopper(device: &Device) -> bool {
    matches!(device, Device::Cuda(card) if cuda::is_hopper(card))
}

#[cfg(not(feature = "cuda"))]
fn is_hopper(_: &Device) -> bool {
    false
}

/// The kernel if it is the explicit choice or passes its self-test; else matrix products. The kernel for Hopper is checked even if it is
/// the explicit choice, and the fused kernels come next.
fn trusted(
    choice: AttentionKernel,
    kernel: AttentionKernel,
    device: &Device,
    shape: &AttentionShape,
) -> Result<AttentionKernel> {
    if kernel == AttentionKernel::Hopper {
        let fused = trusted(choice, AttentionKernel::Fused, device, shape)?;
        let holds = fused == AttentionKernel::Fused && of_choice(kernel).agrees(device, shape)?;
        return Ok(if holds { kernel } else { fused });
    }
    let trusted = kernel == choice || of_choice(kernel).agrees(device, shape)?;
    Ok(if trusted { kernel } else { AttentionKernel::Products })
}

/// Selects the kernels for layers of this shape on CUDA; `None` on other devices. For [`AttentionKernel::Auto`] and
/// [`AttentionKernel::Hopper`], the kernels first run a small self-test of that shape, once per process; if it fails, matrix products are
/// used, or the fused kernels in the place of the one for Hopper. Called at model load, so that later
/// calls do not wait. Returns an error if the device is lost.
pub(crate) fn settle(
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

pub(super) fn segment_sums(q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
    let hides = !of.site.holes.is_empty();
    chosen(q, k.dim(0)?, of.site, hides, AttentionKernel::of_sums)?.segment_sums(q, k, of)
}

/// Each key's softmax weight from `rows` (relative to `site.offset`), summed or the largest: f32 (heads, keys), on the queries' device.
/// Holds the weights of one block of rows at a time.
pub fn key_weights(
    q: &Tensor,
    k: &Tensor,
    site: &Site,
    rows: Range<usize>,
    over: OverRows,
) -> Result<Tensor> {
    let site = &site.relative();
    match takes_slices(q.device(), q.dtype()) {
        true => cpu::key_weights(q, k, site, rows, over),
        false => chunked::key_weights(q, k, site, rows, over),
    }
}

/// Sum over each segment's keys j of A_ij * v_j: f32 (heads, segments, rows, head_dim). Off the CPU, the weights of all rows over a
/// block of keys are held at once, so pass few rows.
pub(super) fn value_sums(qkv: [&Tensor; 3], of: &RowSums<'_>) -> Result<Tensor> {
    let [q, ..] = qkv;
    match takes_slices(q.device(), q.dtype()) {
        true => cpu::value_sums(qkv, of),
        false => Ok(Chunked(lengths::BLOCKS).values_and_lengths(qkv, None, of)?.read),
    }
}

/// Norm of each head's output per key: sqrt(v^T (W_O^h)^T W_O^h v), f32 (heads, keys). `v`: (kv_heads, keys, head_dim); `gram`: f32
/// (heads, head_dim, head_dim), the Gram matrix of each head's output weights.
pub(super) fn key_lengths(v: &Tensor, gram: &Tensor) -> Result<Tensor> {
    // Accepts any cache dtype.
    match transfer::cpu_kernels(v.device()) {
        true => cpu::key_lengths(v, gram),
        false => lengths::key_lengths(v, gram),
    }
}

/// Norm sums over rows for each of `spans`, which are runs of segments.
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
