//! Custom CUDA attention kernels (feature `cuda`).
//!
//! `build.rs` compiles `attention.cu`, `hopper.cu`, `masses.cu` and `rows.cu` to PTX. Prefill follows FlashAttention-2 on tensor cores,
//! or FlashAttention-3 by Hopper's warpgroup products; decode uses split-K with a merge kernel. Segment sums accumulate in f32 without
//! storing weights: half precision on tensor cores (`masses.cu`), f32 on CUDA cores (`rows.cu`).

use candle_core::{Device, Result, Tensor};

use super::kernel::{Kernel, RowSums};
use crate::attention::call::{Attended, Call};
use crate::attention::{AttentionShape, Site};

mod check;
mod decode;
mod masses;
mod operands;
mod prefill;
mod rows;

pub use prefill::is_hopper;

/// The kernels count positions in the sequence, so split-K parts do not depend on where the cache begins.
pub struct Fused;

impl Kernel for Fused {
    fn name(&self) -> &'static str {
        "fused kernels (CUDA)"
    }

    fn attend(&self, call: Call<'_>) -> Result<Attended> {
        match (call.prefix, call.tails.as_slice()) {
            (None, &[(k, v)]) => {
                let site = Site { offset: call.positions[0], ..call.site.clone() };
                if call.rows > 1 {
                    return Ok((prefill::attention(call.q, k, v, &site, false)?, Vec::new()));
                }
                let borders = call.borders.first().and_then(Option::as_deref);
                let (out, sums) = decode::decode(call.q, k, v, &site, borders)?;
                Ok((out, vec![sums]))
            }
            (Some(prefix), tails) => decode::branches(call.q, prefix, tails, &call),
            (None, tails) => candle_core::bail!("This is a bug: {} tails of no prefix", tails.len()),
        }
    }

    fn agrees(&self, device: &Device, shape: &AttentionShape) -> Result<bool> {
        check::holds(device.as_cuda_device()?, shape)
    }

    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
        masses::segment_sums(q, k, of)
    }
}

/// [`Fused`] with the prefill kernel for Hopper.
pub struct Hopper;

impl Kernel for Hopper {
    fn name(&self) -> &'static str {
        "fused kernels with prefill for Hopper (CUDA)"
    }

    fn attend(&self, call: Call<'_>) -> Result<Attended> {
        match (call.prefix, call.tails.as_slice()) {
            (None, &[(k, v)]) if call.rows > 1 => {
                let site = Site { offset: call.positions[0], ..call.site.clone() };
                Ok((prefill::attention(call.q, k, v, &site, true)?, Vec::new()))
            }
            _ => Fused.attend(call),
        }
    }

    fn agrees(&self, device: &Device, shape: &AttentionShape) -> Result<bool> {
        check::hopper_holds(device.as_cuda_device()?, shape)
    }

    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
        Fused.segment_sums(q, k, of)
    }
}
