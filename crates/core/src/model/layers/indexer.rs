//! Lightning indexer: the keys that each row of a layer of latent attention sees.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{D, DType, Result, Tensor};

use super::{Phase, Projection, Rope};
use crate::attention::{Holes, Unchosen};
use crate::model::IndexerSpec;
use crate::transfer;

/// Products of a block of rows on devices other than the CPU.
const PRODUCTS: usize = 16 << 20;

/// Scores keys for each row by heads of its own, whose one key a token the cache keeps (transformers, `DeepseekV32Indexer`,
/// `GlmMoeDsaIndexer`). As there, scores are products in f32, without the Hadamard transform, which changes none, and without FP8.
#[derive(Debug)]
pub(in crate::model) struct Indexer {
    pub spec: IndexerSpec,
    /// Its layer, and those after it that choose by its scores.
    pub layers: Range<usize>,
    /// From the normed first projection of the queries: rank -> heads * width.
    pub queries: Projection,
    /// hidden -> width.
    pub keys: Projection,
    /// Weight and bias of the keys' layer norm, f32 (width).
    pub norm: [Tensor; 2],
    /// Weights of the heads: hidden -> heads.
    pub weights: Projection,
}

/// The indexer's queries of a pass.
#[derive(Debug)]
pub(in crate::model) struct Indexed {
    /// (l, heads, width), f32, rotated, scaled.
    q: Tensor,
    /// (l, heads), f32, scaled.
    weights: Tensor,
    /// Keys that a row chooses.
    count: usize,
}

impl Indexer {
    /// `x` (l, hidden), `normed` (l, rank): the rows' queries, and their keys (l, width).
    pub fn forward(
        &self,
        x: &Tensor,
        normed: &Tensor,
        rope: &Rope,
        phase: Phase,
    ) -> Result<(Indexed, Tensor)> {
        let (l, IndexerSpec { heads, width, keys: count, .. }) = (x.dim(0)?, self.spec);
        let q = rope.apply(&self.queries.forward(normed, phase)?.reshape((l, heads, width))?)?;
        let k = self.keys.forward(x, phase)?.to_dtype(DType::F32)?;
        let centred = k.broadcast_sub(&k.mean_keepdim(D::Minus1)?)?;
        let variance = (centred.sqr()?.mean_keepdim(D::Minus1)? + 1e-6)?;
        let [weight, bias] = &self.norm;
        let k = centred.broadcast_div(&variance.sqrt()?)?.broadcast_mul(weight)?.broadcast_add(bias)?;
        let k = rope.apply(&k.to_dtype(x.dtype())?.reshape((l, 1, width))?)?;
        let weights = self.weights.forward(x, phase)?.to_dtype(DType::F32)?;
        let weights = (weights * (heads as f64).powf(-0.5))?;
        let q = (q.to_dtype(DType::F32)? * (width as f64).powf(-0.5))?;
        Ok((Indexed { q, weights, count }, k.squeeze(1)?))
    }
}

impl Indexed {
    pub fn rows(&self) -> Result<usize> {
        self.q.dim(0)
    }

    /// The keys that `rows` of the pass, which are at the positions from `offset` on, do not choose of `keys` (1, n, width), by layer that
    /// chooses by these scores. `holes`: by layer, the keys hidden from the rows and shown to them.
    pub fn unchosen(
        &self,
        rows: Range<usize>,
        offset: usize,
        keys: &Tensor,
        holes: &[Holes],
    ) -> Result<Vec<Arc<Unchosen>>> {
        // Most passes hide the same keys at all these layers, which then have one choice.
        let mut distinct: Vec<&Holes> = Vec::new();
        let mut of_layer = Vec::with_capacity(holes.len());
        for holes in holes {
            let known = distinct.iter().position(|known| *known == holes);
            of_layer.push(known.unwrap_or(distinct.len()));
            if known.is_none() {
                distinct.push(holes);
            }
        }
        let keys = keys.get(0)?.to_dtype(DType::F32)?;
        let products = self.q.dim(1)? * keys.dim(0)?;
        // On the CPU a row at a time, for sums that do not depend on the number of rows.
        let together = if keys.device().is_cpu() { 1 } else { (PRODUCTS / products.max(1)).max(1) };
        let mut unchosen = vec![Vec::new(); distinct.len()];
        for first in rows.clone().step_by(together) {
            let block = first..(first + together).min(rows.end);
            let positions = offset + block.start - rows.start..offset + block.end - rows.start;
            let n = positions.end;
            let scores = match n > self.count {
                true => transfer::fetch(&self.scores(block, &keys.narrow(0, 0, n)?)?)?,
                // All are chosen.
                false => vec![0.0; positions.len() * n],
            };
            for (at, scores) in positions.zip(scores.chunks_exact(n)) {
                for (unchosen, holes) in unchosen.iter_mut().zip(&distinct) {
                    unchosen.push(holes.unchosen_by(&scores[..=at], at, self.count));
                }
            }
        }
        let unchosen = unchosen.into_iter().map(|rows| Arc::new(Unchosen::new(offset, rows)));
        let unchosen: Vec<Arc<Unchosen>> = unchosen.collect();
        Ok(of_layer.into_iter().map(|nth| Arc::clone(&unchosen[nth])).collect())
    }

    /// Scores of `keys` (n, width): the heads' weights times the positive parts of their products, f32 (rows, 1, n).
    fn scores(&self, rows: Range<usize>, keys: &Tensor) -> Result<Tensor> {
        let ((_, heads, width), l) = (self.q.dims3()?, rows.len());
        let q = self.q.narrow(0, rows.start, l)?.reshape((l * heads, width))?;
        let products = q.matmul(&keys.t()?)?.relu()?.reshape((l, heads, keys.dim(0)?))?;
        self.weights.narrow(0, rows.start, l)?.unsqueeze(1)?.matmul(&products)
    }
}
