//! Matrix products that also scale, or that add to what is there already: one call on a CUDA card, several operations
//! elsewhere.
//!
//! Called by attention and by the decoder's linear maps, for whom a launch more or less counts when a single token is
//! generated, and a pass over the scores when many are read. Sums are in f32 on a card.

use candle_core::{DType, Result, Tensor};

#[cfg(feature = "cuda")]
use super::cuda::cublas as cuda;

/// `scale` times the products of `a` (batch, m, k) and `b` (batch, k, n), either of which may be a transposed view:
/// (batch, m, n), f32 whatever the dtype of the two.
pub(crate) fn scaled(a: &Tensor, b: &Tensor, scale: f32) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if a.device().is_cuda() {
        return cuda::scaled(a, b, scale);
    }
    // A power of two changes no digit of `a` (of f16, only such as are far below its products' last), and `a` is the smaller.
    let exact = scale.to_bits().trailing_zeros() >= f32::MANTISSA_DIGITS - 1;
    let by = f64::from(scale);
    match scale == 1.0 {
        true => a.matmul(b)?.to_dtype(DType::F32),
        false if exact => (a * by)?.matmul(b)?.to_dtype(DType::F32),
        false => a.matmul(b)?.to_dtype(DType::F32)? * by,
    }
}

/// A tensor that nobody else holds the memory of, so that it may be written in place.
#[derive(Debug)]
pub(crate) struct Own(Tensor);

impl Own {
    /// A tensor that an operation has just made.
    pub fn made(tensor: Tensor) -> Self {
        Own(tensor)
    }

    /// To be read; who keeps a clone of it has the next sum as well.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    /// Gives up the right to write.
    pub fn into_tensor(self) -> Tensor {
        self.0
    }

    /// `self` (m, n) + `a` (m, k) `b` (k, n), or as many of them as a leading dimension of all three says.
    pub fn plus_product(self, a: &Tensor, b: &Tensor) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if a.device().is_cuda() {
            cuda::add(&self.0, a, b)?;
            return Ok(self);
        }
        Ok(Own((&self.0 + a.matmul(b)?)?))
    }

    /// `self` + `other`.
    pub fn plus(self, other: &Tensor) -> Result<Self> {
        Ok(Own((self.0 + other)?))
    }
}
