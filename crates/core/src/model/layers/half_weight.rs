//! bf16 matrix products on the CPU with f32 accumulation.
//!
//! Weights are stored in panels of [`PANEL`] outputs with adjacent inputs as pairs: lanes are outputs, weights are read sequentially, and
//! there is no reduction across lanes. The kernel is AMX if available and verified by a self-test, else AVX512-BF16; elsewhere weights are
//! widened and multiplied in f32. Each sum is one chain over the inputs, so a row's outputs do not depend on other rows or threads;
//! kernels differ by f32 rounding.

use std::sync::OnceLock;

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor};
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use crate::bfloat;
use crate::transfer;

#[cfg(target_arch = "x86_64")]
mod amx;
mod target;

use target::{PANEL, Target};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// AMX.
    #[cfg(target_arch = "x86_64")]
    Tiles,
    /// AVX512-BF16.
    Pairs,
    /// f32 arithmetic on widened numbers.
    Wide,
}

impl Kernel {
    fn fastest() -> Self {
        #[cfg(target_arch = "x86_64")]
        if tiles_serve() {
            return Kernel::Tiles;
        }
        if bfloat::multiplies() { Kernel::Pairs } else { Kernel::Wide }
    }

    fn rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Tiles => amx::ROWS,
            Kernel::Pairs | Kernel::Wide => ROWS,
        }
    }
}

/// Rows per tile.
const ROWS: usize = 12;
/// Maximum rows per task; `GROUP`: panels per task with few rows, read at once in decode.
const TASK_ROWS: usize = 8 * ROWS;
const GROUP: usize = 4;

#[cfg(target_arch = "x86_64")]
/// True if AMX is supported, granted by the system and correct.
fn tiles_serve() -> bool {
    static SERVES: OnceLock<bool> = OnceLock::new();
    *SERVES.get_or_init(|| amx::is_here() && tiles_agree())
}

#[cfg(target_arch = "x86_64")]
/// Compares products of full and partial tiles with the plain definition.
fn tiles_agree() -> bool {
    let agrees = [(1, 2), (5, 40), (16, 32), (33, 70)].into_iter().all(|(rows, cols)| {
        // Small integers, whose sums are exact.
        let number = |seed: usize| ((seed * 7919 + 13) % 17) as f32 - 8.0;
        let weight = HalfWeight::of(PANEL, cols, |row, to| {
            to.iter_mut().enumerate().for_each(|(i, to)| *to = bfloat::round(number(row * cols + i)));
        });
        let x: Vec<f32> = (0..rows * cols).map(|i| number(i + 5)).collect();
        let x = transfer::upload(x, (rows, cols), &Device::Cpu);
        let Ok(input) = x.and_then(|x| HalfInput::for_kernel(&x, Kernel::Tiles)) else { return false };
        let found = input.product(&weight).and_then(|y| transfer::fetch(&y));
        let expected = |row: usize, output: usize| -> f32 {
            (0..cols).map(|i| number(row * cols + i + 5) * number(output * cols + i)).sum()
        };
        found
            .is_ok_and(|found| found.iter().enumerate().all(|(at, y)| *y == expected(at / PANEL, at % PANEL)))
    });
    if !agrees {
        tracing::warn!(
            "the products of this processor's AMX are not those of their definition; AVX512-BF16 is used"
        );
    }
    agrees
}

/// A bf16 weight (out, in).
#[derive(Debug)]
pub struct HalfWeight {
    rows: usize,
    cols: usize,
    /// (panels, in / 2, outputs of a panel), zero-padded.
    pairs: Vec<u32>,
}

impl HalfWeight {
    /// From `weight` (out, in), rounded to bf16. Returns an error if it is no matrix on the CPU.
    pub fn new(weight: &Tensor) -> Result<Self> {
        let (rows, cols) = weight.dims2()?;
        let weight = bfloat::to_dtype(weight, DType::BF16)?.contiguous()?;
        let (storage, layout) = weight.storage_and_layout();
        let (Storage::Cpu(CpuStorage::BF16(data)), Some((start, end))) =
            (&*storage, layout.contiguous_offsets())
        else {
            candle_core::bail!("This is a bug: a weight in bf16 is none on the CPU");
        };
        let data = data[start..end].reinterpret_cast();
        Ok(Self::of(rows, cols, |row, to| to.copy_from_slice(&data[row * cols..(row + 1) * cols])))
    }

    /// From parts (row count, f32 (in, outputs)) in output order; all but the last consist of full panels.
    pub(super) fn of_columns(
        rows: usize,
        cols: usize,
        parts: impl Iterator<Item = (usize, Vec<f32>)>,
    ) -> Self {
        let length = cols.div_ceil(2);
        let mut pairs = Vec::with_capacity(rows.div_ceil(PANEL) * length * PANEL);
        for (outputs, values) in parts {
            let start = pairs.len();
            pairs.resize(start + outputs.div_ceil(PANEL) * length * PANEL, 0u32);
            let panels = pairs[start..].par_chunks_exact_mut((length * PANEL).max(1));
            panels.enumerate().for_each(|(panel, pairs)| {
                let own = panel * PANEL..outputs.min((panel + 1) * PANEL);
                let column =
                    |i: usize| values.get(i * outputs..(i + 1) * outputs).map(|all| &all[own.clone()]);
                for (i, pairs) in pairs.chunks_exact_mut(PANEL).enumerate() {
                    let (Some(first), second) = (column(2 * i), column(2 * i + 1)) else { continue };
                    for (lane, (to, &x)) in pairs.iter_mut().zip(first).enumerate() {
                        let second = second.map_or(0, |second| bfloat::round(second[lane]));
                        *to = bfloat::pair(bfloat::round(x), second);
                    }
                }
            });
        }
        HalfWeight { rows, cols, pairs }
    }

    /// From rows of `cols` numbers, written by `write`.
    fn of(rows: usize, cols: usize, write: impl Fn(usize, &mut [u16]) + Sync) -> Self {
        let length = cols.div_ceil(2);
        let mut pairs = vec![0u32; rows.div_ceil(PANEL) * length * PANEL];
        pairs.par_chunks_mut((length * PANEL).max(1)).enumerate().for_each(|(panel, pairs)| {
            let mut row = vec![0u16; cols];
            for lane in 0..PANEL.min(rows - panel * PANEL) {
                write(panel * PANEL + lane, &mut row);
                let to = pairs[lane..].iter_mut().step_by(PANEL);
                for (to, numbers) in to.zip(row.chunks(2)) {
                    *to = bfloat::pair(numbers[0], numbers.get(1).copied().unwrap_or(0));
                }
            }
        });
        HalfWeight { rows, cols, pairs }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    fn length(&self) -> usize {
        self.cols.div_ceil(2)
    }

    fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    fn panel(&self, panel: usize) -> &[u32] {
        &self.pairs[panel * self.length() * PANEL..][..self.length() * PANEL]
    }

    /// Weights of some outputs: f32 (outputs, in). Returns an error if an output is out of range.
    pub fn of_rows(&self, outputs: &[u32]) -> Result<Tensor> {
        let mut wide = vec![0f32; outputs.len() * self.cols];
        for (&output, wide) in outputs.iter().zip(wide.chunks_exact_mut(self.cols.max(1))) {
            let output = output as usize;
            if output >= self.rows {
                candle_core::bail!("output {output} of a weight of {}", self.rows);
            }
            let pairs = self.panel(output / PANEL)[output % PANEL..].iter().step_by(PANEL);
            for (wide, &pair) in wide.chunks_mut(2).zip(pairs) {
                wide.copy_from_slice(&bfloat::both(pair)[..wide.len()]);
            }
        }
        Tensor::from_vec(wide, (outputs.len(), self.cols), &Device::Cpu)
    }
}

/// Activations in the kernels' layout.
pub(super) struct HalfInput {
    kernel: Kernel,
    rows: usize,
    cols: usize,
    /// bf16 pairs (rows, in / 2); empty for the f32 kernel.
    pairs: Vec<u32>,
    /// Widened bf16 (rows, in rounded up to even); empty for kernels on pairs.
    wide: Vec<f32>,
}

impl HalfInput {
    /// From `x` (l, in), f32 or bf16 on the CPU, rounded to bf16. Other dtypes and devices are an error.
    pub fn new(x: &Tensor) -> Result<Self> {
        Self::for_kernel(x, Kernel::fastest())
    }

    fn for_kernel(x: &Tensor, kernel: Kernel) -> Result<Self> {
        let ((rows, cols), x) = (x.dims2()?, x.contiguous()?);
        let length = cols.div_ceil(2);
        let (storage, layout) = x.storage_and_layout();
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("This is a bug: activations that are not contiguous");
        };
        let mut pairs = vec![0u32; rows * length];
        let mut by_rows = |write: &(dyn Fn(usize, &mut [u16]) + Sync)| {
            let of_rows = pairs.par_chunks_exact_mut(length.max(1)).with_min_len(8).enumerate();
            of_rows.for_each(|(row, to)| write(row, &mut pulp::bytemuck::cast_slice_mut(to)[..cols]));
        };
        match &*storage {
            Storage::Cpu(CpuStorage::F32(data)) => by_rows(&|row, to| {
                let from = &data[start..end][row * cols..(row + 1) * cols];
                pulp::Arch::new().dispatch(bfloat::Round(from, to));
            }),
            Storage::Cpu(CpuStorage::BF16(data)) => {
                let data = data[start..end].reinterpret_cast();
                by_rows(&|row, to| to.copy_from_slice(&data[row * cols..(row + 1) * cols]));
            }
            _ => candle_core::bail!("products of bf16 numbers take f32 or bf16 activations on the CPU"),
        }
        let mut wide = Vec::new();
        if kernel == Kernel::Wide {
            wide = pairs.iter().flat_map(|&pair| bfloat::both(pair)).collect();
            pairs.clear();
        }
        Ok(HalfInput { kernel, rows, cols, pairs, wide })
    }

    /// x W^T: f32 (l, out). Mismatched widths are an error.
    pub fn product(&self, weight: &HalfWeight) -> Result<Tensor> {
        let [y] = self.products([weight])?;
        Ok(y)
    }

    /// [`HalfInput::product`] with several weights, in one parallel section if there are few rows.
    pub fn products<const N: usize>(&self, weights: [&HalfWeight; N]) -> Result<[Tensor; N]> {
        if let Some(weight) = weights.iter().find(|weight| weight.cols != self.cols) {
            let (rows, cols) = (weight.rows, weight.cols);
            candle_core::bail!(
                "a product of ({}, {}) with a weight of ({rows}, {cols})",
                self.rows,
                self.cols
            );
        }
        // With enough rows, threads split rows into full tiles; else they split outputs.
        let many = self.rows >= ROWS * rayon::current_num_threads().max(4);
        let out = weights.iter().map(|weight| {
            let y = if many { self.by_rows(weight) } else { self.by_panels(weight) };
            Tensor::from_vec(y, (self.rows, weight.rows), &Device::Cpu)
        });
        let out = out.collect::<Result<Vec<_>>>()?;
        out.try_into().map_err(|_| candle_core::Error::msg("This is a bug: an output is missing"))
    }

    /// Tasks of some rows and all outputs.
    fn by_rows(&self, weight: &HalfWeight) -> Vec<f32> {
        let (outputs, at_once) = (weight.rows, self.kernel.rows());
        let mut y = vec![0f32; self.rows * outputs];
        let each =
            self.rows.div_ceil(4 * rayon::current_num_threads()).next_multiple_of(at_once).min(TASK_ROWS);
        y.par_chunks_mut((each * outputs).max(1)).enumerate().for_each(|(task, y)| {
            let first = task * each;
            let rows = y.len() / outputs;
            for panel in 0..weight.panels() {
                for start in (0..rows).step_by(at_once) {
                    let rows = at_once.min(rows - start);
                    let to = Target { y: &mut y[start * outputs..], stride: outputs, column: panel * PANEL };
                    self.tile(weight, panel..panel + 1, first + start..first + start + rows, to);
                }
            }
        });
        y
    }

    /// Tasks of some outputs and all rows.
    fn by_panels(&self, weight: &HalfWeight) -> Vec<f32> {
        let (outputs, l, at_once) = (weight.rows, self.rows, self.kernel.rows());
        // Per group of panels, (rows, outputs of the group).
        let width = GROUP * PANEL;
        let mut parts = vec![0f32; weight.panels().div_ceil(GROUP) * l * width];
        parts.par_chunks_exact_mut((l * width).max(1)).enumerate().for_each(|(group, y)| {
            let panels = group * GROUP..weight.panels().min((group + 1) * GROUP);
            if l == 1 {
                self.tile(weight, panels, 0..1, Target { y, stride: width, column: 0 });
                return;
            }
            for (nth, panel) in panels.enumerate() {
                for start in (0..l).step_by(at_once) {
                    let rows = start..l.min(start + at_once);
                    let to = Target { y: &mut y[start * width..], stride: width, column: nth * PANEL };
                    self.tile(weight, panel..panel + 1, rows, to);
                }
            }
        });
        if l == 1 {
            parts.truncate(outputs);
            return parts;
        }
        let mut y = Vec::with_capacity(l * outputs);
        for row in 0..l {
            for (group, part) in parts.chunks_exact(l * width).enumerate() {
                y.extend_from_slice(&part[row * width..][..width.min(outputs - group * width)]);
            }
        }
        y
    }

    /// Up to [`ROWS`] rows times one panel, or one row times up to [`GROUP`] panels.
    fn tile(
        &self,
        weight: &HalfWeight,
        panels: std::ops::Range<usize>,
        rows: std::ops::Range<usize>,
        mut to: Target<'_>,
    ) {
        let length = weight.length();
        let words = &weight.pairs[panels.start * length * PANEL..panels.end * length * PANEL];
        let panels = || words.chunks_exact((length * PANEL).max(1)).enumerate();
        match self.kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Tiles => {
                let x = &self.pairs[rows.start * length..rows.end * length];
                for (nth, panel) in panels() {
                    amx::tile(panel, x, length, &mut to.from(0, nth * PANEL));
                }
            }
            Kernel::Pairs => {
                #[cfg(target_arch = "x86_64")]
                x86::tile(words, &self.pairs[rows.start * length..rows.end * length], length, &mut to);
            }
            Kernel::Wide => {
                let x = &self.wide[rows.start * 2 * length..rows.end * 2 * length];
                for (nth, panel) in panels() {
                    for (block, x) in x.chunks(WIDE_ROWS * 2 * length).enumerate() {
                        let to = to.from(block * WIDE_ROWS, nth * PANEL);
                        pulp::Arch::new().dispatch(WideTile { panel, x, length, to });
                    }
                }
            }
        }
    }
}

/// Rows per tile of the f32 kernel.
const WIDE_ROWS: usize = 4;

/// One panel times up to [`WIDE_ROWS`] rows in f32.
struct WideTile<'a> {
    panel: &'a [u32],
    /// (rows, 2 * length)
    x: &'a [f32],
    length: usize,
    to: Target<'a>,
}

impl pulp::WithSimd for WideTile<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        match self.x.len() / (2 * self.length).max(1) {
            1 => self.rows::<S, 1>(simd),
            2 => self.rows::<S, 2>(simd),
            3 => self.rows::<S, 3>(simd),
            _ => self.rows::<S, WIDE_ROWS>(simd),
        }
    }
}

impl WideTile<'_> {
    #[inline(always)]
    fn rows<S: pulp::Simd, const R: usize>(mut self, simd: S) {
        const VECTORS: usize = 2;
        let upper = simd.splat_u32s(0xffff_0000);
        let shift = simd.splat_u32s(16);
        let (vectors, _) = S::as_simd_u32s(self.panel);
        let of_pair = PANEL / S::F32_LANES;
        let x: [&[f32]; R] = std::array::from_fn(|r| &self.x[r * 2 * self.length..][..2 * self.length]);
        for first in (0..of_pair).step_by(VECTORS) {
            let mut sums = [[simd.splat_f32s(0.0); VECTORS]; R];
            for (i, words) in vectors.chunks_exact(of_pair).enumerate() {
                let mut low = [simd.splat_f32s(0.0); VECTORS];
                let mut high = low;
                for v in 0..VECTORS {
                    let word = words[first + v];
                    low[v] = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(word, shift));
                    high[v] = simd.transmute_f32s_u32s(simd.and_u32s(word, upper));
                }
                for r in 0..R {
                    let (a, b) = (simd.splat_f32s(x[r][2 * i]), simd.splat_f32s(x[r][2 * i + 1]));
                    for v in 0..VECTORS {
                        sums[r][v] = simd.mul_add_e_f32s(low[v], a, sums[r][v]);
                        sums[r][v] = simd.mul_add_e_f32s(high[v], b, sums[r][v]);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                self.to.write(r, first * S::F32_LANES, crate::simd::lanes::<S>(sums));
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop, reason = "iterators may leave the sums in memory")]
mod x86 {
    use std::arch::x86_64::*;

    use super::target::{PANEL, Target};
    use super::{GROUP, ROWS};
    use crate::bfloat::{self, bf16s};

    const LANES: usize = 16;

    /// Rows `x` (rows, length) times panels (panels, length, outputs): up to [`ROWS`] rows and one panel, or one row and up to [`GROUP`]
    /// panels. Panics if the processor lacks AVX512-BF16 or sizes do not match.
    pub fn tile(panels: &[u32], x: &[u32], length: usize, to: &mut Target<'_>) {
        let (rows, count) = (x.len() / length.max(1), panels.len() / (length * PANEL).max(1));
        assert!(bfloat::multiplies(), "This is a bug: products of pairs on a processor without them");
        assert!(x.len() == rows * length && panels.len() == count * length * PANEL && rows.min(count) <= 1);
        assert!(rows <= ROWS && count <= GROUP, "This is a bug: a tile of {rows} rows and {count} panels");
        // SAFETY: the processor has the instructions, and the slices are as large as the sizes below.
        unsafe {
            match (rows, count) {
                (1, 2) => sums::<1, 2>(panels, x, length, to),
                (1, 3) => sums::<1, 3>(panels, x, length, to),
                (1, 4) => sums::<1, 4>(panels, x, length, to),
                (1, _) => sums::<1, 1>(panels, x, length, to),
                (2, _) => sums::<2, 1>(panels, x, length, to),
                (3, _) => sums::<3, 1>(panels, x, length, to),
                (4, _) => sums::<4, 1>(panels, x, length, to),
                (5, _) => sums::<5, 1>(panels, x, length, to),
                (6, _) => sums::<6, 1>(panels, x, length, to),
                (7, _) => sums::<7, 1>(panels, x, length, to),
                (8, _) => sums::<8, 1>(panels, x, length, to),
                (9, _) => sums::<9, 1>(panels, x, length, to),
                (10, _) => sums::<10, 1>(panels, x, length, to),
                (11, _) => sums::<11, 1>(panels, x, length, to),
                (12, _) => sums::<12, 1>(panels, x, length, to),
                _ => {}
            }
        }
    }

    /// # Safety
    /// `panels`: (P, length, PANEL); `x`: (R, length).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn sums<const R: usize, const P: usize>(
        panels: &[u32],
        x: &[u32],
        length: usize,
        to: &mut Target<'_>,
    ) {
        debug_assert!(panels.len() == P * length * PANEL && x.len() == R * length);
        // Index loops: iterators may keep the sums in memory.
        let mut sums = [[[_mm512_setzero_ps(); 2]; P]; R];
        // SAFETY: by the caller.
        unsafe {
            for i in 0..length {
                let mut words = [[_mm512_setzero_si512(); 2]; P];
                for p in 0..P {
                    for v in 0..2 {
                        let at = panels.as_ptr().add((p * length + i) * PANEL + v * LANES);
                        words[p][v] = _mm512_loadu_si512(at.cast());
                    }
                }
                for r in 0..R {
                    let x = bf16s!(_mm512_set1_epi32(*x.get_unchecked(r * length + i) as i32));
                    for p in 0..P {
                        for v in 0..2 {
                            sums[r][p][v] = _mm512_dpbf16_ps(sums[r][p][v], x, bf16s!(words[p][v]));
                        }
                    }
                }
            }
        }
        for r in 0..R {
            for p in 0..P {
                let mut out = [0f32; PANEL];
                for v in 0..2 {
                    // SAFETY: `out` has room for two vectors.
                    unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(v * LANES), sums[r][p][v]) };
                }
                to.write(r, p * PANEL, &out);
            }
        }
    }
}

#[cfg(test)]
mod tests;
