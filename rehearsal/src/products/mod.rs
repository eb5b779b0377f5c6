//! cuBLAS: the GEMMs that Candle calls, with cuBLAS's argument checks, on the handle's stream. `multiply` computes them. Sums are f32 (f64
//! for doubles), rounded once, as with `CUBLAS_COMPUTE_32F`, Candle's default without reduced precision. `CUBLAS_COMPUTE_16F` rounds every
//! partial sum to f16, as a GPU without tensor cores would. The `FAST` types (TF32, bf16 for f32 inputs) lose input bits on a GPU and lose
//! none here.
#![allow(non_snake_case, reason = "the functions' names are cuBLAS's")]

use std::ffi::{c_char, c_int, c_longlong, c_void};
use std::time::Instant;

use half::f16;

use crate::codes::{Refusal, cublas};
use crate::counts;
use crate::driver::{Answer, Driver, ask_memory, export, give};
use crate::settings::settings;

mod multiply;

/// Element dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// `CUDA_R_32F`.
    F32,
    /// `CUDA_R_64F`.
    F64,
    /// `CUDA_R_16F`.
    F16,
    /// `CUDA_R_16BF`.
    Bf16,
}

impl Element {
    fn of(number: c_int) -> Result<Self, Refusal> {
        match number {
            0 => Ok(Self::F32),
            1 => Ok(Self::F64),
            2 => Ok(Self::F16),
            14 => Ok(Self::Bf16),
            _ => Err(unsupported(format!("elements of type {number}"))),
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// Accumulator dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// In f32.
    F32,
    /// In f64.
    F64,
    /// Rounded to f16 at every step.
    F16,
}

impl Sums {
    fn of(compute_type: c_int) -> Result<Self, Refusal> {
        match compute_type {
            64 | 65 => Ok(Self::F16),
            68 | 69 | 74 | 75 | 77 => Ok(Self::F32),
            70 | 71 => Ok(Self::F64),
            _ => Err(unsupported(format!("compute type {compute_type}"))),
        }
    }

    fn scalar(self, at: *const c_void) -> Result<f64, Refusal> {
        if at.is_null() {
            return Err(invalid("alpha or beta is a null pointer".into()));
        }
        // SAFETY: the caller vouches for the factor; only the host pointer mode exists.
        Ok(unsafe {
            match self {
                Self::F32 => f64::from(at.cast::<f32>().read_unaligned()),
                Self::F64 => at.cast::<f64>().read_unaligned(),
                Self::F16 => f64::from(f16::from_bits(at.cast::<u16>().read_unaligned()).to_f32()),
            }
        })
    }
}

/// A matrix, or one per batch item; column-major.
#[derive(Clone, Copy)]
pub struct Matrix {
    at: u64,
    element: Element,
    transposed: bool,
    /// Leading dimension, and stride between matrices, in elements.
    leading: usize,
    stride: i64,
}

/// C = alpha A B + beta C per batch item; C is m × n.
#[derive(Clone, Copy)]
pub struct Product {
    m: usize,
    n: usize,
    k: usize,
    batch: usize,
    alpha: f64,
    beta: f64,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    sums: Sums,
}

fn invalid(why: String) -> Refusal {
    Refusal::new(cublas::CUBLAS_STATUS_INVALID_VALUE, why)
}

fn unsupported(why: String) -> Refusal {
    Refusal::new(cublas::CUBLAS_STATUS_NOT_SUPPORTED, why)
}

/// A matrix argument: operation, address, dtype, leading dimension, stride.
type Given = (c_int, *const c_void, c_int, c_int, c_longlong);

impl Product {
    /// Checks the arguments in cuBLAS's order: sizes, leading dimensions, dtypes.
    fn new(
        sizes: [c_int; 4],
        compute: c_int,
        factors: [*const c_void; 2],
        given: [Given; 3],
    ) -> Result<Self, Refusal> {
        let [m, n, k, batch] = sizes;
        let Ok([m_, n_, k_, batch_]) = sizes
            .iter()
            .map(|size| usize::try_from(*size))
            .collect::<Result<Vec<_>, _>>()
            .map(|sizes| [sizes[0], sizes[1], sizes[2], sizes[3]])
        else {
            return Err(invalid(format!("a size is negative: m {m}, n {n}, k {k}, batch {batch}")));
        };
        let rows = [if given[0].0 == 0 { m } else { k }, if given[1].0 == 0 { k } else { n }, m];
        for ((name, given), rows) in ["a", "b", "c"].iter().zip(&given).zip(rows) {
            if !(0..=2).contains(&given.0) {
                return Err(invalid(format!("operation {} of {name} is unknown", given.0)));
            }
            if given.3 < rows.max(1) {
                let why = format!("ld{name} is {}, less than the {} rows of {name}", given.3, rows.max(1));
                return Err(invalid(format!("{why} (m {m}, n {n}, k {k}, batch {batch})")));
            }
        }
        let matrix = |(operation, at, element, leading, stride): Given| {
            Ok(Matrix {
                at: at as u64,
                element: Element::of(element)?,
                transposed: operation != 0,
                leading: leading as usize,
                stride,
            })
        };
        let [a, b, c] = given;
        let (a, b, c) = (matrix(a)?, matrix(b)?, matrix(c)?);
        let sums = Sums::of(compute)?;
        use Element::{Bf16, F16, F32, F64};
        let known = match (sums, a.element, c.element) {
            _ if a.element != b.element => false,
            (Sums::F32, F32, F32) | (Sums::F64, F64, F64) | (Sums::F16, F16, F16) => true,
            (Sums::F32, F16, F16 | F32) | (Sums::F32, Bf16, Bf16 | F32) => true,
            _ => false,
        };
        if !known {
            let types =
                format!("{:?} times {:?} to {:?} with sums in {sums:?}", a.element, b.element, c.element);
            return Err(unsupported(types));
        }
        let (alpha, beta) = (sums.scalar(factors[0])?, sums.scalar(factors[1])?);
        Ok(Self { m: m_, n: n_, k: k_, batch: batch_, alpha, beta, a, b, c, sums })
    }

    /// Ranges touched: first address, bytes, write flag.
    fn uses(&self) -> Vec<(u64, u64, bool)> {
        let range = |matrix: &Matrix, rows: usize, columns: usize, write: bool| {
            let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
            let batches = (self.batch as i64 - 1) * matrix.stride;
            let elements =
                (columns as u64 - 1) * matrix.leading as u64 + rows as u64 + batches.unsigned_abs();
            let at = matrix.at.wrapping_add_signed(batches.min(0) * matrix.element.bytes() as i64);
            (at, elements * matrix.element.bytes(), write)
        };
        let Self { m, n, k, .. } = *self;
        let mut all = vec![range(&self.c, m, n, true)];
        if k > 0 {
            all.extend([range(&self.a, m, k, false), range(&self.b, k, n, false)]);
        }
        all
    }

    fn name(&self) -> &'static str {
        match (self.a.element, self.sums) {
            (Element::F32, _) => "gemm f32",
            (Element::F64, _) => "gemm f64",
            (Element::F16, Sums::F16) => "gemm f16, sums in f16",
            (Element::F16, _) => "gemm f16",
            (Element::Bf16, _) => "gemm bf16",
        }
    }
}

fn product(driver: &mut Driver, handle: usize, product: Result<Product, Refusal>) -> Answer {
    let stream = *stream_of(driver, handle)?;
    let product = product?;
    let Product { m, n, k, batch, .. } = product;
    if m == 0 || n == 0 || batch == 0 {
        return Ok(());
    }
    for (name, matrix) in [("a", &product.a), ("b", &product.b), ("c", &product.c)] {
        if !matrix.at.is_multiple_of(matrix.element.bytes()) {
            return Err(invalid(format!("{name} at {:#x} is not aligned to its elements", matrix.at)));
        }
    }
    let name = product.name();
    driver.trace(|| format!("{name}: m {m}, n {n}, k {k}, batch {batch}"));
    let count = driver.counts.products.entry(name).or_default();
    count.calls += 1;
    count.flops += 2 * m as u64 * n as u64 * k as u64 * batch as u64;
    let op = driver.begin(stream, name)?;
    let device = driver.order.device(op.stream);
    let then = op.clone();
    driver.order.submit(&op, move || {
        ask_memory(|memory| {
            for (at, bytes, write) in product.uses() {
                memory.access(&then, device, at, bytes, write)?;
            }
            Ok(())
        });
        if settings().arithmetic {
            let start = Instant::now();
            multiply::run(&product, settings().threads);
            counts::spent(name, start.elapsed());
        }
    });
    Ok(())
}

fn stream_of(driver: &mut Driver, handle: usize) -> Result<&mut usize, Refusal> {
    driver.blas.get_mut(&handle).ok_or_else(|| {
        Refusal::new(cublas::CUBLAS_STATUS_NOT_INITIALIZED, format!("{handle:#x} is no handle of cuBLAS"))
    })
}

const F32: c_int = 0;
const F64: c_int = 1;
const COMPUTE_32F: c_int = 68;
const COMPUTE_64F: c_int = 70;

export! {
    fn cublasCreate_v2(handle: *mut usize) Context |driver| {
        let new = driver.new_handle();
        driver.blas.insert(new, 0);
        give(handle, new)
    }

    fn cublasDestroy_v2(handle: usize) Context |driver| {
        stream_of(driver, handle)?;
        driver.blas.remove(&handle);
        Ok(())
    }

    fn cublasSetStream_v2(handle: usize, stream: usize) Context |driver| {
        driver.order.stream(stream, driver.here)?;
        *stream_of(driver, handle)? = stream;
        Ok(())
    }

    fn cublasGemmStridedBatchedEx(handle: usize, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, type_a: c_int, lda: c_int, stride_a: c_longlong,
        b: *const c_void, type_b: c_int, ldb: c_int, stride_b: c_longlong,
        beta: *const c_void, c: *mut c_void, type_c: c_int, ldc: c_int, stride_c: c_longlong,
        batch: c_int, compute: c_int, _algorithm: c_int) Context |driver|
    {
        let given = [(op_a, a, type_a, lda, stride_a), (op_b, b, type_b, ldb, stride_b),
            (0, c.cast_const(), type_c, ldc, stride_c)];
        product(driver, handle, Product::new([m, n, k, batch], compute, [alpha, beta], given))
    }

    fn cublasGemmEx(handle: usize, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, type_a: c_int, lda: c_int, b: *const c_void, type_b: c_int,
        ldb: c_int, beta: *const c_void, c: *mut c_void, type_c: c_int, ldc: c_int, compute: c_int,
        _algorithm: c_int) Context |driver|
    {
        let given = [(op_a, a, type_a, lda, 0), (op_b, b, type_b, ldb, 0),
            (0, c.cast_const(), type_c, ldc, 0)];
        product(driver, handle, Product::new([m, n, k, 1], compute, [alpha, beta], given))
    }

    fn cublasSgemmStridedBatched(handle: usize, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, lda: c_int, stride_a: c_longlong, b: *const c_void,
        ldb: c_int, stride_b: c_longlong, beta: *const c_void, c: *mut c_void, ldc: c_int,
        stride_c: c_longlong, batch: c_int) Context |driver|
    {
        let given = [(op_a, a, F32, lda, stride_a), (op_b, b, F32, ldb, stride_b),
            (0, c.cast_const(), F32, ldc, stride_c)];
        product(driver, handle, Product::new([m, n, k, batch], COMPUTE_32F, [alpha, beta], given))
    }

    fn cublasDgemmStridedBatched(handle: usize, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, lda: c_int, stride_a: c_longlong, b: *const c_void,
        ldb: c_int, stride_b: c_longlong, beta: *const c_void, c: *mut c_void, ldc: c_int,
        stride_c: c_longlong, batch: c_int) Context |driver|
    {
        let given = [(op_a, a, F64, lda, stride_a), (op_b, b, F64, ldb, stride_b),
            (0, c.cast_const(), F64, ldc, stride_c)];
        product(driver, handle, Product::new([m, n, k, batch], COMPUTE_64F, [alpha, beta], given))
    }

    fn cublasSgemm_v2(handle: usize, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, lda: c_int, b: *const c_void, ldb: c_int, beta: *const c_void,
        c: *mut c_void, ldc: c_int) Context |driver|
    {
        let given = [(op_a, a, F32, lda, 0), (op_b, b, F32, ldb, 0), (0, c.cast_const(), F32, ldc, 0)];
        product(driver, handle, Product::new([m, n, k, 1], COMPUTE_32F, [alpha, beta], given))
    }

    fn cublasDgemm_v2(handle: usize, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int,
        alpha: *const c_void, a: *const c_void, lda: c_int, b: *const c_void, ldb: c_int, beta: *const c_void,
        c: *mut c_void, ldc: c_int) Context |driver|
    {
        let given = [(op_a, a, F64, lda, 0), (op_b, b, F64, ldb, 0), (0, c.cast_const(), F64, ldc, 0)];
        product(driver, handle, Product::new([m, n, k, 1], COMPUTE_64F, [alpha, beta], given))
    }
}

/// Description of a status.
#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusString(status: c_int) -> *const c_char {
    cublas::ALL
        .iter()
        .find(|entry| entry.0 == status)
        .map_or(c"an unknown status".as_ptr(), |entry| entry.3.as_ptr())
}
