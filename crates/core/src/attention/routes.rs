//! Information-flow routes of several rows at once: how near each key brings the residual stream to its value after attention.
//!
//! Ferrando and Voita 2024 (arXiv 2403.00824) for the weighted sum of rows that FlashTrace follows (Pan et al. 2026, arXiv 2602.01914,
//! `compute_ifr_sentence_aggregate`). With row weights w_i that sum to 1, x and y the sums of w_i times the residual stream before and
//! after a layer's attention, and t_jh = sum over i of w_i A_ij n_i * W_O^h v_j (n_i: scales of the norm behind the projection, if any),
//!
//! ```text
//! near(t)  =  max(0, |y|_1 - |y - t|_1)
//! e_j      =  sum over h of near(t_jh)  /  (near(x) + sum over k and h of near(t_kh))
//! ```
//!
//! and the result is the sum of e_j over the softmax layers. Biases and attention sinks belong to no key. With s the signs of y, an entry
//! of |y| - |y - t| is min(s t, 2 |y| - s t), which keeps the digits of small t.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{D, DType, Result, Tensor};

use super::backends::weighted_keys;
use super::{Event, Observer, Point, Residual, Site, Wanted};
use crate::timing;
use crate::transfer;

/// Entries of the contributions that are held at once: 16 MiB.
const ENTRIES: usize = 4 << 20;
/// Keeps a layer without any contribution finite.
const LEAST: f64 = 1e-12;

/// Consecutive rows and their weights.
#[derive(Debug, Clone, PartialEq)]
pub struct RowWeights {
    /// Position of the first row.
    pub first: usize,
    /// A weight per row, from 0 up; used in proportion to their sum.
    pub weights: Vec<f64>,
}

impl RowWeights {
    /// Positions of the rows.
    pub fn rows(&self) -> Range<usize> {
        self.first..self.first + self.weights.len()
    }
}

/// Follows routes from weighted rows to keys.
#[derive(Debug, Clone)]
pub struct RouteObserver {
    rows: RowWeights,
    /// Site, queries, keys and values of the layer that is being read.
    inputs: Option<(Site, [Tensor; 3])>,
    /// Layers of which some rows are still to be read.
    layers: BTreeMap<usize, Partial>,
    shares: Vec<f64>,
}

/// A layer's sums over the rows read so far.
#[derive(Debug, Clone)]
struct Partial {
    /// Position of the first key.
    first: usize,
    /// Weighted sums of softmax weights, f32 (heads, keys).
    weights: Tensor,
    /// Values of the keys so far, of sliding-window layers, whose cache overwrites them.
    values: Option<Tensor>,
    /// Weighted residual stream before and after attention, f32 (2, hidden).
    residuals: Tensor,
}

impl RouteObserver {
    /// Follows routes from `rows` of a prompt of `tokens` tokens.
    pub fn new(rows: RowWeights, tokens: usize) -> Self {
        let sum: f64 = rows.weights.iter().sum();
        let part = |weight: &f64| weight / (sum + LEAST);
        let weights = rows.weights.iter().map(part).collect();
        let rows = RowWeights { weights, ..rows };
        RouteObserver { rows, inputs: None, layers: BTreeMap::new(), shares: vec![0.0; tokens] }
    }

    /// Sum over layers of each key's share, by position.
    pub fn finish(&self) -> Vec<f64> {
        self.shares.clone()
    }

    /// Rows of the chunk of `l` positions from `offset` on.
    fn within(&self, offset: usize, l: usize) -> Range<usize> {
        let rows = self.rows.rows();
        rows.start.max(offset)..rows.end.min(offset + l)
    }

    fn add(&mut self, site: &Site, [q, k, v]: &[Tensor; 3], of: Residual<'_>) -> Result<()> {
        let _span = timing::observer();
        let rows = self.within(site.offset, q.dim(0)?);
        let (place, count) = (rows.start - site.offset, rows.len());
        let weights = &self.rows.weights[rows.start - self.rows.first..rows.end - self.rows.first];
        let weights: Vec<f32> = weights.iter().map(|weight| *weight as f32).collect();
        let mut by = transfer::upload(weights, (1, count), q.device())?;

        // 1. The residual stream, summed over rows.
        let of_rows = |x: &Tensor| x.narrow(0, place, count)?.to_dtype(DType::F32)?.contiguous();
        let summed = |x: &Tensor| by.matmul(&of_rows(x)?);
        let mut residuals = Tensor::cat(&[summed(of.before)?, summed(of.after)?], 0)?;

        // 2. The scales of all rows are multiples of one vector: its direction scales the output projection, their lengths the rows.
        let mut outputs = of.outputs.clone();
        if let Some(scales) = of.scales {
            let scales = of_rows(scales)?;
            let lengths = (scales.abs()?.sum_keepdim(1)? + LEAST)?;
            outputs = outputs.broadcast_mul(&scales.broadcast_div(&lengths)?.narrow(0, 0, 1)?)?;
            by = (by * lengths.t()?)?;
        }

        // 3. Softmax weights by key, with those of earlier chunks.
        let at = place..place + count;
        let mut weights = weighted_keys(q, k, &site.relative(), at, &by.flatten_all()?)?;
        let (mut first, mut values) = (site.first_key, v.clone());
        if let Some(earlier) = self.layers.remove(&site.layer) {
            let gone = first - earlier.first;
            let new = gone + weights.dim(1)? - earlier.weights.dim(1)?;
            let before = earlier.weights.pad_with_zeros(1, 0, new)?;
            weights = (before + weights.pad_with_zeros(1, gone, 0)?)?;
            if let Some(old) = earlier.values.filter(|_| gone > 0) {
                values = Tensor::cat(&[&old.narrow(1, 0, gone)?, &values], 1)?;
            }
            residuals = (residuals + earlier.residuals)?;
            first = earlier.first;
        }

        // 4. Shares, once the last row has been read.
        if rows.end < self.rows.rows().end {
            let values = site.window.map(|_| values.force_contiguous()).transpose()?;
            self.layers.insert(site.layer, Partial { first, weights, values, residuals });
            return Ok(());
        }
        let shares = shares(&weights, &values, &outputs, &residuals)?;
        self.shares.iter_mut().skip(first).zip(shares).for_each(|(sum, share)| *sum += share);
        Ok(())
    }
}

/// A layer's shares e_j. `weights`: f32 (heads, keys). `values`: (kv_heads, keys, head_dim). `outputs`: f32 (heads, head_dim, hidden).
/// `residuals`: f32 (2, hidden).
fn shares(weights: &Tensor, values: &Tensor, outputs: &Tensor, residuals: &Tensor) -> Result<Vec<f64>> {
    let (heads, head_dim, hidden) = outputs.dims3()?;
    let (kv_heads, keys, _) = values.dims3()?;
    let after = residuals.narrow(0, 1, 1)?;
    let signs = ((after.ge(0f32)?.to_dtype(DType::F32)? * 2.0)? - 1.0)?;
    let twice = (after.abs()? * 2.0)?;
    // `t`: a contribution times the signs, (.., hidden).
    let near = |t: &Tensor| t.minimum(&twice.broadcast_sub(t)?)?.sum(D::Minus1)?.relu();
    let residual = near(&(residuals.narrow(0, 0, 1)? * &signs)?)?;
    let outputs = outputs.broadcast_mul(&signs)?;
    let mut found: Vec<f32> = transfer::fetch(&residual)?;
    for start in (0..keys).step_by((ENTRIES / (heads * hidden).max(1)).max(1)) {
        let n = (ENTRIES / (heads * hidden).max(1)).clamp(1, keys - start);
        let v = values.narrow(1, start, n)?.to_dtype(DType::F32)?.unsqueeze(1)?;
        let v = v.expand((kv_heads, heads / kv_heads, n, head_dim))?.reshape((heads, n, head_dim))?;
        let read = v.broadcast_mul(&weights.narrow(1, start, n)?.unsqueeze(2)?)?;
        found.extend(transfer::fetch(&near(&read.matmul(&outputs)?)?.sum(0)?)?);
    }
    let total = found.iter().map(|x| f64::from(*x)).sum::<f64>() + LEAST;
    Ok(found.iter().skip(1).map(|x| f64::from(*x) / total).collect())
}

impl Observer for RouteObserver {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        match point {
            Point::Attention(site) => Wanted::inputs(self.rows.rows().end > site.offset),
            Point::LinearAttention(_) => Wanted::default(),
            Point::Residual { offset, l } => {
                Wanted { residual: !self.within(offset, l).is_empty(), ..Wanted::default() }
            }
        }
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        match event {
            Event::Attention { site, q, k, v } if !self.within(site.offset, q.dim(0)?).is_empty() => {
                self.inputs = Some((site.clone(), [q.clone(), k.clone(), v.clone()]));
            }
            Event::Residual(of) => {
                if let Some((site, inputs)) = self.inputs.take() {
                    self.add(&site, &inputs, of)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
