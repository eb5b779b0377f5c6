mod branches;
mod cache_copies;
mod delta;
#[cfg(feature = "flash-attn")]
mod flash;
#[cfg(feature = "cuda")]
mod fused;
mod holes;
mod kernel;
mod masses;
pub mod store;

use candle_core::{Device, Tensor};
use palimpsest_core::attention::{AttentionKernel, Hole, Holes, Observer, Sinks, Site, Tail, run_after};

/// Queries, keys and values of one call.
pub struct Inputs {
    pub l: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub d: usize,
    /// (l, heads, d)
    pub q: Vec<f32>,
    /// (kv_heads, offset + l, d)
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    keys: usize,
}

impl Inputs {
    /// Values of order 1, determined by the shape; queries are twice as large, so that the softmax has peaks.
    pub fn new(l: usize, offset: usize, (heads, kv_heads): (usize, usize), d: usize) -> Self {
        let keys = offset + l;
        let mut state = (l * 31 + keys * 17 + heads * 7 + d) as u64;
        let mut number = || {
            // SplitMix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        };
        let mut some = |n: usize, size: f32| (0..n).map(|_| number() * size).collect::<Vec<f32>>();
        Inputs {
            q: some(l * heads * d, 3.0),
            k: some(kv_heads * keys * d, 1.7),
            v: some(kv_heads * keys * d, 1.7),
            l,
            heads,
            kv_heads,
            d,
            keys,
        }
    }

    pub fn tensors(&self) -> [Tensor; 3] {
        let device = &Device::Cpu;
        [
            Tensor::from_slice(&self.q, (self.l, self.heads, self.d), device).unwrap(),
            Tensor::from_slice(&self.k, (self.kv_heads, self.keys, self.d), device).unwrap(),
            Tensor::from_slice(&self.v, (self.kv_heads, self.keys, self.d), device).unwrap(),
        ]
    }

    /// Reference: softmax weights over all keys of query row `i` in head `h`, and the sink's weight, in f64.
    pub fn weights(&self, site: &Site, i: usize, h: usize) -> (Vec<f64>, f64) {
        let kv = h / (self.heads / self.kv_heads);
        let position = site.offset + i;
        let q = &self.q[(i * self.heads + h) * self.d..][..self.d];
        let scores: Vec<f64> = (0..self.keys)
            .map(|j| {
                let hidden = |hole: &Hole| hole.rows.contains(&position) && hole.keys.contains(&j);
                let seen = j <= position
                    && site.window.is_none_or(|w| j + w > position)
                    && !site.holes.iter().any(hidden);
                if !seen {
                    return f64::NEG_INFINITY;
                }
                let k = &self.k[(kv * self.keys + j) * self.d..][..self.d];
                let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let s = dot * f64::from(site.scale);
                site.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
            })
            .collect();
        let sink = site.sinks.as_ref().map_or(f64::NEG_INFINITY, |s| f64::from(s.logits()[h]));
        let top = scores.iter().copied().fold(sink, f64::max);
        let total: f64 = scores.iter().map(|s| (s - top).exp()).sum::<f64>() + (sink - top).exp();
        (scores.iter().map(|s| (s - top).exp() / total).collect(), (sink - top).exp() / total)
    }

    /// Reference output, (l, heads, d).
    pub fn output(&self, site: &Site) -> Vec<f64> {
        let mut out = Vec::with_capacity(self.l * self.heads * self.d);
        for i in 0..self.l {
            for h in 0..self.heads {
                let kv = h / (self.heads / self.kv_heads);
                let (weights, _) = self.weights(site, i, h);
                let mut row = vec![0f64; self.d];
                for (j, w) in weights.iter().enumerate().filter(|(_, w)| **w != 0.0) {
                    let v = &self.v[(kv * self.keys + j) * self.d..][..self.d];
                    for (x, v) in row.iter_mut().zip(v) {
                        *x += w * f64::from(*v);
                    }
                }
                out.extend(row);
            }
        }
        out
    }
}

/// A site without window, cap or sinks.
pub fn site(offset: usize, d: usize) -> Site {
    Site {
        layer: 0,
        offset,
        first_key: 0,
        scale: 1.0 / (d as f32).sqrt(),
        window: None,
        softcap: None,
        sinks: None,
        holes: Default::default(),
        kernel: AttentionKernel::Auto,
    }
}

/// Decodes one row per tail after a shared prefix, with holes and observers for none or for each.
pub fn run_branches(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    own: &[(Tensor, Tensor)],
    site: &Site,
    holes: &[Holes],
    observers: &mut [&mut dyn Observer],
) -> candle_core::Result<Tensor> {
    let mut observers = observers.iter_mut();
    let tails = own.iter().enumerate().map(|(row, (k, v))| Tail {
        k,
        v,
        holes: holes.get(row).cloned().unwrap_or_default(),
        observer: observers.next().map(|observer| &mut **observer as &mut dyn Observer),
    });
    run_after(q, (k, v), &mut tails.collect::<Vec<_>>(), 1, site)
}

/// Sinks of the magnitude of the scores.
pub fn sinks(heads: usize) -> Option<Sinks> {
    sinks_of((0..heads).map(|h| h as f32 * 0.7 - 1.0).collect())
}

pub fn sinks_of(logits: Vec<f32>) -> Option<Sinks> {
    Some(Sinks::new(logits, &Device::Cpu).unwrap())
}

pub fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

pub fn bits(tensor: &Tensor) -> Vec<u32> {
    numbers(tensor).into_iter().map(f32::to_bits).collect()
}

/// Maximum absolute difference; NaN on either side counts as infinite.
pub fn apart(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found
        .iter()
        .zip(expected)
        .map(|(a, b)| (f64::from(*a) - b).abs())
        .fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) })
}
