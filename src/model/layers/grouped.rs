//! Quantised weights in the form that decoding reads: int8 with a scale and a minimum a group.
//!
//! A weight is `scale * q + min` with one scale and minimum for each group of 16 or 32 columns, which is what every quantised
//! type of GGUF means; repacking changes no weight. Products are with f32 activations, not with activations rounded to
//! int8 as in llama.cpp, so decoding agrees with prefill to f32 rounding.

use candle_core::{CpuStorage, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::super::weights::BlockType;

const LANES: usize = 16;
/// Output rows of one task.
const ROWS: usize = 64;

/// A quantised (out, in) matrix.
#[derive(Debug)]
pub(in crate::model) struct GroupedInt8 {
    rows: usize,
    cols: usize,
    /// Columns that share a scale: 16 or 32.
    group: usize,
    /// (out, in)
    quants: Vec<i8>,
    /// (out, in / group)
    scales: Vec<f32>,
    /// (out, in / group), for the types that have one.
    mins: Option<Vec<f32>>,
}

impl GroupedInt8 {
    /// Repacks the (rows, cols) blocks of a GGUF tensor; `None` where the type is dense, or where `bytes` are not rows of whole
    /// blocks.
    pub fn from_blocks(dtype: BlockType, bytes: &[u8], rows: usize, cols: usize) -> Option<Self> {
        let groups = dtype.groups()?;
        let block = dtype.columns();
        let blocks = rows.checked_mul(cols)? / block;
        if cols == 0 || !cols.is_multiple_of(block) || blocks.checked_mul(dtype.bytes())? != bytes.len() {
            return None;
        }
        let in_block = block / groups.columns;
        let mut quants = vec![0i8; blocks * block];
        let mut scales = vec![0f32; blocks * in_block];
        // Where the type has no minima, every block gets an empty run of them.
        let mut mins = vec![0f32; if groups.mins { scales.len() } else { 0 }];
        let row_blocks = cols / block;
        let mut mins_of_rows: Vec<&mut [f32]> = if groups.mins {
            mins.chunks_exact_mut(row_blocks * in_block).collect()
        } else {
            (0..rows).map(|_| Default::default()).collect()
        };
        quants
            .par_chunks_exact_mut(cols)
            .zip(scales.par_chunks_exact_mut(row_blocks * in_block))
            .zip(mins_of_rows.par_iter_mut())
            .zip(bytes.par_chunks_exact(row_blocks * dtype.bytes()))
            .for_each(|(((quants, scales), mins), bytes)| {
                for (i, bytes) in bytes.chunks_exact(dtype.bytes()).enumerate() {
                    let of_block = i * in_block..(i + 1) * in_block;
                    let mins = if groups.mins { &mut mins[of_block.clone()] } else { &mut [] };
                    dtype.unpack(bytes, &mut quants[i * block..(i + 1) * block], &mut scales[of_block], mins);
                }
            });
        let mins = groups.mins.then_some(mins);
        Some(GroupedInt8 { rows, cols, group: groups.columns, quants, scales, mins })
    }

    /// (l, in) f32 on the CPU -> (l, out)
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.contiguous()?.apply_op1_no_bwd(&Product(self))
    }

    fn product(&self, x: &[f32]) -> Vec<f32> {
        let simd = pulp::Arch::new();
        let mut out = vec![0f32; x.len() / self.cols * self.rows];
        for (x, out) in x.chunks_exact(self.cols).zip(out.chunks_exact_mut(self.rows)) {
            let sums: Vec<f32> = match self.mins {
                Some(_) => x.chunks_exact(self.group).map(|g| g.iter().sum()).collect(),
                None => Vec::new(),
            };
            let sums = &sums;
            out.par_chunks_mut(ROWS).enumerate().for_each(|(task, out)| {
                let first = task * ROWS;
                match self.group {
                    16 => simd.dispatch(Rows::<16> { matrix: self, first, x, sums, out }),
                    _ => simd.dispatch(Rows::<32> { matrix: self, first, x, sums, out }),
                }
            });
        }
        out
    }
}

/// A run of output rows of a matrix of groups of `GROUP` columns.
struct Rows<'a, const GROUP: usize> {
    matrix: &'a GroupedInt8,
    first: usize,
    x: &'a [f32],
    /// The sum of every group of `x`, which the minimum is multiplied by; empty where there are no minima.
    sums: &'a [f32],
    out: &'a mut [f32],
}

impl<const GROUP: usize> pulp::WithSimd for Rows<'_, GROUP> {
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
                    let mut part = f32::from(q[lane]) * x[lane];
                    if GROUP > LANES {
                        part += f32::from(q[GROUP - LANES + lane]) * x[GROUP - LANES + lane];
                    }
                    lanes[lane] += scale * part;
                }
            }
            *y = lanes.iter().sum::<f32>();
            if let Some(mins) = &matrix.mins {
                *y += dot(&mins[row * groups..(row + 1) * groups], sums);
            }
        }
    }
}

/// The sum of products, in lanes: one running sum would wait for itself at every product.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>();
    lanes.iter().sum::<f32>() + rest
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
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};

    use super::*;

    const BY_32: [(BlockType, GgmlDType); 5] = [
        (BlockType::Q4_0, GgmlDType::Q4_0),
        (BlockType::Q4_1, GgmlDType::Q4_1),
        (BlockType::Q5_0, GgmlDType::Q5_0),
        (BlockType::Q5_1, GgmlDType::Q5_1),
        (BlockType::Q8_0, GgmlDType::Q8_0),
    ];
    const BY_256: [(BlockType, GgmlDType); 5] = [
        (BlockType::Q2K, GgmlDType::Q2K),
        (BlockType::Q3K, GgmlDType::Q3K),
        (BlockType::Q4K, GgmlDType::Q4K),
        (BlockType::Q5K, GgmlDType::Q5K),
        (BlockType::Q6K, GgmlDType::Q6K),
    ];

    /// The largest difference of two products over the largest entry of the second.
    fn apart(found: &Tensor, expected: &Tensor) -> Result<f32> {
        let largest = |t: Tensor| t.abs()?.max_all()?.to_scalar::<f32>();
        Ok(largest((found - expected)?)? / largest(expected.clone())?)
    }

    #[test]
    fn products_equal_those_with_weights_that_candle_dequantised_for_every_block_type_and_any_row_count()
    -> Result<()> {
        let device = Device::Cpu;
        let by_32 = BY_32.map(|types| (types, [(1, 32, 1), (3, 96, 65), (1, 576, 200)]));
        let by_256 = BY_256.map(|types| (types, [(1, 256, 1), (3, 512, 65), (1, 768, 200)]));
        for ((dtype, candle), sizes) in by_32.into_iter().chain(by_256) {
            for (l, cols, rows) in sizes {
                let weight = Tensor::randn(0f32, 1.0, (rows, cols), &device)?;
                let quantised = QTensor::quantize(&weight, candle)?;
                let dense = quantised.dequantize(&device)?;
                let Some(matrix) = GroupedInt8::from_blocks(dtype, &quantised.data()?, rows, cols) else {
                    panic!("{dtype:?} is not repacked");
                };
                let x = Tensor::randn(0f32, 1.0, (l, cols), &device)?;
                let difference = apart(&matrix.forward(&x)?, &x.matmul(&dense.t()?)?)?;
                assert!(difference < 1e-4, "{dtype:?} ({l}, {cols}, {rows}): {difference}");
            }
        }
        Ok(())
    }

    #[test]
    fn products_with_mxfp4_equal_those_with_its_dequantised_weights() -> Result<()> {
        let (rows, cols) = (65, 96);
        // Scales around one, and every nibble.
        let bytes: Vec<u8> = (0..rows * cols / 32)
            .flat_map(|block| {
                let scale = 120 + (block % 16) as u8;
                std::iter::once(scale).chain((0..16).map(move |i| (block * 31 + i * 37) as u8))
            })
            .collect();
        let Ok(dense) = crate::model::weights::gguf::dequantise(BlockType::Mxfp4, &bytes) else {
            panic!("whole blocks are dequantised");
        };
        let dense = Tensor::from_vec(dense, (rows, cols), &Device::Cpu)?;
        let Some(matrix) = GroupedInt8::from_blocks(BlockType::Mxfp4, &bytes, rows, cols) else {
            panic!("MXFP4 is not repacked");
        };
        let x = Tensor::randn(0f32, 1.0, (2, cols), &Device::Cpu)?;
        let difference = apart(&matrix.forward(&x)?, &x.matmul(&dense.t()?)?)?;
        assert!(difference < 1e-4, "{difference}");
        Ok(())
    }

    #[test]
    fn dense_types_and_bytes_that_are_not_whole_rows_of_blocks_are_not_repacked() {
        assert!(GroupedInt8::from_blocks(BlockType::F16, &[0; 64], 1, 32).is_none());
        assert!(GroupedInt8::from_blocks(BlockType::Q4_0, &[0; 18], 1, 32).is_some());
        assert!(GroupedInt8::from_blocks(BlockType::Q4_0, &[0; 17], 1, 32).is_none());
        assert!(GroupedInt8::from_blocks(BlockType::Q4_0, &[0; 18], 2, 16).is_none());
        assert!(GroupedInt8::from_blocks(BlockType::Q4K, &[0; 144], 8, 32).is_none());
        assert!(GroupedInt8::from_blocks(BlockType::Q4_0, &[], usize::MAX, 32).is_none());
    }
}
