//! FlashAttention 2 on CUDA, as Candle binds it: built with the feature `flash-attn` only.
//!
//! Chosen for what [`AttentionShape::flash_serves`](crate::attention::AttentionShape::flash_serves) allows. The kernels read strides, stand the last
//! query at the last key, which is what a chunk after a cache needs, and are launched on the device's own stream.
//! `scripts/flash_check.sh` runs the call with the definition of attention behind it; the kernels themselves need a card.

use candle_core::{Result, Tensor};

use super::chunked::{BLOCKS, Chunked};
use super::kernel::{Kernel, RowSums};
use crate::attention::Site;
use crate::attention::call::{Attended, Call};

/// FlashAttention 2 for half precision. Sums are in f32, the weights that multiply values in the tensors' dtype.
pub struct Flash;

impl Kernel for Flash {
    fn name(&self) -> &'static str {
        "FlashAttention 2 (CUDA)"
    }

    fn attend(&self, call: Call<'_>) -> Result<Attended> {
        let Site { window, scale, .. } = call.site;
        let (k, v) = call.tails[0];
        let q = with_unit_stride(call.q)?.unsqueeze(0)?;
        // (kv_heads, n, d) -> (1, n, kv_heads, d)
        let rows = |x: &Tensor| with_unit_stride(x)?.transpose(0, 1)?.unsqueeze(0);
        // A query sees itself and the window's other keys to its left.
        let left = window.map(|window| window - 1);
        let out = candle_flash_attn::flash_attn_windowed(&q, &rows(k)?, &rows(v)?, scale, left, Some(0))?;
        Ok((out.squeeze(0)?, Vec::new()))
    }

    /// By products: these kernels have no sums.
    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
        Chunked(BLOCKS).segment_sums(q, k, of)
    }
}

/// The numbers of a head must lie side by side; heads and rows may lie anywhere.
fn with_unit_stride(x: &Tensor) -> Result<Tensor> {
    if x.stride().last() == Some(&1) { Ok(x.clone()) } else { x.contiguous() }
}
