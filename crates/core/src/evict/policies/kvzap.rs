//! A small regression that predicts which keys a repetition of the history would attend to, after KVzip (arXiv 2505.23416) and KVzap
//! (arXiv 2601.07891).
//!
//! The first 512 tokens of the history are read again after themselves. A key's importance is the largest weight that it gets from
//! the second reading, over rows and the query heads of its key/value head. A ridge regression for each layer and key/value head from
//! a key before its rotation and its value to the logarithm of the importance scores all keys of the history. NVIDIA's KVzap is fitted
//! to many texts in advance, reads hidden states, thresholds instead of keeping a budget, and always keeps the latest tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::super::collector::evicting;
use super::super::policy::{LayerKeys, Policy};
use super::super::rotation::Unrotation;
use crate::attention::{Event, Observer, OverRows, Point, Wanted, key_weights};
use crate::model::{Cache, Decoder};
use crate::transfer;

/// Tokens that the regression is fitted on.
const TOKENS: usize = 512;
/// Tokens per forward pass.
const CHUNK: usize = 256;
/// Ridge penalty on features and targets of variance 1.
const PENALTY: f64 = 0.1;
/// Importance that smaller ones are raised to, before the logarithm.
const LEAST: f64 = 1e-8;

pub struct Kvzap {
    /// By layer: weights of the features, f32 (kv_heads, 2 * head_dim, 1), and the history's rotations, which layers share. The intercept
    /// is left out: it changes no order.
    layers: BTreeMap<usize, (Tensor, Arc<Unrotation>)>,
}

impl Kvzap {
    /// Fits to the beginning of `history`, which `cache` has read.
    pub fn fitted(decoder: &Decoder, cache: &Cache, history: &[u32]) -> Result<Self> {
        let (end, history) = (history.len(), &history[..history.len().min(TOKENS)]);
        let keys = history.len();
        // Read anew by caches that cannot go back to there.
        let mut cache = cache.fork(keys, 2 * keys)?;
        let unread = history.get(cache.len()..).unwrap_or_default();
        let mut second = Second { keys, largest: evicting(decoder.spec()).map(|(i, _)| (i, None)).collect() };
        for chunk in [unread, history].iter().flat_map(|reading| reading.chunks(CHUNK)) {
            decoder.fill_cache(chunk, &mut cache, &mut second)?;
        }
        let mut layers: BTreeMap<usize, (Tensor, Arc<Unrotation>)> = BTreeMap::new();
        for (layer, spec) in evicting(decoder.spec()) {
            let (Some((k, v)), Some(Some(largest))) =
                (cache.before(layer, keys)?, second.largest.get(&layer))
            else {
                candle_core::bail!("This is a bug: layer {layer} was not read twice");
            };
            let importance = largest.reshape((spec.kv_heads, spec.heads / spec.kv_heads, keys))?.max(1)?;
            let target = importance.clamp(LEAST, 1.0)?.log()?;
            let (rope, device) = (&spec.rope, k.device());
            let known = layers.values().map(|(_, known)| known).find(|known| known.serves(rope, device));
            let rotation = match known {
                Some(known) => Arc::clone(known),
                None => Arc::new(Unrotation::new(0..end, rope, device)?),
            };
            let weights = fit(&features(&k, &v, &rotation)?, &target)?;
            layers.insert(layer, (weights, rotation));
        }
        Ok(Kvzap { layers })
    }
}

impl Policy for Kvzap {
    fn scores(&self, layer: &LayerKeys<'_>) -> Result<Tensor> {
        let Some((weights, rotation)) = self.layers.get(&layer.layer) else {
            candle_core::bail!("This is a bug: layer {} has no regression", layer.layer)
        };
        features(&layer.k, &layer.v, rotation)?.matmul(weights)?.squeeze(2)
    }
}

/// Keys before their rotation and values: f32 (kv_heads, keys, 2 * head_dim).
fn features(k: &Tensor, v: &Tensor, rotation: &Unrotation) -> Result<Tensor> {
    let k = rotation.of(&k.transpose(0, 1)?)?.transpose(0, 1)?;
    Tensor::cat(&[&k, &v.to_dtype(k.dtype())?], 2)?.contiguous()
}

/// Ridge regression of `y` (heads, n) on `x` (heads, n, features) for each head, with an intercept: (heads, features, 1).
pub fn fit(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let (heads, n, features) = x.dims3()?;
    let x = x.broadcast_sub(&x.mean_keepdim(1)?)?;
    let y = y.broadcast_sub(&y.mean_keepdim(1)?)?.unsqueeze(2)?;
    // Not 0 where a feature does not vary.
    let deviation = (x.sqr()?.mean_keepdim(1)?.sqrt()? + 1e-12)?;
    let x = x.broadcast_div(&deviation)?;
    let of_features = (x.transpose(1, 2)?.contiguous()? / n as f64)?;
    let products = transfer::fetch(&of_features.matmul(&x)?)?;
    let with_target = transfer::fetch(&of_features.matmul(&y)?)?;
    let mut weights = Vec::with_capacity(heads * features);
    for (a, b) in products.chunks_exact(features * features).zip(with_target.chunks_exact(features)) {
        weights.extend(solve(a, b).into_iter().map(|weight| weight as f32));
    }
    let weights = transfer::upload(weights, (heads, features, 1), x.device())?;
    weights.broadcast_div(&deviation.transpose(1, 2)?)
}

/// Solves (a + penalty I) w = b by Cholesky; `a` is positive semi-definite.
fn solve(a: &[f32], b: &[f32]) -> Vec<f64> {
    let n = b.len();
    let mut factor: Vec<Vec<f64>> = Vec::with_capacity(n);
    for i in 0..n {
        let mut row: Vec<f64> = Vec::with_capacity(i + 1);
        for j in 0..=i {
            let above = if j < i { &factor[j] } else { &row };
            let dot: f64 = row.iter().zip(above).take(j).map(|(x, y)| x * y).sum();
            let rest = f64::from(a[i * n + j]) - dot;
            row.push(if i == j { (rest + PENALTY).sqrt() } else { rest / above[j] });
        }
        factor.push(row);
    }
    let mut w: Vec<f64> = Vec::with_capacity(n);
    for (row, &b) in factor.iter().zip(b) {
        let dot: f64 = row.iter().zip(&w).map(|(x, w)| x * w).sum();
        w.push((f64::from(b) - dot) / row[w.len()]);
    }
    for i in (0..n).rev() {
        let dot: f64 = (i + 1..n).map(|k| factor[k][i] * w[k]).sum();
        w[i] = (w[i] - dot) / factor[i][i];
    }
    w
}

/// Reads the largest weight of each key of the first reading from the rows of the second.
struct Second {
    keys: usize,
    /// By layer, f32 (heads, keys).
    largest: BTreeMap<usize, Option<Tensor>>,
}

impl Observer for Second {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        Wanted::inputs(matches!(point, Point::Attention(site) if site.offset >= self.keys))
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        let Event::Attention { site, q, k, .. } = event else { return Ok(()) };
        if let Some(largest) = self.largest.get_mut(&site.layer).filter(|_| site.offset >= self.keys) {
            let weights = key_weights(q, k, site, 0..q.dim(0)?, OverRows::Largest)?;
            let weights = weights.narrow(1, 0, self.keys)?;
            *largest = Some(match largest {
                Some(earlier) => OverRows::Largest.merged(earlier, &weights)?,
                None => weights.contiguous()?,
            });
        }
        Ok(())
    }
}
