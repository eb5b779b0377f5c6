//! What a device reaches at its simplest: a dense product, and reading a large matrix once. Achieved figures of layers say
//! more beside these than beside a data sheet alone, and many devices have none here.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use serde::Serialize;

/// What a device reached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Yardsticks {
    /// The dtype of the product and of the matrix.
    pub dtype: &'static str,
    /// The side of the square product.
    pub side: usize,
    /// Operations a second of the product.
    pub products: f64,
    /// Operations a second of the same product in f32.
    pub products_f32: f64,
    /// Bytes a second of multiplying one row with a matrix of `matrix_bytes`, as decoding does.
    pub reading: f64,
    /// Bytes of that matrix.
    pub matrix_bytes: u64,
}

impl Yardsticks {
    /// Measures `device` in `dtype`; `quick` at sizes that show that it works and no more.
    pub fn of(device: &Device, dtype: DType, quick: bool) -> Result<Self> {
        let (side, rows) = match (quick, device.is_cpu()) {
            (true, _) => (128, 256),
            (false, true) => (2048, 8192),
            (false, false) => (8192, 16_384),
        };
        let products = |dtype| -> Result<f64> {
            let square = varied(side, dtype, device)?;
            let seconds = best(device, || square.matmul(&square))?;
            Ok(2.0 * (side as f64).powi(3) / seconds)
        };
        let reading = || -> Result<f64> {
            let matrix = varied(rows, dtype, device)?;
            let row = matrix.narrow(0, 0, 1)?.copy()?;
            let seconds = best(device, || row.matmul(&matrix))?;
            Ok((rows * rows * dtype.size_in_bytes()) as f64 / seconds)
        };
        Ok(Yardsticks {
            dtype: dtype.as_str(),
            side,
            products: products(dtype)?,
            products_f32: products(DType::F32)?,
            reading: reading()?,
            matrix_bytes: (rows * rows * dtype.size_in_bytes()) as u64,
        })
    }
}

/// A square matrix of numbers that differ: zeros and ones take less power, and untouched zeros no memory.
fn varied(side: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    const ROWS: usize = 32;
    let values = (0..ROWS * side).map(|i| ((i * 7919) % 65_537) as f32 / 32_768.0 - 1.0).collect();
    let rows = Tensor::from_vec(values, (ROWS, side), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
    Tensor::cat(&vec![rows; side / ROWS], 0)
}

/// Seconds of the fastest of a few runs, after one that is not counted.
pub fn best<T>(device: &Device, mut run: impl FnMut() -> Result<T>) -> Result<f64> {
    const RUNS: usize = 4;
    let mut best = f64::INFINITY;
    for i in 0..=RUNS {
        device.synchronize()?;
        let start = Instant::now();
        let made = run()?;
        device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        drop(made);
        if i > 0 {
            best = best.min(seconds);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yardsticks_are_finite_figures_above_nothing_in_every_dtype() -> Result<()> {
        for dtype in [DType::F32, DType::BF16] {
            let found = Yardsticks::of(&Device::Cpu, dtype, true)?;
            for figure in [found.products, found.products_f32, found.reading] {
                assert!(figure.is_finite() && figure > 0.0, "{found:?}");
            }
        }
        Ok(())
    }
}
