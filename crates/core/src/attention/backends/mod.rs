//! The kernels behind the door, and which of them serves which tensors.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use super::{Attended, AttentionKernel, AttentionShape, Call, Settled, Site};
use crate::transfer;

mod chunked;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "flash-attn")]
mod flash;
mod lengths;
pub(super) mod small_matmul;
#[cfg(test)]
mod tests;

use chunked::{BLOCKS, Chunked};
use cpu::Cpu;
pub(super) use lengths::{Carried, LengthSums};

/// A kernel family. Its methods serve what the pure functions of [`AttentionKernel`] give it; those that few families have are made of
/// tensors elsewhere.
pub(super) trait Kernel: Sync {
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
    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
        Chunked(BLOCKS).segment_sums(q, k, of)
    }

    /// The sums of values that rows read of each segment: f32 (heads, segments, rows, head_dim), over its keys j of the weight A_ij
    /// times the value v_j. But on the CPU all weights of the rows over a block of keys are held at once: ask for few rows at a time.
    fn value_sums(&self, qkv: [&Tensor; 3], of: &RowSums<'_>) -> Result<Tensor> {
        Ok(Chunked(lengths::BLOCKS).values_and_lengths(qkv, None, of)?.read)
    }

    /// The length of each head's output for each key: the square root of v^T (W_O^h)^T W_O^h v, f32 (heads, keys). `v`: (kv_heads,
    /// keys, head_dim), `gram`: f32 (heads, head_dim, head_dim), the products of each head's output weights with themselves.
    fn key_lengths(&self, v: &Tensor, gram: &Tensor) -> Result<Tensor> {
        lengths::key_lengths(v, gram)
    }

    /// Sums, over rows, of the lengths of what they read and write of each of `spans`, which are runs of the segments.
    fn length_sums(
        &self,
        qkv: [&Tensor; 3],
        carried: &Carried<'_>,
        of: &RowSums<'_>,
        spans: &[Range<usize>],
    ) -> Result<LengthSums> {
        lengths::length_sums(qkv, carried, of, spans)
    }
}

/// Rows of a chunk, and the segments of keys that something of them is summed over.
pub(super) struct RowSums<'a> {
    pub site: &'a Site,
    /// Relative to `site.offset`.
    pub rows: Range<usize>,
    /// The ascending borders of the segments: segment s is `bounds[s]..bounds[s + 1]`.
    pub bounds: &'a [usize],
}

impl RowSums<'_> {
    /// The positions of the rows.
    fn positions(&self) -> Vec<usize> {
        self.rows.clone().map(|row| self.site.offset + row).collect()
    }

    fn segments(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }
}

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
    if transfer::cpu_kernels(device) && dtype == DType::F32 { &Cpu } else { &Chunked(BLOCKS) }
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
