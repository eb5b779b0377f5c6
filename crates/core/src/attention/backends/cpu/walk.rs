//! Streaming softmax: a block of rows over its keys, block by block.

use std::ops::Range;

use pulp::Simd;

use super::fold::Fold;
use super::sequence::Stored;
use super::{pairs, tile};
use crate::attention::Site;
use crate::attention::site::{hides_all, hides_some};
use crate::bfloat;
use crate::simd::exp_nonpositive;

/// Keys per block. Blocks begin at multiples of it, so splitting keys there keeps the summation order inside blocks. A block's scores with
/// one panel fit the L1 cache, its keys and values the L2 cache.
pub const KEY_BLOCK: usize = 128;

pub fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    (range.start / KEY_BLOCK..range.end.div_ceil(KEY_BLOCK))
        .map(move |b| range.start.max(b * KEY_BLOCK)..range.end.min((b + 1) * KEY_BLOCK))
}

pub struct Walk<'a, F> {
    pub queries: Vec<&'a [f32]>,
    pub positions: Vec<usize>,
    /// Hidden keys per row; empty if nothing is hidden.
    pub hidden: Vec<&'a [Range<usize>]>,
    /// (keys, d)
    pub keys: Stored<'a>,
    pub range: Range<usize>,
    pub site: &'a Site,
    /// Scores are bf16 products: queries and keys are bf16.
    pub in_pairs: bool,
    pub fold: F,
}

/// Result of a walk; per row the maximum score and the sum of e^(score - max).
pub struct Walked<F> {
    pub max: Vec<f32>,
    pub sum: Vec<f32>,
    pub fold: F,
}

impl<F: Fold> pulp::WithSimd for Walk<'_, F> {
    type Output = Walked<F>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        // Tile sizes that fill the registers: V vectors of rows times keys or value dimensions, with room for operands. Few rows fit one
        // vector.
        match (S::REGISTER_COUNT >= 32, self.queries.len() <= S::F32_LANES) {
            (true, false) => self.walk::<S, 3, 8>(simd),
            (true, true) => self.walk::<S, 1, 16>(simd),
            (false, false) => self.walk::<S, 3, 4>(simd),
            (false, true) => self.walk::<S, 1, 8>(simd),
        }
    }
}

/// Visible keys per row of a panel, relative to the walk's first key.
struct Sight<'a> {
    from: &'a [usize],
    to: &'a [usize],
}

impl Sight<'_> {
    fn any(&self) -> Range<usize> {
        self.from.iter().copied().min().unwrap_or(0)..self.to.iter().copied().max().unwrap_or(0)
    }

    fn all(&self, keys: &Range<usize>) -> bool {
        self.from.iter().all(|&from| from <= keys.start) && self.to.iter().all(|&to| keys.end <= to)
    }
}

impl<F: Fold> Walk<'_, F> {
    #[inline(always)]
    fn walk<S: Simd, const V: usize, const T: usize>(mut self, simd: S) -> Walked<F> {
        let rows = self.queries.len();
        let d = self.queries.first().map_or(1, |q| q.len());
        let width = V * S::F32_LANES;
        let panels = rows.div_ceil(width);
        let in_pairs = if self.in_pairs { self.pack_pairs(width, panels, d) } else { Vec::new() };
        let queries = if self.in_pairs { Vec::new() } else { self.pack(width, panels, d) };
        let (queries, _) = S::as_simd_f32s(&queries);
        let (queries, _) = queries.as_chunks::<V>();
        // Padding rows of the last panel copy its last row's mask; their results are dropped.
        let visible = |r: usize| self.site.visible(self.positions[r.min(rows - 1)]);
        let from: Vec<usize> = (0..panels * width).map(|r| visible(r).start).collect();
        let to: Vec<usize> = (0..panels * width).map(|r| visible(r).end).collect();

        let mut scores = vec![0f32; KEY_BLOCK * width];
        let mut max = vec![f32::NEG_INFINITY; panels * width];
        let mut sum = vec![0f32; panels * width];
        let mut wide = Vec::new();
        self.fold.begin(panels, width);
        for block in blocks(self.range.clone()) {
            let stored = self.keys.part(block.start * d..block.end * d);
            let of_block = if self.in_pairs { &[] } else { stored.wide(&mut wide) };
            self.fold.load(&block);
            for panel in 0..panels {
                let rows = panel * width..(panel + 1) * width;
                let sight = Sight { from: &from[rows.clone()], to: &to[rows.clone()] };
                let any = sight.any();
                let keys = block.start.max(any.start)..block.end.min(any.end);
                if keys.is_empty() {
                    continue;
                }
                let hidden = self.hidden.get(rows.start..rows.end.min(self.hidden.len())).unwrap_or(&[]);
                if !hidden.is_empty() && hidden.iter().all(|hidden| hides_all(hidden, &keys)) {
                    continue;
                }
                let (scores, _) = S::as_mut_simd_f32s(&mut scores);
                let (scores, _) = scores.as_chunks_mut::<V>();
                let scores = &mut scores[..keys.len()];

                // 1. Block scores: (keys, panel).
                let of_panel = (keys.start - block.start) * d..(keys.end - block.start) * d;
                if self.in_pairs {
                    let Stored::Bf16(stored) = stored.part(of_panel) else { continue };
                    let size = width * d / 2;
                    let scores = pulp::bytemuck::cast_slice_mut(scores.as_flattened_mut());
                    let queries = &in_pairs[panel * size..(panel + 1) * size];
                    pairs::scores::<V>(queries, stored, self.site.scale, scores);
                } else {
                    let queries = &queries[panel * d..(panel + 1) * d];
                    let whole = keys.len() / T * T;
                    let of_panel = &of_block[of_panel];
                    for (scores, keys) in scores.chunks_exact_mut(T).zip(of_panel.chunks_exact(T * d)) {
                        tile::scores::<S, V, T>(simd, queries, keys, scores);
                    }
                    for i in whole..keys.len() {
                        tile::scores::<S, V, 1>(simd, queries, &of_panel[i * d..], &mut scores[i..]);
                    }
                }
                if let Some(cap) = self.site.softcap {
                    for s in pulp::bytemuck::cast_slice_mut(scores.as_flattened_mut()) {
                        *s = cap * f32::tanh(*s / cap);
                    }
                }
                if !sight.all(&keys) {
                    hide::<S, V>(simd, scores, &sight, keys.start);
                }
                if hidden.iter().any(|hidden| hides_some(hidden, &keys)) {
                    let scores = pulp::bytemuck::cast_slice_mut(scores.as_flattened_mut());
                    leave_out(scores, width, hidden, &keys);
                }

                // 2. Weights, and the rescale factor of earlier sums.
                let max = S::as_mut_simd_f32s(&mut max[rows.clone()]).0;
                let sum = S::as_mut_simd_f32s(&mut sum[rows]).0;
                let factor = exponentials::<S, V>(simd, scores, max, sum);

                // 3. Accumulate.
                self.fold.block::<S, V, T>(simd, panel, &factor, scores, keys.start);
            }
        }
        max.truncate(rows);
        sum.truncate(rows);
        Walked { max, sum, fold: self.fold }
    }

    /// Scaled queries (panel, d, row), zero-padded.
    fn pack(&self, width: usize, panels: usize, d: usize) -> Vec<f32> {
        let mut packed = vec![0f32; panels * d * width];
        for (r, query) in self.queries.iter().enumerate() {
            let panel = &mut packed[r / width * d * width..][..d * width];
            for (to, x) in panel[r % width..].iter_mut().step_by(width).zip(*query) {
                *to = x * self.site.scale;
            }
        }
        packed
    }

    /// bf16 pairs of query dimensions, (panel, d / 2, row), zero-padded.
    fn pack_pairs(&self, width: usize, panels: usize, d: usize) -> Vec<u32> {
        let mut packed = vec![0u32; panels * d / 2 * width];
        for (r, query) in self.queries.iter().enumerate() {
            let panel = &mut packed[r / width * d / 2 * width..][..d / 2 * width];
            for (to, x) in panel[r % width..].iter_mut().step_by(width).zip(query.as_chunks::<2>().0) {
                *to = bfloat::pair(bfloat::round(x[0]), bfloat::round(x[1]));
            }
        }
        packed
    }
}

/// Sets the scores of invisible keys to minus infinity.
#[inline(always)]
fn hide<S: Simd, const V: usize>(simd: S, scores: &mut [[S::f32s; V]], sight: &Sight<'_>, start: usize) {
    let hidden = simd.splat_f32s(f32::NEG_INFINITY);
    // Block-relative bounds are small, so exact in f32.
    let n = scores.len();
    let relative = |bounds: &[usize], v: usize| {
        let mut lanes = [simd.splat_f32s(0.0)];
        let bounds = &bounds[v * S::F32_LANES..(v + 1) * S::F32_LANES];
        for (lane, bound) in pulp::bytemuck::cast_slice_mut::<_, f32>(&mut lanes).iter_mut().zip(bounds) {
            *lane = bound.saturating_sub(start).min(n) as f32;
        }
        lanes[0]
    };
    for v in 0..V {
        let (from, to) = (relative(sight.from, v), relative(sight.to, v));
        for (j, score) in scores.iter_mut().enumerate() {
            let j = simd.splat_f32s(j as f32);
            let seen = simd.select_f32s(simd.less_than_f32s(j, to), score[v], hidden);
            score[v] = simd.select_f32s(simd.less_than_f32s(j, from), hidden, seen);
        }
    }
}

/// Sets the scores (keys, panel) of hidden `keys` to minus infinity; a panel has `width` rows.
fn leave_out(scores: &mut [f32], width: usize, hidden: &[&[Range<usize>]], keys: &Range<usize>) {
    for (r, ranges) in hidden.iter().enumerate() {
        for range in *ranges {
            let from = range.start.clamp(keys.start, keys.end) - keys.start;
            let to = range.end.clamp(keys.start, keys.end) - keys.start;
            for key in scores.chunks_exact_mut(width).take(to).skip(from) {
                key[r] = f32::NEG_INFINITY;
            }
        }
    }
}

/// Replaces a block's scores (keys, panel) by e^(score - max), updates `max` and `sum`, and returns the rescale factor of earlier
/// sums. NaN scores give NaN weights.
#[inline(always)]
fn exponentials<S: Simd, const V: usize>(
    simd: S,
    scores: &mut [[S::f32s; V]],
    max: &mut [S::f32s],
    sum: &mut [S::f32s],
) -> [S::f32s; V] {
    let mut top: [S::f32s; V] = std::array::from_fn(|v| max[v]);
    for score in scores.iter() {
        for v in 0..V {
            top[v] = simd.max_f32s(top[v], score[v]);
        }
    }
    let mut factor = top;
    let mut origin = top;
    for v in 0..V {
        // A row without visible keys has maximum -inf; a finite origin keeps its weights at 0.
        let nothing = simd.less_than_f32s(top[v], simd.splat_f32s(f32::MIN));
        origin[v] = simd.select_f32s(nothing, simd.splat_f32s(0.0), top[v]);
        factor[v] = exp_nonpositive(simd, simd.sub_f32s(max[v], origin[v]));
        max[v] = top[v];
    }
    let mut added = [simd.splat_f32s(0.0); V];
    for score in scores.iter_mut() {
        for v in 0..V {
            score[v] = exp_nonpositive(simd, simd.sub_f32s(score[v], origin[v]));
            added[v] = simd.add_f32s(added[v], score[v]);
        }
    }
    for v in 0..V {
        sum[v] = simd.mul_add_e_f32s(sum[v], factor[v], added[v]);
    }
    factor
}
