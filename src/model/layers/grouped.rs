//! Quantised weights in the form that decoding reads: int8 with a scale and a minimum a group.
//!
//! A weight is `scale * q + min` with one scale and minimum for each group of 32 columns, which is what the GGUF block
//! types Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 mean; repacking them changes no weight. Products are with f32 activations, not
//! with activations rounded to int8 as in llama.cpp, so decoding agrees with prefill to f32 rounding. Other block types
//! are left to Candle's product.

use candle_core::quantized::GgmlDType;
use candle_core::{CpuStorage, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

/// Columns that share a scale.
const GROUP: usize = 32;
const LANES: usize = 16;
/// Output rows of one task.
const ROWS: usize = 64;

/// A quantised (out, in) matrix.
#[derive(Debug)]
pub(in crate::model) struct GroupedInt8 {
    rows: usize,
    cols: usize,
    /// (out, in)
    quants: Vec<i8>,
    /// (out, in / GROUP)
    scales: Vec<f32>,
    /// (out, in / GROUP), for the types that have one.
    mins: Option<Vec<f32>>,
}

impl GroupedInt8 {
    /// Repacks GGUF blocks of `dtype`; `None` where the type is none of those above.
    pub fn from_blocks(dtype: GgmlDType, bytes: &[u8], rows: usize, cols: usize) -> Option<Self> {
        let has_mins = matches!(dtype, GgmlDType::Q4_1 | GgmlDType::Q5_1);
        let known = has_mins || matches!(dtype, GgmlDType::Q4_0 | GgmlDType::Q5_0 | GgmlDType::Q8_0);
        let size = dtype.type_size();
        if !known || !cols.is_multiple_of(GROUP) || bytes.len() != rows * cols / GROUP * size {
            return None;
        }
        let groups = rows * cols / GROUP;
        let mut matrix = GroupedInt8 {
            rows,
            cols,
            quants: vec![0; rows * cols],
            scales: vec![0.0; groups],
            mins: has_mins.then(|| vec![0.0; groups]),
        };
        let half = |block: &[u8], at: usize| half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        for (g, (block, quants)) in
            bytes.chunks_exact(size).zip(matrix.quants.chunks_exact_mut(GROUP)).enumerate()
        {
            matrix.scales[g] = half(block, 0);
            if let Some(mins) = &mut matrix.mins {
                mins[g] = half(block, 2);
            }
            let body = &block[if has_mins { 4 } else { 2 }..];
            match dtype {
                GgmlDType::Q8_0 => {
                    for (q, &b) in quants.iter_mut().zip(body) {
                        *q = b.cast_signed();
                    }
                }
                GgmlDType::Q4_0 | GgmlDType::Q4_1 => {
                    let centre = if has_mins { 0 } else { 8 };
                    for i in 0..GROUP / 2 {
                        quants[i] = (body[i] & 15).cast_signed() - centre;
                        quants[i + GROUP / 2] = (body[i] >> 4).cast_signed() - centre;
                    }
                }
                _ => {
                    // Q5_0 and Q5_1: 32 fifth bits, then 16 bytes of nibbles.
                    let centre = if has_mins { 0 } else { 16 };
                    let fifth = u32::from_le_bytes([body[0], body[1], body[2], body[3]]);
                    let bit = |i: usize| if fifth >> i & 1 == 1 { 16i8 } else { 0 };
                    for i in 0..GROUP / 2 {
                        let nibbles = body[4 + i];
                        quants[i] = ((nibbles & 15).cast_signed() | bit(i)) - centre;
                        quants[i + GROUP / 2] = ((nibbles >> 4).cast_signed() | bit(i + GROUP / 2)) - centre;
                    }
                }
            }
        }
        Some(matrix)
    }

    /// (l, in) f32 on the CPU -> (l, out)
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.contiguous()?.apply_op1_no_bwd(&Product(self))
    }

    fn product(&self, x: &[f32]) -> Vec<f32> {
        let simd = pulp::Arch::new();
        let mut out = vec![0f32; x.len() / self.cols * self.rows];
        for (x, out) in x.chunks_exact(self.cols).zip(out.chunks_exact_mut(self.rows)) {
            let sums: Vec<f32> = x.chunks_exact(GROUP).map(|g| g.iter().sum()).collect();
            out.par_chunks_mut(ROWS).enumerate().for_each(|(task, out)| {
                simd.dispatch(Rows { matrix: self, first: task * ROWS, x, sums: &sums, out });
            });
        }
        out
    }
}

/// A run of output rows.
struct Rows<'a> {
    matrix: &'a GroupedInt8,
    first: usize,
    x: &'a [f32],
    /// The sum of every group of `x`, which the minimum is multiplied by.
    sums: &'a [f32],
    out: &'a mut [f32],
}

impl pulp::WithSimd for Rows<'_> {
    type Output = ();

    // Always inlined, so that the loops are compiled with the features that pulp found.
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Rows { matrix, first, x, sums, out } = self;
        let groups = matrix.cols / GROUP;
        let (x, _) = x.as_chunks::<GROUP>();
        for (i, y) in out.iter_mut().enumerate() {
            let row = first + i;
            let (quants, _) = matrix.quants[row * matrix.cols..(row + 1) * matrix.cols].as_chunks::<GROUP>();
            let scales = &matrix.scales[row * groups..(row + 1) * groups];
            let mut lanes = [0f32; LANES];
            for ((q, x), &scale) in quants.iter().zip(x).zip(scales) {
                for lane in 0..LANES {
                    let part = f32::from(q[lane]) * x[lane] + f32::from(q[lane + LANES]) * x[lane + LANES];
                    lanes[lane] += scale * part;
                }
            }
            *y = lanes.iter().sum::<f32>();
            if let Some(mins) = &matrix.mins {
                let mins = &mins[row * groups..(row + 1) * groups];
                *y += mins.iter().zip(sums).map(|(min, sum)| min * sum).sum::<f32>();
            }
        }
    }
}

/// The product as a Candle operation.
struct Product<'a>(&'a GroupedInt8);

impl candle_core::CustomOp1 for Product<'_> {
    fn name(&self) -> &'static str {
        "grouped-int8-product"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (l, cols) = layout.shape().dims2()?;
        let (CpuStorage::F32(data), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            candle_core::bail!("quantised products take contiguous f32 activations on the CPU");
        };
        if cols != self.0.cols {
            candle_core::bail!(
                "a product of ({l}, {cols}) with a weight of ({}, {})",
                self.0.rows,
                self.0.cols
            );
        }
        Ok((CpuStorage::F32(self.0.product(&data[start..end])), Shape::from((l, self.0.rows))))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::quantized::QTensor;
    use candle_core::{Device, Tensor};

    use super::*;

    #[test]
    fn products_equal_those_with_dequantised_weights_for_every_block_type_and_any_row_count() -> Result<()> {
        let device = Device::Cpu;
        for dtype in [GgmlDType::Q4_0, GgmlDType::Q4_1, GgmlDType::Q5_0, GgmlDType::Q5_1, GgmlDType::Q8_0] {
            for (l, cols, rows) in [(1, 32, 1), (3, 96, 65), (1, 576, 200)] {
                let weight = Tensor::randn(0f32, 1.0, (rows, cols), &device)?;
                let quantised = QTensor::quantize(&weight, dtype)?;
                let dense = quantised.dequantize(&device)?;
                let bytes = quantised.data()?;
                let Some(matrix) = GroupedInt8::from_blocks(dtype, &bytes, rows, cols) else {
                    panic!("{dtype:?} is not repacked");
                };
                let x = Tensor::randn(0f32, 1.0, (l, cols), &device)?;
                let difference = (matrix.forward(&x)? - x.matmul(&dense.t()?)?)?.abs()?.max_all()?;
                let difference = difference.to_scalar::<f32>()?;
                assert!(difference < 1e-4, "{dtype:?} ({l}, {cols}, {rows}): {difference}");
            }
        }
        Ok(())
    }
}
