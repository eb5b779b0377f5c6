//! Gated delta rule, Mamba-2 and their implicit attention on f32 slices, one task per value head.
//!
//! Same blocks as [`super::block`], but a block's data stays in the L2 cache. Tasks depend on shapes only, never on the number of
//! threads.

use std::ops::Range;

use candle_core::{CpuStorage, Result, Storage, Tensor};
use rayon::prelude::*;

use super::gather::HeadSums;
use super::{BLOCK, Rule};
use crate::attention::backends::small_matmul::{Matrix, product};
use crate::simd::exp_nonpositive_all;

struct HeadBlock {
    m: usize,
    /// e^(G_i - G_j) where j <= i, else 0: (m, m).
    pairwise: Vec<f32>,
    /// e^(G_i)
    from_start: Vec<f32>,
    /// (I + L)^-1 diag(b), (m, m).
    transform: Vec<f32>,
}

#[derive(Clone, Copy)]
struct Head<'a> {
    rule: Rule,
    /// From this head's first key on; tokens are `k_stride` apart.
    k: &'a [f32],
    k_stride: usize,
    key_dim: usize,
    /// From this head's first token on; tokens are `stride` apart.
    g: &'a [f32],
    beta: &'a [f32],
    stride: usize,
}

impl<'a> Head<'a> {
    fn keys(&self, first: usize) -> Matrix<'a> {
        Matrix { data: &self.k[first * self.k_stride..], row_stride: self.k_stride, col_stride: 1 }
    }

    fn turned(&self, first: usize) -> Matrix<'a> {
        Matrix { data: &self.k[first * self.k_stride..], row_stride: 1, col_stride: self.k_stride }
    }

    fn block(&self, first: usize, m: usize) -> HeadBlock {
        let mut block = HeadBlock {
            m,
            pairwise: vec![0.0; m * m],
            from_start: Vec::with_capacity(m),
            transform: vec![0.0; m * m],
        };
        // 1. Log decays. Summed separately for each pair, to keep long sums accurate.
        let mut sum = 0f32;
        for i in 0..m {
            let g = self.g[(first + i) * self.stride];
            sum += g;
            block.from_start.push(sum);
            let (above, row) = block.pairwise.split_at_mut(i * m);
            if i > 0 {
                let above = &above[(i - 1) * m..][..i];
                for (x, above) in row.iter_mut().zip(above) {
                    *x = above + g;
                }
            }
        }
        let mut products = vec![0f32; m * m];
        if self.rule == Rule::Delta {
            product(&mut products, (m, m, self.key_dim), &self.keys(first), &self.turned(first), false);
        }
        // 3. Decays and the inverse of the triangle.
        let beta: Vec<f32> = (0..m).map(|i| self.beta[(first + i) * self.stride]).collect();
        pulp::Arch::new().dispatch(Invert { block: &mut block, products: &products, beta: &beta });
        if sum.is_nan() {
            // The fast exponential does not propagate NaN.
            block.from_start.fill(f32::NAN);
        }
        block
    }
}

/// Exponentiates log decays and computes the transform by forward substitution.
struct Invert<'a> {
    block: &'a mut HeadBlock,
    products: &'a [f32],
    beta: &'a [f32],
}

impl pulp::WithSimd for Invert<'_> {
    type Output = ();

    // Inlined throughout: pulp's target features must reach the loops.
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        let Invert { block: HeadBlock { m, pairwise, from_start, transform }, products, beta } = self;
        let m = *m;
        exp_nonpositive_all(simd, from_start);
        for (i, &b) in beta.iter().enumerate() {
            let decays = &mut pairwise[i * m..][..=i];
            exp_nonpositive_all(simd, decays);
            let (done, row) = transform.split_at_mut(i * m);
            let row = &mut row[..=i];
            row[i] = b;
            for (j, (decay, product)) in decays.iter().zip(&products[i * m..]).take(i).enumerate() {
                let factor = -b * decay * product;
                for (x, y) in row[..=j].iter_mut().zip(&done[j * m..][..=j]) {
                    *x = factor.mul_add(*y, *x);
                }
            }
        }
    }
}

/// The rule over l tokens; shapes as in [`crate::model`]'s `delta_rule`, all f32 on the CPU. Returns the outputs
/// (l, value_heads, value_dim) and the final state.
pub(crate) fn rule(
    rule: Rule,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    [g, beta]: [&Tensor; 2],
    state: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (l, key_heads, key_dim) = q.dims3()?;
    let (_, value_heads, value_dim) = v.dims3()?;
    let (heads, states) = with_slices([q, k, v, g, beta, state], |[q, k, v, g, beta, state]| {
        let done = (0..value_heads).into_par_iter().map(|h| {
            let kh = h / (value_heads / key_heads);
            let (k, g, beta) = (&k[kh * key_dim..], &g[h..], &beta[h..]);
            let head = Head { rule, k, k_stride: key_heads * key_dim, key_dim, g, beta, stride: value_heads };
            let mut state = state[h * key_dim * value_dim..][..key_dim * value_dim].to_vec();
            let q = Matrix { data: &q[kh * key_dim..], row_stride: key_heads * key_dim, col_stride: 1 };
            let v = Matrix { data: &v[h * value_dim..], row_stride: value_heads * value_dim, col_stride: 1 };
            let out = head_rule(&head, (&q, &v), (l, value_dim), &mut state);
            (out, state)
        });
        let (heads, states): (Vec<Vec<f32>>, Vec<Vec<f32>>) = done.collect::<Vec<_>>().into_iter().unzip();
        Ok((heads, states.concat()))
    })?;
    let mut out = vec![0f32; l * value_heads * value_dim];
    for (t, row) in out.chunks_exact_mut(value_heads * value_dim).enumerate() {
        for (head, x) in heads.iter().zip(row.chunks_exact_mut(value_dim)) {
            x.copy_from_slice(&head[t * value_dim..][..value_dim]);
        }
    }
    Ok((
        Tensor::from_vec(out, (l, value_heads, value_dim), q.device())?,
        Tensor::from_vec(states, (value_heads, key_dim, value_dim), q.device())?,
    ))
}

/// One head of [`rule`]: returns outputs (l, value_dim) and updates `state` (key_dim, value_dim).
fn head_rule(
    head: &Head<'_>,
    (q, v): (&Matrix<'_>, &Matrix<'_>),
    (l, dv): (usize, usize),
    state: &mut [f32],
) -> Vec<f32> {
    let dk = head.key_dim;
    let mut all = vec![0f32; l * dv];
    let mut seen = vec![0f32; BLOCK * dv];
    let mut written = vec![0f32; BLOCK * dv];
    let mut within = vec![0f32; BLOCK * BLOCK];
    for first in (0..l).step_by(BLOCK) {
        let m = BLOCK.min(l - first);
        let block = head.block(first, m);
        let out = &mut all[first * dv..][..m * dv];
        let (seen, written, within) = (&mut seen[..m * dv], &mut written[..m * dv], &mut within[..m * m]);

        // 1. Writes: values, by the delta rule minus the state's reads, through the block's transform.
        match head.rule {
            Rule::Delta => product(seen, (m, dv, dk), &head.keys(first), &rows(state, dv), false),
            Rule::Mamba2 => seen.fill(0.0),
        }
        for (i, (seen, decay)) in seen.chunks_exact_mut(dv).zip(&block.from_start).enumerate() {
            for (x, v) in seen.iter_mut().zip(&v.data[(first + i) * v.row_stride..]) {
                *x = v - decay * *x;
            }
        }
        product(written, (m, dv, m), &rows(&block.transform, m), &rows(seen, dv), false);

        // 2. Reads: the state before the block, and the block's writes up to each query.
        let q = rows(&q.data[first * q.row_stride..], q.row_stride);
        product(out, (m, dv, dk), &q, &rows(state, dv), false);
        for (out, decay) in out.chunks_exact_mut(dv).zip(&block.from_start) {
            out.iter_mut().for_each(|x| *x *= decay);
        }
        product(within, (m, m, dk), &q, &head.turned(first), false);
        for (x, decay) in within.iter_mut().zip(&block.pairwise) {
            *x *= decay;
        }
        product(out, (m, dv, m), &rows(within, m), &rows(written, dv), true);

        let to_end = &block.pairwise[(m - 1) * m..];
        for (written, decay) in written.chunks_exact_mut(dv).zip(to_end) {
            written.iter_mut().for_each(|x| *x *= decay);
        }
        let decay = block.from_start[m - 1];
        state.iter_mut().for_each(|x| *x *= decay);
        product(state, (dk, dv, m), &head.turned(first), &rows(written, dv), true);
    }
    all
}

fn rows(data: &[f32], row_stride: usize) -> Matrix<'_> {
    Matrix { data, row_stride, col_stride: 1 }
}

pub(super) struct Walk {
    rule: Rule,
    first_row: usize,
    rows: usize,
    key_heads: usize,
    key_dim: usize,
    /// Per value head (rows, key_dim): the query until the row starts, then its w (see [`super`]).
    heads: Vec<Vec<f32>>,
}

impl Walk {
    /// `q`: queries as the rule reads them, (key_heads, rows, key_dim); the first is at position `first_row`.
    pub fn new(rule: Rule, q: &Tensor, first_row: usize, value_heads: usize) -> Result<Self> {
        let (key_heads, rows, key_dim) = q.dims3()?;
        let q: Vec<f32> = q.flatten_all()?.to_vec1()?;
        let of_head =
            |h: usize| q[h / (value_heads / key_heads) * rows * key_dim..][..rows * key_dim].to_vec();
        let heads = (0..value_heads).map(of_head).collect();
        Ok(Walk { rule, first_row, rows, key_heads, key_dim, heads })
    }

    /// Processes the keys at `panel` backward: `k` (l, key_heads, key_dim) as the rule reads them, `g` and `beta` (l, value_heads), all f32.
    /// Blocks begin at the panel's start.
    pub fn back(
        &mut self,
        k: &Tensor,
        g: &Tensor,
        beta: &Tensor,
        panel: Range<usize>,
        bounds: &[usize],
        sums: &mut [HeadSums],
    ) -> Result<()> {
        let (key_heads, key_dim, value_heads) = (self.key_heads, self.key_dim, self.heads.len());
        let (rule, first_row, all) = (self.rule, self.first_row, self.rows);
        with_slices([k, g, beta], |[k, g, beta]| {
            self.heads.par_iter_mut().zip(sums).enumerate().for_each(|(h, (w, sums))| {
                let kh = h / (value_heads / key_heads);
                let (k, g, beta) = (&k[kh * key_dim..], &g[h..], &beta[h..]);
                let head =
                    Head { rule, k, k_stride: key_heads * key_dim, key_dim, g, beta, stride: value_heads };
                let mut weights = vec![0f32; all * BLOCK];
                let mut seen = vec![0f32; all * BLOCK];
                for first in (0..panel.len()).step_by(BLOCK).rev() {
                    let m = BLOCK.min(panel.len() - first);
                    let at = panel.start + first;
                    let begun = at.saturating_sub(first_row);
                    let w = &mut w[begun * key_dim..];
                    let n = all - begun;
                    let block = head.block(first, m);
                    let (seen, weights) = (&mut seen[..n * m], &mut weights[..n * m]);
                    product(seen, (n, m, key_dim), &rows(w, key_dim), &head.turned(first), false);
                    let place = |row: usize| (first_row + begun + row - at).min(m - 1);
                    for (row, seen) in seen.chunks_exact_mut(m).enumerate() {
                        for (x, decay) in seen.iter_mut().zip(&block.pairwise[place(row) * m..]) {
                            *x *= decay;
                        }
                    }
                    product(weights, (n, m, m), &rows(seen, m), &rows(&block.transform, m), false);
                    sums.add(weights, m, at, begun, bounds);
                    if at == 0 {
                        continue;
                    }
                    for (row, (weights, w)) in
                        weights.chunks_exact_mut(m).zip(w.chunks_exact_mut(key_dim)).enumerate()
                    {
                        for (x, decay) in weights.iter_mut().zip(&block.from_start) {
                            *x *= -decay;
                        }
                        let kept = block.from_start[place(row)];
                        w.iter_mut().for_each(|x| *x *= kept);
                    }
                    if rule == Rule::Delta {
                        product(w, (n, key_dim, m), &rows(weights, m), &head.keys(first), true);
                    }
                }
            });
            Ok(())
        })
    }
}

fn with_slices<const N: usize, T>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> Result<T>,
) -> Result<T> {
    let guards = tensors.map(Tensor::storage_and_layout);
    let mut slices: [&[f32]; N] = [&[]; N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&guards) {
        let (Storage::Cpu(CpuStorage::F32(data)), Some((start, end))) =
            (&**storage, layout.contiguous_offsets())
        else {
            candle_core::bail!(
                "the delta rule's CPU kernel was given a tensor that is not contiguous f32 on the CPU"
            );
        };
        *slice = &data[start..end];
    }
    f(slices)
}
