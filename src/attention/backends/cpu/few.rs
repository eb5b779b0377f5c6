//! Decoding: a few query rows over many keys, where reading keys and values from memory is what takes time.
//!
//! Vector lanes are dimensions, so that every key and value is read once, front to back. A row's sums are made in the same
//! order whatever rows it shares a task with; between vectors of different widths they differ by rounding.

use pulp::Simd;

use super::walk::{KEY_BLOCK, blocks};
use crate::attention::Site;
use crate::simd::exp_nonpositive;

/// Keys that are multiplied with a row at once, and rows with a key.
const TILE: usize = 4;

/// Query rows that share a key/value head, about to walk over a part of its keys.
pub struct FewRows<'a> {
    /// Row r's query, d elements.
    pub queries: Vec<&'a [f32]>,
    /// Row r's position among the keys.
    pub positions: Vec<usize>,
    /// One head's, (keys, d).
    pub keys: &'a [f32],
    pub values: &'a [f32],
    /// Which keys to walk over.
    pub range: std::ops::Range<usize>,
    pub site: &'a Site,
}

/// Row r's largest score, its sum of e^(score - largest), and its weighted values (rows, d), not normalised.
pub struct Weighed {
    pub max: Vec<f32>,
    pub sum: Vec<f32>,
    pub out: Vec<f32>,
}

impl pulp::WithSimd for FewRows<'_> {
    type Output = Weighed;

    // Always inlined, as is what it calls, so that the loops are compiled with the features that pulp found.
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
        for block in blocks(self.range.clone()) {
            let n = block.len();
            let keys = &self.keys[block.start * d..block.end * d];
            let values = &self.values[block.start * d..block.end * d];
            // 1. Scores: (rows, n).
            let scores = &mut scores[..rows * n];
            for (queries, scores) in queries.chunks(TILE * d).zip(scores.chunks_mut(TILE * n)) {
                match queries.len() / d {
                    1 => dots::<S, 1>(simd, queries, keys, d, scores),
                    2 => dots::<S, 2>(simd, queries, keys, d, scores),
                    3 => dots::<S, 3>(simd, queries, keys, d, scores),
                    _ => dots::<S, TILE>(simd, queries, keys, d, scores),
                }
            }
            // 2. Weights, row by row.
            for (r, scores) in scores.chunks_exact_mut(n).enumerate() {
                let visible = self.site.visible(self.positions[r]);
                let from = visible.start.clamp(block.start, block.end) - block.start;
                let to = visible.end.clamp(block.start, block.end) - block.start;
                if let Some(cap) = self.site.softcap {
                    scores.iter_mut().for_each(|s| *s = cap * f32::tanh(*s / cap));
                }
                scores[..from].fill(f32::NEG_INFINITY);
                scores[to.max(from)..].fill(f32::NEG_INFINITY);
                let factor = weights(simd, scores, &mut max[r], &mut sum[r]);
                out[r * d..(r + 1) * d].iter_mut().for_each(|x| *x *= factor);
            }
            // 3. Weighted values: (rows, d).
            for (scores, out) in scores.chunks(TILE * n).zip(out.chunks_mut(TILE * d)) {
                match out.len() / d {
                    1 => add_values::<S, 1>(simd, scores, values, d, out),
                    2 => add_values::<S, 2>(simd, scores, values, d, out),
                    3 => add_values::<S, 3>(simd, scores, values, d, out),
                    _ => add_values::<S, TILE>(simd, scores, values, d, out),
                }
            }
        }
        Weighed { max, sum, out }
    }
}

/// `scores[r][j] = queries[r] . keys[j]` for R rows.
#[inline(always)]
fn dots<S: Simd, const R: usize>(simd: S, queries: &[f32], keys: &[f32], d: usize, scores: &mut [f32]) {
    let n = keys.len() / d;
    let rows: [&[f32]; R] = std::array::from_fn(|r| &queries[r * d..(r + 1) * d]);
    let whole = n / TILE * TILE;
    for (tile, keys) in keys.chunks_exact(TILE * d).enumerate() {
        let keys = std::array::from_fn(|j| &keys[j * d..(j + 1) * d]);
        for (r, dots) in tile_of_dots::<S, R, TILE>(simd, rows, keys, d).into_iter().enumerate() {
            scores[r * n + tile * TILE..][..TILE].copy_from_slice(&dots);
        }
    }
    for j in whole..n {
        let [dots] = transposed(tile_of_dots::<S, R, 1>(simd, rows, [&keys[j * d..(j + 1) * d]], d));
        for (r, dot) in dots.into_iter().enumerate() {
            scores[r * n + j] = dot;
        }
    }
}

#[inline(always)]
fn transposed<const R: usize>(column: [[f32; 1]; R]) -> [[f32; R]; 1] {
    [column.map(|[x]| x)]
}

#[inline(always)]
fn tile_of_dots<S: Simd, const R: usize, const K: usize>(
    simd: S,
    rows: [&[f32]; R],
    keys: [&[f32]; K],
    d: usize,
) -> [[f32; K]; R] {
    let mut sums = [[simd.splat_f32s(0.0); K]; R];
    let whole = d / S::F32_LANES;
    let row_vectors = rows.map(|row| &S::as_simd_f32s(row).0[..whole]);
    let key_vectors = keys.map(|key| &S::as_simd_f32s(key).0[..whole]);
    for i in 0..whole {
        for r in 0..R {
            for k in 0..K {
                sums[r][k] = simd.mul_add_e_f32s(row_vectors[r][i], key_vectors[k][i], sums[r][k]);
            }
        }
    }
    if whole * S::F32_LANES < d {
        let rest = |x: &[f32]| simd.partial_load_f32s(&x[whole * S::F32_LANES..]);
        for r in 0..R {
            for k in 0..K {
                sums[r][k] = simd.mul_add_e_f32s(rest(rows[r]), rest(keys[k]), sums[r][k]);
            }
        }
    }
    sums.map(|sums| sums.map(|sum| simd.reduce_sum_f32s(sum)))
}

/// Turns a row's scores into e^(score - max), with its `max` and `sum` brought up to date, and returns what was gathered under
/// a smaller maximum is to be multiplied by.
#[inline(always)]
fn weights<S: Simd>(simd: S, scores: &mut [f32], max: &mut f32, sum: &mut f32) -> f32 {
    let hidden = simd.splat_f32s(f32::NEG_INFINITY);
    let (vectors, rest) = S::as_mut_simd_f32s(scores);
    // The rest, filled up with keys that weigh nothing.
    let mut last = [hidden];
    pulp::bytemuck::cast_slice_mut::<_, f32>(&mut last)[..rest.len()].copy_from_slice(rest);
    let [mut last] = last;
    let top = vectors.iter().fold(last, |top, &score| simd.max_f32s(top, score));
    let top = simd.reduce_max_f32s(top).max(*max);
    // A row that has seen no key yet has no maximum; any finite number then keeps its weights at 0.
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

/// `out[r] += sum over j of weights[r][j] * values[j]` for R rows.
#[inline(always)]
fn add_values<S: Simd, const R: usize>(simd: S, weights: &[f32], values: &[f32], d: usize, out: &mut [f32]) {
    let n = values.len() / d;
    let rows: [&[f32]; R] = std::array::from_fn(|r| &weights[r * n..(r + 1) * n]);
    let lanes = S::F32_LANES;
    let mut at = 0;
    while at + TILE * lanes <= d {
        // TILE vectors of R rows stay in registers over all keys.
        let mut sums: [[S::f32s; TILE]; R] = std::array::from_fn(|r| {
            let vectors = S::as_simd_f32s(&out[r * d + at..][..TILE * lanes]).0;
            std::array::from_fn(|i| vectors[i])
        });
        for (j, value) in values.chunks_exact(d).enumerate() {
            let value = S::as_simd_f32s(&value[at..at + TILE * lanes]).0;
            for r in 0..R {
                let weight = simd.splat_f32s(rows[r][j]);
                for i in 0..TILE {
                    sums[r][i] = simd.mul_add_e_f32s(weight, value[i], sums[r][i]);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            S::as_mut_simd_f32s(&mut out[r * d + at..][..TILE * lanes]).0.copy_from_slice(sums);
        }
        at += TILE * lanes;
    }
    while at < d {
        let width = lanes.min(d - at);
        let mut sums: [S::f32s; R] =
            std::array::from_fn(|r| simd.partial_load_f32s(&out[r * d + at..][..width]));
        for (j, value) in values.chunks_exact(d).enumerate() {
            let value = simd.partial_load_f32s(&value[at..at + width]);
            for r in 0..R {
                sums[r] = simd.mul_add_e_f32s(simd.splat_f32s(rows[r][j]), value, sums[r]);
            }
        }
        for r in 0..R {
            simd.partial_store_f32s(&mut out[r * d + at..][..width], sums[r]);
        }
        at += width;
    }
}
