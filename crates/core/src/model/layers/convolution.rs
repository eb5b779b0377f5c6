//! Causal convolution per channel.

use candle_core::{DType, Result, Tensor};

#[cfg(feature = "cuda")]
use crate::fused;
use crate::transfer;

/// Depthwise causal convolution, in f32 (torch, `Conv1d` with one group per channel).
#[derive(Debug)]
pub(in crate::model) struct Convolution {
    /// (taps, channels), f32; the last tap is the current token.
    pub taps: Tensor,
    /// (channels), f32.
    pub bias: Option<Tensor>,
    /// silu follows.
    pub silu: bool,
}

impl Convolution {
    /// Of the inputs `x` (l, channels) after `before` (taps - 1, channels): (l, channels) in the dtype of `x`. Also returns the next
    /// `before`.
    pub fn forward(&self, x: &Tensor, before: &Tensor) -> Result<(Tensor, Tensor)> {
        let (l, taps) = (x.dim(0)?, self.taps.dim(0)?);
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() && self.silu && self.bias.is_none() {
            let mixed = fused::cuda::delta::convolution(x, before, &self.taps)?;
            let next = match l < taps - 1 {
                true => Tensor::cat(&[&before.narrow(0, l, taps - 1 - l)?, x], 0)?,
                false => x.narrow(0, l + 1 - taps, taps - 1)?.force_contiguous()?,
            };
            return Ok((mixed, next));
        }
        let inputs = Tensor::cat(&[before, x], 0)?; // (taps - 1 + l, channels)
        let next = match l {
            1 => inputs.narrow(0, 1, taps - 1)?,
            // A view would keep the whole chunk in memory.
            _ => inputs.narrow(0, l, taps - 1)?.force_contiguous()?,
        };
        let inputs = inputs.to_dtype(DType::F32)?;
        let mut mixed = if l == 1 && !transfer::cpu_kernels(x.device()) {
            (inputs * &self.taps)?.sum_keepdim(0)?
        } else {
            let of_tap = |tap: usize| inputs.narrow(0, tap, l)?.broadcast_mul(&self.taps.narrow(0, tap, 1)?);
            (1..taps).try_fold(of_tap(0)?, |sum, tap| sum + of_tap(tap)?)?
        };
        if let Some(bias) = &self.bias {
            mixed = mixed.broadcast_add(bias)?;
        }
        if self.silu {
            mixed = mixed.silu()?;
        }
        Ok((mixed.to_dtype(x.dtype())?, next))
    }
}
