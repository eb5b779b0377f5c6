//! Dequantisation of packed weights.

use rayon::prelude::*;

use super::half_weight::HalfWeight;
use super::lanes::{FactorsOf, Quants};
use super::packed::{PANEL, PackedWeight};

impl PackedWeight {
    /// Dequantised output rows `rows` (starting at a panel), transposed: (in, rows).
    pub(super) fn dequantise(&self, rows: std::ops::Range<usize>) -> Vec<f32> {
        let arch = pulp::Arch::new();
        let width = self.groups.columns;
        let mut out = vec![0f32; self.cols * rows.len()];
        out.par_chunks_exact_mut((width * rows.len()).max(1)).enumerate().for_each(|(group, out)| {
            arch.dispatch(Values { weight: self, group, rows: rows.clone(), out });
        });
        out
    }

    /// Dequantised output rows `rows` (starting at a panel), rounded to bf16.
    pub(super) fn halved(&self, rows: std::ops::Range<usize>) -> HalfWeight {
        // In parts of up to 64 MiB of f32.
        let step = ((1 << 24) / self.cols.max(1)).next_multiple_of(PANEL).max(PANEL);
        let parts = rows.clone().step_by(step).map(|start| {
            let rows = start..rows.end.min(start + step);
            (rows.len(), self.dequantise(rows))
        });
        HalfWeight::of_columns(rows.len(), self.cols, parts)
    }
}

struct Values<'a> {
    weight: &'a PackedWeight,
    group: usize,
    rows: std::ops::Range<usize>,
    /// (columns of a group, rows)
    out: &'a mut [f32],
}

impl pulp::WithSimd for Values<'_> {
    type Output = ();

    // Inlined throughout: pulp's target features must reach the loops.
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        match self.weight.groups.nibbles {
            true => self.of::<S, 8>(simd),
            false => self.of::<S, 4>(simd),
        }
    }
}

impl Values<'_> {
    #[inline(always)]
    fn of<S: pulp::Simd, const PER_WORD: usize>(self, simd: S) {
        let Values { weight, group, rows, out } = self;
        let (words, n) = (weight.groups.columns / PER_WORD, rows.len());
        let in_panel = weight.quants.len() / weight.rows.div_ceil(PANEL);
        let quants = Quants::<S, PER_WORD>::new(simd, weight.groups.added(), 0);
        let mut column = [0f32; PANEL];
        for panel in rows.start / PANEL..rows.end.div_ceil(PANEL) {
            let of_group = &weight.quants[panel * in_panel + group * words * PANEL..][..words * PANEL];
            let scales = FactorsOf::new(simd, &weight.scales, weight, panel);
            let mins = weight.mins.as_ref().map(|mins| FactorsOf::new(simd, mins, weight, panel));
            let kept = panel * PANEL - rows.start..((panel + 1) * PANEL).min(rows.end) - rows.start;
            for (w, of_group) in of_group.chunks_exact(PANEL).enumerate() {
                let (of_group, _) = S::as_simd_u32s(of_group);
                for i in 0..PER_WORD {
                    let (registers, _) = S::as_mut_simd_f32s(&mut column);
                    for (register, (values, &word)) in registers.iter_mut().zip(of_group).enumerate() {
                        // Rounded after both operations, as in the file's reader.
                        *values = simd.mul_f32s(scales.get(group, register), quants.get(word, i));
                        if let Some(mins) = &mins {
                            *values = simd.add_f32s(*values, mins.get(group, register));
                        }
                    }
                    let to = &mut out[(w * PER_WORD + i) * n..][..n];
                    if let Some(to) = to.get_mut(kept.clone()) {
                        to.copy_from_slice(&column[..kept.len()]);
                    }
                }
            }
        }
    }
}
