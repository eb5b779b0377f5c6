//! FlashAttention 2 on CUDA through Candle (feature `flash-attn`).
//!
//! Used where [`AttentionShape::flash_serves`](crate::attention::AttentionShape::flash_serves) allows. The kernels accept strides and
//! align the last query with the last key, as a chunk after a cache requires. `scripts/flash_check.sh` tests the call against a plain
//! definition; the kernels themselves need a GPU.

use candle_core::{Result, Tensor};

use super::chunked::{BLOCKS, Chunked};
use super::kernel::{Kernel, RowSums};
use crate::attention::Site;
use crate::attention::call::{Attended, Call};

/// Half precision with f32 accumulation; the weights that multiply values are in the tensors' dtype.
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
        // The window includes the query itself.
        let left = window.map(|window| window - 1);
        let out = candle_flash_attn::flash_attn_windowed(&q, &rows(k)?, &rows(v)?, scale, left, Some(0))?;
        Ok((out.squeeze(0)?, Vec::new()))
    }

    /// Matrix products: these kernels return no sums.
    fn segment_sums(&self, q: &Tensor, k: &Tensor, of: &RowSums<'_>) -> Result<Tensor> {
        Chunked(BLOCKS).segment_sums(q, k, of)
    }
}

/// Heads and rows may have any stride; the last dimension must be contiguous.
fn with_unit_stride(x: &Tensor) -> Result<Tensor> {
    if x.stride().last() == Some(&1) { Ok(x.clone()) } else { x.contiguous() }
}
