//! Matrix products that scale or accumulate: one cuBLAS call on CUDA, several operations elsewhere.
//!
//! Used by attention and linear layers. CUDA accumulates in f32.

use candle_core::{DType, Result, Tensor};

#[cfg(feature = "cuda")]
use super::cuda::cublas as cuda;

/// `scale` times `a` (batch, m, k) `b` (batch, k, n), either of which may be a transposed view: (batch, m, n), always f32.
pub(crate) fn scaled(a: &Tensor, b: &Tensor, scale: f32) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if a.device().is_cuda() {
        return cuda::scaled(a, b, scale);
    }
    if rounds_sums(a) {
        return scaled(&a.to_dtype(DType::F32)?, &b.to_dtype(DType::F32)?, scale);
    }
    // Scaling by a power of two is exact (in f16, up to subnormals far below the products' precision), and `a` is smaller.
    let exact = scale.to_bits().trailing_zeros() >= f32::MANTISSA_DIGITS - 1;
    let by = f64::from(scale);
    match scale == 1.0 {
        true => a.matmul(b)?.to_dtype(DType::F32),
        false if exact => (a * by)?.matmul(b)?.to_dtype(DType::F32),
        false => a.matmul(b)?.to_dtype(DType::F32)? * by,
    }
}

/// True if Candle's product of `x` rounds sums to f16: on the CPU every 512 terms, and every term where a single row meets adjacent outputs.
pub(crate) fn rounds_sums(x: &Tensor) -> bool {
    x.dtype() == DType::F16 && x.device().is_cpu()
}

/// A tensor with unshared memory, which may be written in place.
#[derive(Debug)]
pub(crate) struct Own(Tensor);

impl Own {
    pub fn made(tensor: Tensor) -> Self {
        Own(tensor)
    }

    /// Read access; a clone of it sees later in-place sums.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    pub fn into_tensor(self) -> Tensor {
        self.0
    }

    /// `self` (m, n) + `a` (m, k) `b` (k, n); all three may have a batch dimension.
    pub fn plus_product(self, a: &Tensor, b: &Tensor) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if a.device().is_cuda() {
            cuda::add(&self.0, a, b)?;
            return Ok(self);
        }
        Ok(Own((&self.0 + a.matmul(b)?)?))
    }

    /// Adds `a` (m, k) `b` (k, n) to the rows of (rows, n) from `first` on.
    pub fn add_rows(&mut self, first: usize, a: &Tensor, b: &Tensor) -> Result<()> {
        let rows = self.0.narrow(0, first, a.dim(0)?)?;
        #[cfg(feature = "cuda")]
        if a.device().is_cuda() {
            return cuda::add(&rows, a, b);
        }
        self.0.slice_set(&(rows + a.matmul(b)?)?, 0, first)
    }

    pub fn plus(self, other: &Tensor) -> Result<Self> {
        Ok(Own((self.0 + other)?))
    }
}
