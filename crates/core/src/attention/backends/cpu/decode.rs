//! Decode kernel: few query rows over many keys, bound by memory bandwidth.
//!
//! Vector lanes are dimensions, so every key and value is read once, sequentially. A row's summation order does not depend on the other
//! rows of its task; different vector widths differ by rounding.

use std::ops::Range;

use pulp::Simd;

use super::fold::within;
use super::pairs;
use super::sequence::Stored;
use super::walk::{KEY_BLOCK, blocks};
use crate::attention::Site;
use crate::attention::site::hides_all;
use crate::bfloat;
use crate::simd::exp_nonpositive;

/// Keys per tile of scores, and rows per tile.
const TILE: usize = 4;

pub struct DecodeRows<'a> {
    pub queries: Vec<&'a [f32]>,
    pub positions: Vec<usize>,
    /// Hidden keys per row; empty if nothing is hidden.
    pub hidden: Vec<&'a [Range<usize>]>,
    /// One head, (keys, d).
    pub keys: Stored<'a>,
    pub values: Stored<'a>,
    /// Use bf16 products: queries, keys and values are all bf16.
    pub in_pairs: bool,
    pub range: Range<usize>,
    pub site: &'a Site,
    /// Segment borders per row; empty if not requested.
    pub borders: Vec<&'a [usize]>,
}

/// Per row: maximum score, sum of e^(score - max), and weighted values (rows, d), not normalised.
pub struct Weighed {
    pub max: Vec<f32>,
    pub sum: Vec<f32>,
    pub out: Vec<f32>,
    pub segments: SegmentsOfRows,
}

/// Unnormalised segment sums per row, for the segments that part of the keys touches. Empty if not requested.
#[derive(Default)]
pub struct SegmentsOfRows {
    rows: Vec<Range<usize>>,
    sums: Vec<f64>,
}

impl SegmentsOfRows {
    fn new(borders: &[&[usize]], range: &Range<usize>) -> Self {
        let rows: Vec<Range<usize>> = borders.iter().map(|borders| touched(borders, range)).collect();
        let sums = vec![0.0; rows.iter().map(Range::len).sum()];
        SegmentsOfRows { rows, sums }
    }

    pub fn row(&self, r: usize) -> (Range<usize>, &[f64]) {
        let Some(segments) = self.rows.get(r) else { return (0..0, &[]) };
        let first: usize = self.rows[..r].iter().map(Range::len).sum();
        (segments.clone(), &self.sums[first..first + segments.len()])
    }
}

/// Segments between ascending `borders` that may overlap `keys`.
fn touched(borders: &[usize], keys: &Range<usize>) -> Range<usize> {
    let segments = borders.len().saturating_sub(1);
    let end = borders.partition_point(|&border| border < keys.end).min(segments);
    borders.partition_point(|&border| border <= keys.start).saturating_sub(1).min(end)..end
}

impl pulp::WithSimd for DecodeRows<'_> {
    type Output = Weighed;

    // Inlined throughout: pulp's target features must reach the loops.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Weighed {
        let rows = self.queries.len();
        let d = self.queries.first().map_or(1, |q| q.len());
        let queries: Vec<f32> =
            self.queries.iter().flat_map(|q| q.iter().map(|x| x * self.site.scale)).collect();
        let mut max = vec![f32::NEG_INFINITY; rows];
        let mut sum = vec![0f32; rows];
        let mut out = vec![0f32; rows * d];
        let mut scores = vec![0f32; rows * KEY_BLOCK];
        let (mut wide_keys, mut wide_values) = (Vec::new(), Vec::new());
        let (mut of_pairs, mut rounded) = (None, Vec::new());
        if let (Stored::Bf16(keys), Stored::Bf16(values), true) = (self.keys, self.values, self.in_pairs) {
            let rounded = |x: &[f32; 2]| bfloat::pair(bfloat::round(x[0]), bfloat::round(x[1]));
            let queries = self.queries.iter().flat_map(|q| q.as_chunks::<2>().0.iter().map(rounded));
            of_pairs = Some((keys, values, queries.collect::<Vec<u32>>()));
        }
        let mut segments = SegmentsOfRows::new(&self.borders, &self.range);
        for block in blocks(self.range.clone()) {
            if !self.hidden.is_empty() && self.hidden.iter().all(|hidden| hides_all(hidden, &block)) {
                continue;
            }
            let n = block.len();
            let of_block = block.start * d..block.end * d;
            // 1. Scores: (rows, n).
            let scores = &mut scores[..rows * n];
            if let Some((keys, values, queries)) = &of_pairs {
                let (keys, values) = (&keys[of_block.clone()], &values[of_block.clone()]);
                pairs::few_scores(queries, keys, d, self.site.scale, scores, values);
            } else {
                let keys = self.keys.part(of_block.clone()).wide(&mut wide_keys);
                for (queries, scores) in queries.chunks(TILE * d).zip(scores.chunks_mut(TILE * n)) {
                    match queries.len() / d {
                        1 => dots::<S, 1>(simd, queries, keys, d, scores),
                        2 => dots::<S, 2>(simd, queries, keys, d, scores),
                        3 => dots::<S, 3>(simd, queries, keys, d, scores),
                        _ => dots::<S, TILE>(simd, queries, keys, d, scores),
                    }
                }
            }
            // 2. Weights, row by row.
            let mut sums = segments.sums.as_mut_slice();
            for (r, scores) in scores.chunks_exact_mut(n).enumerate() {
                let visible = self.site.visible(self.positions[r]);
                let from = visible.start.clamp(block.start, block.end) - block.start;
                let to = visible.end.clamp(block.start, block.end) - block.start;
                if let Some(cap) = self.site.softcap {
                    scores.iter_mut().for_each(|s| *s = cap * f32::tanh(*s / cap));
                }
                scores[..from].fill(f32::NEG_INFINITY);
                scores[to.max(from)..].fill(f32::NEG_INFINITY);
                for hidden in self.hidden.get(r).copied().unwrap_or(&[]) {
                    let from = hidden.start.clamp(block.start, block.end) - block.start;
                    let to = hidden.end.clamp(block.start, block.end) - block.start;
                    scores[from..to.max(from)].fill(f32::NEG_INFINITY);
                }
                let factor = weights(simd, scores, &mut max[r], &mut sum[r]);
                out[r * d..(r + 1) * d].iter_mut().for_each(|x| *x *= factor);
                if let Some(touched) = segments.rows.get(r) {
                    let (of_row, others) = sums.split_at_mut(touched.len());
                    sums = others;
                    add_segments(simd, scores, factor, self.borders[r], touched, block.start, of_row);
                }
            }
            // 3. Weighted values: (rows, d).
            if let Some((keys, values, _)) = &of_pairs {
                // Prefetches the values of the next task too, which likely runs next on this thread.
                let next = block.end * d..keys.len().min((block.end + KEY_BLOCK) * d);
                pairs::add_few_values(
                    scores,
                    &block,
                    &values[of_block],
                    d,
                    &mut rounded,
                    &mut out,
                    &keys[next],
                );
            } else {
                let values = self.values.part(of_block).wide(&mut wide_values);
                for (scores, out) in scores.chunks(TILE * n).zip(out.chunks_mut(TILE * d)) {
                    match out.len() / d {
                        1 => add_values::<S, 1>(simd, scores, values, d, out),
                        2 => add_values::<S, 2>(simd, scores, values, d, out),
                        3 => add_values::<S, 3>(simd, scores, values, d, out),
                        _ => add_values::<S, TILE>(simd, scores, values, d, out),
                    }
                }
            }
        }
        Weighed { max, sum, out, segments }
    }
}

/// `scores[r][j] = queries[r] . keys[j]` for R rows.
#[inline(always)]
fn dots<S: Simd, const R: usize>(simd: S, queries: &[f32], keys: &[f32], d: usize, scores: &mut [f32]) {
    let n = keys.len() / d;
    let mut start = 0;
    while start + TILE <= n {
        tile_of_dots::<S, R, TILE>(
            simd,
            queries,
            &keys[start * d..(start + TILE) * d],
            d,
            &mut scores[start..],
            n,
        );
        start += TILE;
    }
    while start < n {
        tile_of_dots::<S, R, 1>(simd, queries, &keys[start * d..(start + 1) * d], d, &mut scores[start..], n);
        start += 1;
    }
}

/// Scores of K keys; the rows of `scores` are `stride` apart.
#[inline(always)]
fn tile_of_dots<S: Simd, const R: usize, const K: usize>(
    simd: S,
    queries: &[f32],
    keys: &[f32],
    d: usize,
    scores: &mut [f32],
    stride: usize,
) {
    // Plain loops: closures may not be inlined and would be compiled for the baseline processor.
    let mut sums = [[simd.splat_f32s(0.0); K]; R];
    let lanes = S::F32_LANES;
    let mut at = 0;
    while at + lanes <= d {
        let mut key = [simd.splat_f32s(0.0); K];
        for k in 0..K {
            key[k] = S::as_simd_f32s(&keys[k * d + at..k * d + at + lanes]).0[0];
        }
        for r in 0..R {
            let query = S::as_simd_f32s(&queries[r * d + at..r * d + at + lanes]).0[0];
            for k in 0..K {
                sums[r][k] = simd.mul_add_e_f32s(query, key[k], sums[r][k]);
            }
        }
        at += lanes;
    }
    if at < d {
        for r in 0..R {
            let query = simd.partial_load_f32s(&queries[r * d + at..(r + 1) * d]);
            for k in 0..K {
                let key = simd.partial_load_f32s(&keys[k * d + at..(k + 1) * d]);
                sums[r][k] = simd.mul_add_e_f32s(query, key, sums[r][k]);
            }
        }
    }
    for r in 0..R {
        for k in 0..K {
            scores[r * stride + k] = simd.reduce_sum_f32s(sums[r][k]);
        }
    }
}

/// Replaces a row's scores by e^(score - max), updates `max` and `sum`, and returns the rescale factor of earlier sums.
#[inline(always)]
fn weights<S: Simd>(simd: S, scores: &mut [f32], max: &mut f32, sum: &mut f32) -> f32 {
    let hidden = simd.splat_f32s(f32::NEG_INFINITY);
    let (vectors, rest) = S::as_mut_simd_f32s(scores);
    let mut last = [hidden];
    pulp::bytemuck::cast_slice_mut::<_, f32>(&mut last)[..rest.len()].copy_from_slice(rest);
    let [mut last] = last;
    let top = vectors.iter().fold(last, |top, &score| simd.max_f32s(top, score));
    let top = simd.reduce_max_f32s(top).max(*max);
    // A row without visible keys has maximum -inf; a finite origin keeps its weights at 0.
    let origin = if top < f32::MIN { 0.0 } else { top };
    let minus = simd.splat_f32s(origin);
    let mut added = simd.splat_f32s(0.0);
    for score in vectors {
        *score = exp_nonpositive(simd, simd.sub_f32s(*score, minus));
        added = simd.add_f32s(added, *score);
    }
    last = exp_nonpositive(simd, simd.sub_f32s(last, minus));
    added = simd.add_f32s(added, last);
    simd.partial_store_f32s(rest, last);
    let factor = if *max < f32::MIN { 0.0 } else { (*max - origin).exp() };
    *max = top;
    *sum = *sum * factor + simd.reduce_sum_f32s(added);
    factor
}

/// Adds a row's `weights` of the keys from `start` on to the sums of the segments `touched`, after rescaling those by `factor`.
#[inline(always)]
fn add_segments<S: Simd>(
    simd: S,
    weights: &[f32],
    factor: f32,
    borders: &[usize],
    touched: &Range<usize>,
    start: usize,
    sums: &mut [f64],
) {
    // The maximum rarely grows after the first blocks.
    if factor != 1.0 {
        sums.iter_mut().for_each(|sum| *sum *= f64::from(factor));
    }
    for (segment, keys) in within(borders, start..start + weights.len()) {
        sums[segment - touched.start] +=
            f64::from(total(simd, &weights[keys.start - start..keys.end - start]));
    }
}

#[inline(always)]
fn total<S: Simd>(simd: S, weights: &[f32]) -> f32 {
    let (vectors, rest) = S::as_simd_f32s(weights);
    let mut sum = simd.partial_load_f32s(rest);
    for &vector in vectors {
        sum = simd.add_f32s(sum, vector);
    }
    simd.reduce_sum_f32s(sum)
}

/// `out[r] += sum over j of weights[r][j] * values[j]` for R rows.
#[inline(always)]
fn add_values<S: Simd, const R: usize>(simd: S, weights: &[f32], values: &[f32], d: usize, out: &mut [f32]) {
    let mut at = 0;
    while at + TILE * S::F32_LANES <= d {
        tile_of_values::<S, R, TILE>(simd, weights, values, d, at, out);
        at += TILE * S::F32_LANES;
    }
    while at + S::F32_LANES <= d {
        tile_of_values::<S, R, 1>(simd, weights, values, d, at, out);
        at += S::F32_LANES;
    }
    if at < d {
        let n = values.len() / d;
        for r in 0..R {
            let out = &mut out[r * d + at..(r + 1) * d];
            let mut sum = simd.partial_load_f32s(out);
            for j in 0..n {
                let value = simd.partial_load_f32s(&values[j * d + at..(j + 1) * d]);
                sum = simd.mul_add_e_f32s(simd.splat_f32s(weights[r * n + j]), value, sum);
            }
            simd.partial_store_f32s(out, sum);
        }
    }
}

/// V vectors of dimensions from `at` on, kept in registers over all keys.
#[inline(always)]
fn tile_of_values<S: Simd, const R: usize, const V: usize>(
    simd: S,
    weights: &[f32],
    values: &[f32],
    d: usize,
    at: usize,
    out: &mut [f32],
) {
    let n = values.len() / d;
    let width = V * S::F32_LANES;
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    for r in 0..R {
        sums[r].copy_from_slice(S::as_simd_f32s(&out[r * d + at..r * d + at + width]).0);
    }
    for j in 0..n {
        let value = S::as_simd_f32s(&values[j * d + at..j * d + at + width]).0;
        for r in 0..R {
            let weight = simd.splat_f32s(weights[r * n + j]);
            for v in 0..V {
                sums[r][v] = simd.mul_add_e_f32s(weight, value[v], sums[r][v]);
            }
        }
    }
    for r in 0..R {
        S::as_mut_simd_f32s(&mut out[r * d + at..r * d + at + width]).0.copy_from_slice(&sums[r]);
    }
}
