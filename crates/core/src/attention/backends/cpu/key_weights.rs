//! Each key's softmax weight over rows: the sum or the largest.
//!
//! One block of rows' weights is stored at a time, since a row's normaliser is known only at its end.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use pulp::Simd;
use rayon::prelude::*;

use super::super::kernel::OverRows;
use super::fold::Fold;
use super::queries::{Queries, WideQueries};
use super::sequence::{Sequence, with_slices};
use super::tasks::Shape;
use super::value_sums::normaliser;
use super::walk::{Walk, Walked};
use crate::attention::Site;
use crate::simd::lanes;

/// Rows of one head whose weights are stored at a time; fills the widest panel.
const ROWS: usize = 48;

/// f32 (heads, keys)
pub fn key_weights(
    q: &Tensor,
    k: &Tensor,
    site: &Site,
    rows: Range<usize>,
    over: OverRows,
) -> Result<Tensor> {
    let (shape, q, keys) = (Shape::new(q, k)?, WideQueries::new(q)?, k.dim(1)?);
    let weights = with_slices(&[&q.wide, k], |slices| {
        let queries = Queries::of(&q, slices[0].f32()?, shape, site)?;
        let sequence = Sequence::new(k, k, slices[1], slices[1])?;
        let mut weights = vec![0f32; shape.heads * keys];
        weights.par_chunks_mut(keys.max(1)).enumerate().for_each(|(head, weights)| {
            for start in rows.clone().step_by(ROWS) {
                queries.add(head, start..(start + ROWS).min(rows.end), &sequence, over, weights);
            }
        });
        Ok(weights)
    })?;
    Tensor::from_vec(weights, (shape.heads, keys), &Device::Cpu)
}

impl Queries<'_> {
    /// Merges the weights of `head`'s `rows` into those by key.
    fn add(
        &self,
        head: usize,
        rows: Range<usize>,
        sequence: &Sequence<'_>,
        over: OverRows,
        by_key: &mut [f32],
    ) {
        let Shape { heads, group, d, .. } = self.shape;
        let range = self.visible(&rows);
        let hidden = if self.hidden.is_empty() { 0..0 } else { rows.clone() };
        let walk = Walk {
            queries: rows.clone().map(|row| &self.q[(row * heads + head) * d..][..d]).collect(),
            positions: self.positions[rows.clone()].to_vec(),
            hidden: hidden.map(|row| self.hidden.row(row)).collect(),
            keys: sequence.keys(head / group),
            range,
            site: self.site,
            in_pairs: self.in_pairs(sequence),
            fold: Stored::default(),
        };
        let Walked { max, sum, fold } = pulp::Arch::new().dispatch(walk);
        let scales = max.iter().zip(&sum).map(|(&max, &sum)| normaliser(self.site, head, max, sum));
        let mut scales: Vec<f32> = scales.collect();
        scales.resize(scales.len().next_multiple_of(fold.width), 0.0);
        let mut row_scales = scales.chunks_exact_mut(fold.width);
        for panel in &fold.panels {
            let Some(scales) = row_scales.next() else { return };
            // The last block is relative to the row's maximum, each earlier one to the running maximum at that time.
            for block in panel.iter().rev() {
                for (key, weights) in
                    by_key[block.start..].iter_mut().zip(block.weights.chunks_exact(fold.width))
                {
                    over.merge(key, weights.iter().zip(&*scales).map(|(weight, scale)| weight * scale));
                }
                scales.iter_mut().zip(&block.factors).for_each(|(scale, factor)| *scale *= factor);
            }
        }
    }
}

/// Stores the weights and the rescale factors of earlier blocks.
#[derive(Default)]
struct Stored {
    width: usize,
    panels: Vec<Vec<Block>>,
}

struct Block {
    /// First key.
    start: usize,
    /// (key, row)
    weights: Vec<f32>,
    /// Per row.
    factors: Vec<f32>,
}

impl Fold for Stored {
    fn begin(&mut self, panels: usize, width: usize) {
        self.width = width;
        self.panels.resize_with(panels, Vec::new);
    }

    #[inline(always)]
    fn block<S: Simd, const V: usize, const D: usize>(
        &mut self,
        _simd: S,
        panel: usize,
        factor: &[S::f32s; V],
        weights: &[[S::f32s; V]],
        start: usize,
    ) {
        let weights = lanes::<S>(weights.as_flattened()).to_vec();
        self.panels[panel].push(Block { start, weights, factors: lanes::<S>(factor).to_vec() });
    }
}
