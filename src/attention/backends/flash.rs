//! FlashAttention 2 on CUDA, as Candle binds it: built with the feature `flash-attn` only.
//!
//! Chosen by [`super::choose`] for what [`super::flash_serves`] allows. Its causal mask is aligned to the last key, which is
//! what a chunk after a cache needs. Written against the source of candle-flash-attn 0.11 and never compiled: its build
//! fetches CUTLASS.

use candle_core::{Result, Tensor};

use super::super::Site;

/// See [`super::super::run`]. Sums are in f32, the weights that multiply values in the tensors' dtype.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site) -> Result<Tensor> {
    // (kv_heads, n, d) -> (1, n, kv_heads, d), a view: the kernel reads strides.
    let keys = |x: &Tensor| x.transpose(0, 1)?.unsqueeze(0);
    let q = q.contiguous()?.unsqueeze(0)?;
    // A query sees itself and the window's other keys to its left.
    let left = site.window.map(|window| window - 1);
    candle_flash_attn::flash_attn_windowed(&q, &keys(k)?, &keys(v)?, site.scale, left, Some(0))?.squeeze(0)
}
