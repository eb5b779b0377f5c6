//! Products of f32 activations with packed weights, the hot loop of decode.
//!
//! Bound by reading weights, so there is one pass over them: a task takes whole panels of 64 output rows, stored in reading order; lanes
//! are output rows, so scales are vectors and nothing is reduced across lanes; activation rows and matrices with the same input share the
//! pass. Activations stay f32, not int8 as in llama.cpp, so decode agrees with prefill to f32 rounding. A row's outputs do not depend on
//! other rows, matrices or threads.

use candle_core::{CpuStorage, Device, Result, Storage, Tensor};
use rayon::prelude::*;

use super::lanes::{FactorsOf, Quants};
use super::packed::{PANEL, PackedWeight};

/// Maximum activation rows per pass.
const MOST_ROWS: usize = 4;
/// Minimum bytes of weights per task.
const TASK_BYTES: usize = 1 << 16;

/// `x` (l, in), f32 on the CPU, times each of `weights` (out, in): (l, out) each.
pub(super) fn products(weights: &[&PackedWeight], x: &Tensor) -> Result<Vec<Tensor>> {
    let (l, cols) = x.dims2()?;
    if let Some(weight) = weights.iter().find(|weight| weight.cols != cols) {
        candle_core::bail!("a product of ({l}, {cols}) with a weight of ({}, {})", weight.rows, weight.cols);
    }
    let x = x.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    let (Storage::Cpu(CpuStorage::F32(data)), Some((start, end))) = (&*storage, layout.contiguous_offsets())
    else {
        candle_core::bail!("quantised products take f32 activations on the CPU");
    };
    products_on(pulp::Arch::new(), weights, &data[start..end], l)
        .into_iter()
        .zip(weights)
        .map(|(y, weight)| Tensor::from_vec(y, (l, weight.rows), &Device::Cpu))
        .collect()
}

fn products_on(arch: pulp::Arch, weights: &[&PackedWeight], x: &[f32], l: usize) -> Vec<Vec<f32>> {
    let inputs: Vec<Vec<RowBlock>> = weights.iter().map(|weight| RowBlock::all(x, l, weight)).collect();
    // (panels of all matrices, l, rows of a panel)
    let starts: Vec<usize> = weights
        .iter()
        .scan(0, |next, weight| Some(std::mem::replace(next, *next + weight.rows.div_ceil(PANEL))))
        .collect();
    let panels: usize = weights.iter().map(|weight| weight.rows.div_ceil(PANEL)).sum();
    let bytes: usize = weights.iter().map(|weight| 4 * weight.quants.len()).sum();
    let mut out = vec![0f32; panels * l * PANEL];
    let least = (TASK_BYTES * panels / bytes.max(1)).max(1);
    out.par_chunks_exact_mut((l * PANEL).max(1)).enumerate().with_min_len(least).for_each(|(panel, out)| {
        let at = starts.partition_point(|&start| start <= panel) - 1;
        arch.dispatch(Panel { weight: weights[at], panel: panel - starts[at], inputs: &inputs[at], out });
    });
    (weights.iter().zip(&starts))
        .map(|(weight, &start)| {
            let own = &out[start * l * PANEL..][..weight.rows.div_ceil(PANEL) * l * PANEL];
            let mut y = Vec::with_capacity(l * weight.rows);
            for row in 0..l {
                for (panel, out) in own.chunks_exact(l * PANEL).enumerate() {
                    let rows = PANEL.min(weight.rows - panel * PANEL);
                    y.extend_from_slice(&out[row * PANEL..][..rows]);
                }
            }
            y
        })
        .collect()
}

/// Up to [`MOST_ROWS`] rows of activations.
struct RowBlock {
    rows: usize,
    /// (in, rows)
    x: Vec<f32>,
    /// Group sums (in / group, rows), to be multiplied by the minima; empty without minima.
    sums: Vec<f32>,
}

impl RowBlock {
    fn all(x: &[f32], l: usize, weight: &PackedWeight) -> Vec<RowBlock> {
        let cols = weight.cols;
        let part = |first: usize| {
            let rows = MOST_ROWS.min(l - first);
            let x = &x[first * cols..(first + rows) * cols];
            let mut turned = vec![0f32; x.len()];
            for (row, x) in x.chunks_exact(cols).enumerate() {
                turned.iter_mut().skip(row).step_by(rows).zip(x).for_each(|(to, from)| *to = *from);
            }
            let groups = cols / weight.groups.columns;
            let mut sums = vec![0f32; if weight.mins.is_some() { groups * rows } else { 0 }];
            for (i, sum) in sums.iter_mut().enumerate() {
                let (group, row) = (i / rows, i % rows);
                *sum = x[row * cols + group * weight.groups.columns..][..weight.groups.columns].iter().sum();
            }
            RowBlock { rows, x: turned, sums }
        };
        (0..l).step_by(MOST_ROWS).map(part).collect()
    }
}

struct Panel<'a> {
    weight: &'a PackedWeight,
    panel: usize,
    inputs: &'a [RowBlock],
    /// (l, rows of a panel)
    out: &'a mut [f32],
}

impl pulp::WithSimd for Panel<'_> {
    type Output = ();

    // Inlined throughout: pulp's target features must reach the loops.
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        match self.weight.groups.nibbles {
            true => self.parts::<S, 8>(simd),
            false => self.parts::<S, 4>(simd),
        }
    }
}

impl Panel<'_> {
    #[inline(always)]
    fn parts<S: pulp::Simd, const PER_WORD: usize>(self, simd: S) {
        let Panel { weight, panel, inputs, out } = self;
        for (part, out) in inputs.iter().zip(out.chunks_mut(MOST_ROWS * PANEL)) {
            // Accumulators: enough to keep the multipliers busy and to fit the registers; AVX-512 has twice as many.
            match (part.rows, S::F32_LANES) {
                (1, _) => rows::<S, PER_WORD, 1, 4>(simd, weight, panel, part, out),
                (2, 16) => rows::<S, PER_WORD, 2, 4>(simd, weight, panel, part, out),
                (2, _) => rows::<S, PER_WORD, 2, 2>(simd, weight, panel, part, out),
                (3, 16) => rows::<S, PER_WORD, 3, 4>(simd, weight, panel, part, out),
                (3, _) => rows::<S, PER_WORD, 3, 2>(simd, weight, panel, part, out),
                (_, 16) => rows::<S, PER_WORD, 4, 4>(simd, weight, panel, part, out),
                _ => rows::<S, PER_WORD, 4, 2>(simd, weight, panel, part, out),
            }
        }
    }
}

/// One panel times `L` activation rows, `B` registers of output rows at a time.
#[inline(always)]
fn rows<S: pulp::Simd, const PER_WORD: usize, const L: usize, const B: usize>(
    simd: S,
    weight: &PackedWeight,
    panel: usize,
    part: &RowBlock,
    out: &mut [f32],
) {
    let words = weight.quants.len() / weight.rows.div_ceil(PANEL);
    let (words, _) = weight.quants[panel * words..][..words].as_chunks::<PANEL>();
    let (x, _) = part.x.as_chunks::<L>();
    let (x, _) = x.as_chunks::<PER_WORD>();
    let (sums, _) = part.sums.as_chunks::<L>();
    let of_group = weight.groups.columns / PER_WORD;
    let quants = Quants::<S, PER_WORD>::new(simd, weight.groups.added(), 0);
    let scales = FactorsOf::new(simd, &weight.scales, weight, panel);
    let mins = weight.mins.as_ref().map(|mins| FactorsOf::new(simd, mins, weight, panel));
    let zero = simd.splat_f32s(0.0);
    for first in (0..PANEL / S::F32_LANES).step_by(B) {
        let mut acc = [[zero; L]; B];
        for (g, (x, words)) in x.chunks_exact(of_group).zip(words.chunks_exact(of_group)).enumerate() {
            let mut sum = [[zero; L]; B];
            for (x, words) in x.iter().zip(words) {
                let (words, _) = S::as_simd_u32s(words);
                let (words, _) = words[first..].as_chunks::<B>();
                for (i, x) in x.iter().enumerate() {
                    for (sum, &words) in sum.iter_mut().zip(&words[0]) {
                        let quant = quants.get(words, i);
                        for (sum, &x) in sum.iter_mut().zip(x) {
                            *sum = simd.mul_add_e_f32s(quant, simd.splat_f32s(x), *sum);
                        }
                    }
                }
            }
            for (b, (acc, sum)) in acc.iter_mut().zip(&sum).enumerate() {
                let scale = scales.get(g, first + b);
                for (acc, &sum) in acc.iter_mut().zip(sum) {
                    *acc = simd.mul_add_e_f32s(scale, sum, *acc);
                }
                if let Some(mins) = &mins {
                    let min = mins.get(g, first + b);
                    for (acc, &sum) in acc.iter_mut().zip(&sums[g]) {
                        *acc = simd.mul_add_e_f32s(min, simd.splat_f32s(sum), *acc);
                    }
                }
            }
        }
        for (r, out) in out.chunks_exact_mut(PANEL).enumerate().take(L) {
            let (out, _) = S::as_mut_simd_f32s(out);
            for (out, acc) in out[first..].iter_mut().zip(&acc) {
                *out = acc[r];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::packed::tests::{TYPES, blocks, packed, random};
    use super::*;
    use crate::model::weights::BlockType;

    fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
        tensor.flatten_all()?.to_vec1()
    }

    /// Instruction sets supported by this machine.
    fn instructions() -> Vec<pulp::Arch> {
        #[cfg(target_arch = "x86_64")]
        let known = [
            Some(pulp::Arch::Scalar),
            pulp::x86::V3::try_new().map(pulp::Arch::V3),
            pulp::x86::V4::try_new().map(pulp::Arch::V4),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let known = [Some(pulp::Arch::Scalar), Some(pulp::Arch::new())];
        known.into_iter().flatten().collect()
    }

    #[test]
    fn products_equal_those_with_dequantised_weights_for_every_block_type_row_count_and_instruction_set()
    -> Result<()> {
        for dtype in TYPES {
            let least = dtype.columns();
            for (l, cols, rows) in
                [(1, least, 1), (2, 3 * least, 65), (3, 768, 200), (5, 512, 64), (8, 768, 192)]
            {
                let (bytes, dense) = blocks(dtype, rows, cols);
                let weight = packed(dtype, &bytes, rows, cols);
                let x = Tensor::randn(0f32, 1.0, (l, cols), &Device::Cpu)?;
                let expected = numbers(&x.matmul(&dense.t()?)?)?;
                // Sums may cancel, so errors are relative to sums of absolute values.
                let sizes = numbers(&x.abs()?.matmul(&dense.abs()?.t()?)?)?;
                for arch in instructions() {
                    let found = &products_on(arch, &[&weight], &numbers(&x)?, l)[0];
                    assert_eq!(found.len(), expected.len());
                    let by_size =
                        found.iter().zip(&expected).zip(&sizes).map(|((a, b), size)| (a - b).abs() / size);
                    let difference = by_size.fold(0.0, f32::max);
                    assert!(difference < 1e-5, "{dtype:?} ({l}, {cols}, {rows}) {arch:?}: {difference}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_row_has_the_bits_that_it_has_alone_whatever_rows_and_matrices_it_is_multiplied_with() -> Result<()> {
        let cols = 512;
        let weights: Vec<PackedWeight> =
            TYPES.iter().enumerate().map(|(i, &dtype)| random(dtype, 40 + 60 * i, cols)).collect();
        let together: Vec<&PackedWeight> = weights.iter().collect();
        let x = Tensor::randn(0f32, 1.0, (9, cols), &Device::Cpu)?;
        for l in 1..=9 {
            let all = products(&together, &x.narrow(0, 0, l)?)?;
            for (weight, all) in weights.iter().zip(all) {
                assert_eq!(all.dims(), [l, weight.rows()]);
                for row in 0..l {
                    let alone = &products(&[weight], &x.narrow(0, row, 1)?)?[0];
                    let (alone, found) = (numbers(alone)?, numbers(&all.narrow(0, row, 1)?)?);
                    let same = alone.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "row {row} of {l} with {:?}", weight.dtype);
                }
            }
        }
        Ok(())
    }

    #[test]
    fn activations_of_another_width_are_refused() -> Result<()> {
        let x = Tensor::zeros((1, 32), candle_core::DType::F32, &Device::Cpu)?;
        let refusal = products(&[&random(BlockType::Q8_0, 64, 64)], &x).unwrap_err().to_string();
        assert!(refusal.contains("(1, 32) with a weight of (64, 64)"), "{refusal}");
        Ok(())
    }
}
