//! Norms of head contributions: quadratic forms of a head's output-weight Gram matrix, panel by panel.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use pulp::Simd;
use rayon::prelude::*;

use super::super::kernel::RowSums;
use super::super::lengths::{Carried, LengthSums};
use super::fold::{ValuesBySegment, add_values};
use super::queries::WideQueries;
use super::sequence::{Sequence, with_slices};
use super::tasks::Shape;
use super::value_sums::normaliser;
use super::walk::{Walk, Walked};
use crate::attention::Site;
use crate::attention::site::Hidden;

const KEYS: usize = 1536;
/// Query positions per task: fills the panels at every vector width.
const POSITIONS: usize = 144;

pub fn key_lengths(v: &Tensor, gram: &Tensor) -> Result<Tensor> {
    let ((kv_heads, keys, d), heads, gram) = (v.dims3()?, gram.dim(0)?, gram.contiguous()?);
    let lengths = with_slices(&[v, &gram], |slices| {
        let values = Sequence::new(v, v, slices[0], slices[0])?;
        let gram = slices[1].f32()?;
        let mut lengths = vec![0f32; heads * keys];
        lengths.par_chunks_mut(keys.max(1)).enumerate().for_each(|(head, lengths)| {
            let (values, gram) = (values.values(head * kv_heads / heads), &gram[head * d * d..][..d * d]);
            lengths.par_chunks_mut(KEYS).enumerate().for_each(|(at, out)| {
                let mut wide = Vec::new();
                let start = at * KEYS * d;
                let values = values.part(start..start + out.len() * d).wide(&mut wide);
                pulp::Arch::new().dispatch(OfKeys { values, gram, d, out });
            });
        });
        Ok(lengths)
    })?;
    Tensor::from_vec(lengths, (heads, keys), &Device::Cpu)
}

struct OfKeys<'a> {
    /// (keys, d)
    values: &'a [f32],
    /// (d, d)
    gram: &'a [f32],
    d: usize,
    out: &'a mut [f32],
}

impl pulp::WithSimd for OfKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::REGISTER_COUNT >= 32 {
            true => self.run::<S, 3, 8>(simd),
            false => self.run::<S, 3, 4>(simd),
        }
    }
}

impl OfKeys<'_> {
    #[inline(always)]
    fn run<S: Simd, const V: usize, const D: usize>(self, simd: S) {
        let (d, width) = (self.d, V * S::F32_LANES);
        let mut panel = vec![0f32; d * width];
        let mut products = vec![[simd.splat_f32s(0.0); V]; d];
        for (out, values) in self.out.chunks_mut(width).zip(self.values.chunks(d * width)) {
            panel.fill(0.0);
            for (key, value) in values.chunks_exact(d).enumerate() {
                for (to, x) in panel[key..].iter_mut().step_by(width).zip(value) {
                    *to = *x;
                }
            }
            let (vectors, _) = S::as_simd_f32s(&panel);
            let (vectors, _) = vectors.as_chunks::<V>();
            let length = lengths::<S, V, D>(simd, vectors, self.gram, &mut products);
            out.iter_mut().zip(crate::simd::lanes::<S>(&length)).for_each(|(to, x)| *to = *x);
        }
    }
}

/// sqrt(x^T `gram` x) for the rows x of a panel (d, panel). Clamps negative rounding errors to 0.
#[inline(always)]
fn lengths<S: Simd, const V: usize, const D: usize>(
    simd: S,
    panel: &[[S::f32s; V]],
    gram: &[f32],
    products: &mut [[S::f32s; V]],
) -> [S::f32s; V] {
    let zero = simd.splat_f32s(0.0);
    products.fill([zero; V]);
    // The Gram matrix is symmetric.
    add_values::<S, V, D>(simd, panel, gram, products);
    let mut squares = [zero; V];
    for (x, y) in panel.iter().zip(products) {
        for v in 0..V {
            squares[v] = simd.mul_add_e_f32s(x[v], y[v], squares[v]);
        }
    }
    // The comparison is false for NaN, so NaN propagates.
    squares.map(|square| {
        let square = simd.select_f32s(simd.less_than_f32s(square, zero), zero, square);
        simd.sqrt_f32s(square)
    })
}

pub fn length_sums(
    [q, k, v]: [&Tensor; 3],
    carried: &Carried<'_>,
    RowSums { site, rows, bounds }: &RowSums<'_>,
    spans: &[Range<usize>],
) -> Result<LengthSums> {
    let shape = Shape::new(q, k)?;
    let Shape { heads, group, d, .. } = shape;
    let (l, keys, q) = (q.dim(0)?, k.dim(1)?, WideQueries::new(q)?);
    let (gram, lengths) = (carried.gram.contiguous()?, carried.lengths.contiguous()?.unsqueeze(0)?);
    let gate = carried.gate.map(Tensor::contiguous).transpose()?;
    let tensors: Vec<&Tensor> = [&q.wide, k, v, &gram, &lengths].into_iter().chain(&gate).collect();
    with_slices(&tensors, |slices| {
        let sequence = Sequence::new(k, v, slices[1], slices[2])?;
        let (queries, gram, lengths) = (slices[0].f32()?, slices[3].f32()?, slices[4].f32()?);
        let gate = slices.get(5).map(|gate| gate.f32()).transpose()?;
        let positions: Vec<usize> = (site.offset..site.offset + l).collect();
        let hidden = Hidden::at(site, &positions);
        let blocks: Vec<Range<usize>> =
            rows.clone().step_by(POSITIONS).map(|start| start..(start + POSITIONS).min(rows.end)).collect();
        let of_block = |head: usize, block: &Range<usize>| {
            let of_row = |row: usize| &queries[(row * heads + head) * d..][..d];
            let seen = || positions[block.clone()].iter().map(|&position| site.visible(position));
            let range = seen().map(|r| r.start).min().unwrap_or(0)..seen().map(|r| r.end).max().unwrap_or(0);
            let own = &lengths[head * keys..][..keys];
            let hidden_rows = if hidden.is_empty() { 0..0 } else { block.clone() };
            let walked = pulp::Arch::new().dispatch(Walk {
                queries: block.clone().map(of_row).collect(),
                positions: positions[block.clone()].to_vec(),
                hidden: hidden_rows.map(|row| hidden.row(row)).collect(),
                keys: sequence.keys(head / group),
                range,
                site,
                in_pairs: false,
                fold: ValuesBySegment::new(sequence.values(head / group), d, Some(own), bounds),
            });
            let gate = gate.map(|gate| -> Vec<&[f32]> {
                block.clone().map(|row| &gate[(row * heads + head) * d..][..d]).collect()
            });
            let gram = &gram[head * d * d..][..d * d];
            pulp::Arch::new().dispatch(OfSpans { walked: &walked, gram, gate, d, site, head, spans })
        };
        let each: Vec<Vec<(f64, f64)>> = (0..heads * blocks.len())
            .into_par_iter()
            .map(|at| of_block(at / blocks.len(), &blocks[at % blocks.len()]))
            .collect();
        let mut all =
            LengthSums { values: vec![0.0; heads * spans.len()], outputs: vec![0.0; heads * spans.len()] };
        for (at, of_spans) in each.into_iter().enumerate() {
            let first = at / blocks.len() * spans.len();
            for (span, (value, output)) in of_spans.into_iter().enumerate() {
                all.values[first + span] += value;
                all.outputs[first + span] += output;
            }
        }
        Ok(all)
    })
}

/// Rows of one head after their walk, and the segments of the spans.
struct OfSpans<'a> {
    walked: &'a Walked<ValuesBySegment<'a>>,
    /// (d, d)
    gram: &'a [f32],
    /// Per row d elements, for gated layers.
    gate: Option<Vec<&'a [f32]>>,
    d: usize,
    site: &'a Site,
    head: usize,
    spans: &'a [Range<usize>],
}

impl pulp::WithSimd for OfSpans<'_> {
    /// Per span: summed A_ij * length of key j, and summed output lengths.
    type Output = Vec<(f64, f64)>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        match (S::REGISTER_COUNT >= 32, self.walked.fold.width() == S::F32_LANES) {
            (true, false) => self.run::<S, 3, 8>(simd),
            (true, true) => self.run::<S, 1, 16>(simd),
            (false, false) => self.run::<S, 3, 4>(simd),
            (false, true) => self.run::<S, 1, 8>(simd),
        }
    }
}

impl OfSpans<'_> {
    #[inline(always)]
    fn run<S: Simd, const V: usize, const D: usize>(self, simd: S) -> Vec<(f64, f64)> {
        let Walked { max, sum, fold } = self.walked;
        let (d, rows, width) = (self.d, max.len(), fold.width());
        let zero = [simd.splat_f32s(0.0); V];
        let (mut read, mut products) = (vec![zero; d + 1], vec![zero; d]);
        let mut found = vec![(0.0, 0.0); self.spans.len()];
        for panel in 0..rows.div_ceil(width) {
            // Excludes the padding rows of the last panel.
            let own = panel * width..rows.min((panel + 1) * width);
            let mut scales = vec![0f32; width];
            for (scale, row) in scales.iter_mut().zip(own.clone()) {
                *scale = normaliser(self.site, self.head, max[row], sum[row]);
            }
            let (scales, _) = S::as_simd_f32s(&scales);
            let (scales, _) = scales.as_chunks::<V>();
            let scale = &scales[0];
            let gate: Option<Vec<f32>> = self.gate.as_ref().map(|gate| {
                let mut packed = vec![0f32; d * width];
                for (lane, row) in own.clone().enumerate() {
                    for (to, x) in packed[lane..].iter_mut().step_by(width).zip(gate[row]) {
                        *to = *x;
                    }
                }
                packed
            });
            for (span, (value, output)) in self.spans.iter().zip(&mut found) {
                read.fill(zero);
                for segment in span.clone() {
                    let (sums, _) = S::as_simd_f32s(fold.of_panel(panel, segment));
                    for (x, sum) in read.iter_mut().zip(sums.as_chunks::<V>().0) {
                        for v in 0..V {
                            x[v] = simd.mul_add_e_f32s(sum[v], scale[v], x[v]);
                        }
                    }
                }
                let (read, long) = read.split_at_mut(d);
                if let Some(gate) = &gate {
                    let (gate, _) = S::as_simd_f32s(gate);
                    for (x, gate) in read.iter_mut().zip(gate.as_chunks::<V>().0) {
                        for v in 0..V {
                            x[v] = simd.mul_f32s(x[v], gate[v]);
                        }
                    }
                }
                let written = lengths::<S, V, D>(simd, read, self.gram, &mut products);
                let total = |lanes: &[f32]| lanes.iter().map(|x| f64::from(*x)).sum::<f64>();
                *value += total(crate::simd::lanes::<S>(&long[0]));
                *output += total(crate::simd::lanes::<S>(&written));
            }
        }
        found
    }
}
