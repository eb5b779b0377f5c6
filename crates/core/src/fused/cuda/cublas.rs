//! [`super::super::products`] by cuBLAS, which fuses scaling and accumulation (feature `cuda`).

use std::ffi::{c_int, c_longlong, c_void};

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp2, DType, InplaceOp3, Layout, Result, Shape, Tensor, WithDType,
};
use half::{bf16, f16};

pub fn scaled(a: &Tensor, b: &Tensor, scale: f32) -> Result<Tensor> {
    a.apply_op2_no_bwd(b, &Scaled(scale))
}

/// Adds `a` (..., m, k) times `b` (..., k, n) to `sum` (..., m, n) in place. `sum` must not share memory with either.
pub fn add(sum: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
    sum.inplace_op3(a, b, &Added)
}

struct Scaled(f32);
struct Added;

/// A row-major matrix, described to column-major cuBLAS as its transpose.
struct Matrix {
    operation: sys::cublasOperation_t,
    /// Elements between rows or columns.
    leading: usize,
    /// Elements between batch entries.
    stride: usize,
}

impl Matrix {
    /// From a layout (..., rows, cols).
    fn of(layout: &Layout) -> Result<Self> {
        let (dims, strides) = (layout.dims(), layout.stride());
        let ([.., rows, cols], [batch @ .., row, col]) = (dims, strides) else {
            candle_core::bail!("a product of a tensor of shape {dims:?}, which is no matrix");
        };
        let (rows, cols) = (*rows, *cols);
        let (operation, leading) = if *col == 1 || cols == 1 {
            (sys::cublasOperation_t::CUBLAS_OP_N, if rows == 1 { cols } else { *row })
        } else if *row == 1 || rows == 1 {
            (sys::cublasOperation_t::CUBLAS_OP_T, *col)
        } else {
            candle_core::bail!(
                "a product of a tensor of strides {strides:?}, of which neither of the last is 1"
            );
        };
        Ok(Matrix { operation, leading: leading.max(1), stride: batch.last().copied().unwrap_or(0) })
    }
}

/// (batch, m, k, n) of a product; an error if shapes mismatch.
fn sizes(a: &Layout, b: &Layout) -> Result<(usize, usize, usize, usize)> {
    let found = match (a.dims(), b.dims()) {
        ([m, k], [k2, n]) if k == k2 => Some((1, *m, *k, *n)),
        ([batch, m, k], [batch2, k2, n]) if k == k2 && batch == batch2 => Some((*batch, *m, *k, *n)),
        _ => None,
    };
    match found {
        Some(sizes @ (batch, m, k, n)) if batch * m * k * n > 0 => Ok(sizes),
        _ => candle_core::bail!("a product of shapes {:?} and {:?}", a.dims(), b.dims()),
    }
}

/// Dtypes that cuBLAS multiplies with f32 accumulation.
trait Element: CudaDType + DeviceRepr + WithDType {
    const CUBLAS: sys::cudaDataType;
}

impl Element for f32 {
    const CUBLAS: sys::cudaDataType = sys::cudaDataType_t::CUDA_R_32F;
}

impl Element for f16 {
    const CUBLAS: sys::cudaDataType = sys::cudaDataType_t::CUDA_R_16F;
}

impl Element for bf16 {
    const CUBLAS: sys::cudaDataType = sys::cudaDataType_t::CUDA_R_16BF;
}

/// Writes `scale` * a b to `out` from element `first` on; without `scale`, adds a b to it.
fn multiply<T: Element, O: Element>(
    out: &mut CudaStorage,
    first: usize,
    (a, a_layout): (&CudaStorage, &Layout),
    (b, b_layout): (&CudaStorage, &Layout),
    scale: Option<f32>,
) -> Result<()> {
    let (batch, m, k, n) = sizes(a_layout, b_layout)?;
    let device = a.device().clone();
    let stream = device.cuda_stream();
    let (of_a, of_b) = (Matrix::of(a_layout)?, Matrix::of(b_layout)?);
    let (alpha, beta) = (scale.unwrap_or(1.0), if scale.is_some() { 0f32 } else { 1.0 });
    let view = a.as_cuda_slice::<T>()?.slice(a_layout.start_offset()..);
    let (a, _a) = view.device_ptr(&stream);
    let view = b.as_cuda_slice::<T>()?.slice(b_layout.start_offset()..);
    let (b, _b) = view.device_ptr(&stream);
    let mut view = out.as_cuda_slice_mut::<O>()?.slice_mut(first..);
    let (out, _out) = view.device_ptr_mut(&stream);
    let int = |x: usize| x as c_int;
    // SAFETY: the sizes are those of the layouts, which lie within their storages; `out` has batch * m * n elements from `first` on
    // (ensured by the callers), is borrowed mutably, and all three are on this device.
    unsafe {
        result::gemm_strided_batched_ex(
            *device.cublas_handle().handle(),
            of_b.operation,
            of_a.operation,
            int(n),
            int(m),
            int(k),
            (&raw const alpha).cast::<c_void>(),
            b as *const c_void,
            T::CUBLAS,
            int(of_b.leading),
            of_b.stride as c_longlong,
            a as *const c_void,
            T::CUBLAS,
            int(of_a.leading),
            of_a.stride as c_longlong,
            (&raw const beta).cast::<c_void>(),
            out as *mut c_void,
            O::CUBLAS,
            int(n),
            (m * n) as c_longlong,
            int(batch),
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
        )
    }
    .w()
}

impl CustomOp2 for Scaled {
    fn name(&self) -> &'static str {
        "scaled-product"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("This is a bug: a product for CUDA on the CPU")
    }

    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        a_layout: &Layout,
        b: &CudaStorage,
        b_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (batch, m, _, n) = sizes(a_layout, b_layout)?;
        let shape = Shape::from(if a_layout.dims().len() == 2 { vec![m, n] } else { vec![batch, m, n] });
        let (a, b) = ((a, a_layout), (b, b_layout));
        let out = match a.0.dtype() {
            DType::F32 => self.of::<f32>(a, b, &shape)?,
            DType::F16 => self.of::<f16>(a, b, &shape)?,
            DType::BF16 => self.of::<bf16>(a, b, &shape)?,
            other => candle_core::bail!("a scaled product of {other:?}"),
        };
        Ok((out, shape))
    }
}

impl Scaled {
    fn of<T: Element>(
        &self,
        a: (&CudaStorage, &Layout),
        b: (&CudaStorage, &Layout),
        shape: &Shape,
    ) -> Result<CudaStorage> {
        let device = a.0.device().clone();
        // SAFETY: the product writes every element.
        let out = unsafe { device.alloc::<f32>(shape.elem_count())? };
        let mut out = CudaStorage::wrap_cuda_slice(out, device);
        multiply::<T, f32>(&mut out, 0, a, b, Some(self.0))?;
        Ok(out)
    }
}

impl InplaceOp3 for Added {
    fn name(&self) -> &'static str {
        "added-product"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<()> {
        candle_core::bail!("This is a bug: a product for CUDA on the CPU")
    }

    fn cuda_fwd(
        &self,
        sum: &mut CudaStorage,
        layout: &Layout,
        a: &CudaStorage,
        a_layout: &Layout,
        b: &CudaStorage,
        b_layout: &Layout,
    ) -> Result<()> {
        let (batch, m, _, n) = sizes(a_layout, b_layout)?;
        if !layout.is_contiguous()
            || !matches!(layout.dims(), [.., rows, cols] if (*rows, *cols) == (m, n))
            || layout.shape().elem_count() != batch * m * n
        {
            candle_core::bail!(
                "{batch} products of ({m}, {n}) added to a tensor of shape {:?}",
                layout.dims()
            );
        }
        let (first, a, b) = (layout.start_offset(), (a, a_layout), (b, b_layout));
        match sum.dtype() {
            DType::F32 => multiply::<f32, f32>(sum, first, a, b, None),
            DType::F16 => multiply::<f16, f16>(sum, first, a, b, None),
            DType::BF16 => multiply::<bf16, bf16>(sum, first, a, b, None),
            other => candle_core::bail!("a product added to a sum of {other:?}"),
        }
    }
}
