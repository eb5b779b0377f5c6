//! Mixture of experts: router and experts.
//!
//! The token count per expert determines the products, so on a device each layer syncs once for the router's logits: (tokens, experts)
//! f32, 512 bytes per token for 128 experts. Alternatives are a kernel for all experts' products (Candle has one for CUDA in bf16, separate
//! from the weights' other uses) or, for few tokens, gathering the chosen experts' weights, which for gpt-oss-20b moves 200 MB per layer
//! and token: 0.2 ms at 2 TB/s, while the sync takes some 20 us.

use candle_core::{DType, Result, Tensor};

use super::projection::dense_product;
use super::{Mlp, Phase};
use crate::model::{ExpertsSpec, Routing};
use crate::timing;
use crate::transfer;

/// Sparse mixture of experts (transformers, `Qwen3MoeSparseMoeBlock`, `GptOssMLP`, `Glm4MoeMoE`, `MiniMaxM2SparseMoeBlock`).
#[derive(Debug)]
pub(in crate::model) struct Experts {
    pub spec: ExpertsSpec,
    /// (experts, hidden), f32: routing is always f32.
    pub router: Tensor,
    /// (experts), f32
    pub router_bias: Option<Tensor>,
    /// Score correction bias for expert selection, one per expert.
    pub correction: Option<Vec<f32>>,
    pub experts: Vec<Mlp>,
    pub shared: Option<Mlp>,
}

impl Experts {
    /// (l, hidden) -> (l, hidden)
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        // 1. Route: f32 logits (l, experts), then the tokens of each expert.
        let routing = timing::linear();
        let mut logits = dense_product(&x.to_dtype(DType::F32)?, &self.router.t()?, phase)?;
        if let Some(bias) = &self.router_bias {
            logits = logits.broadcast_add(bias)?;
        }
        drop(routing);
        let Assigned { counts, tokens, places, weights } = self.assign(&transfer::fetch(&logits)?);
        let (l, hidden) = x.dims2()?;

        // 2. Experts process their tokens, gathered contiguously; a single token is passed to all of its experts as is.
        let picks = tokens.len();
        let mut given = match l {
            1 => None,
            _ => Some(x.index_select(&transfer::upload(tokens, picks, x.device())?, 0)?),
        };
        let mut parts = Vec::new();
        let mut start = 0;
        for (expert, n) in self.experts.iter().zip(counts).filter(|(_, n)| *n > 0) {
            parts.push(match &given {
                None => expert.forward(x, phase)?,
                Some(given) => expert.forward(&given.narrow(0, start, n)?, phase)?,
            });
            start += n;
        }

        // 3. Weighted sum of each token's outputs in expert order, in f32. Large tensors are freed early.
        let mut y = Tensor::cat(&parts, 0)?;
        drop(parts);
        if given.take().is_some() {
            y = y.index_select(&transfer::upload(places, picks, x.device())?, 0)?;
        }
        y = y.to_dtype(DType::F32)?;
        let out = if l == 1 && !transfer::cpu_kernels(x.device()) {
            transfer::upload(weights, (1, picks), x.device())?.matmul(&y)?
        } else {
            let weights = transfer::upload(weights, (l, picks / l, 1), x.device())?;
            y.reshape((l, picks / l, hidden))?.broadcast_mul(&weights)?.sum(1)?
        };
        let out = out.to_dtype(x.dtype())?;

        // 4. The shared expert processes all tokens.
        match &self.shared {
            Some(shared) => out + shared.forward(x, phase)?,
            None => Ok(out),
        }
    }

    /// Assigns tokens to experts from all tokens' logits.
    fn assign(&self, logits: &[f32]) -> Assigned {
        let experts = self.experts.len();
        let chosen: Vec<Vec<(usize, f32)>> = logits
            .chunks_exact(experts.max(1))
            .map(|logits| {
                let mut chosen = route(logits, self.correction.as_deref(), &self.spec);
                chosen.sort_by_key(|(expert, _)| *expert);
                chosen
            })
            .collect();
        let mut counts = vec![0; experts];
        chosen.iter().flatten().for_each(|(expert, _)| counts[*expert] += 1);
        // Next free index per expert.
        let mut next = vec![0; experts];
        for expert in 1..experts {
            next[expert] = next[expert - 1] + counts[expert - 1];
        }
        let picks = chosen.iter().map(Vec::len).sum();
        let (mut tokens, mut places, mut weights) = (vec![0; picks], Vec::new(), Vec::new());
        for (token, chosen) in chosen.iter().enumerate() {
            for &(expert, weight) in chosen {
                tokens[next[expert]] = token as u32;
                places.push(next[expert] as u32);
                weights.push(weight);
                next[expert] += 1;
            }
        }
        Assigned { counts, tokens, places, weights }
    }
}

/// Tokens grouped by expert, and the inverse mapping.
struct Assigned {
    counts: Vec<usize>,
    /// Grouped by expert, ascending.
    tokens: Vec<u32>,
    /// Per token: indices into `tokens` of its experts, in expert order, and their weights.
    places: Vec<u32>,
    weights: Vec<f32>,
}

fn route(logits: &[f32], correction: Option<&[f32]>, spec: &ExpertsSpec) -> Vec<(usize, f32)> {
    match spec.routing {
        Routing::SoftmaxTopK { normalise } => {
            let p = softmax(logits);
            let mut chosen = best(&p, spec.per_token);
            if normalise {
                let sum: f32 = chosen.iter().map(|(_, p)| p).sum();
                chosen.iter_mut().for_each(|(_, p)| *p /= sum);
            }
            chosen
        }
        Routing::TopKSoftmax => {
            let chosen = best(logits, spec.per_token);
            let scores: Vec<f32> = chosen.iter().map(|&(_, logit)| logit).collect();
            chosen.iter().zip(softmax(&scores)).map(|(&(expert, _), p)| (expert, p)).collect()
        }
        Routing::Sigmoid { normalise, scale, groups } => {
            let scores: Vec<f32> = logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
            let mut corrected = scores.clone();
            if let Some(correction) = correction {
                corrected.iter_mut().zip(correction).for_each(|(score, by)| *score += by);
            }
            if let Some((groups, kept)) = groups {
                keep_groups(&mut corrected, groups, kept);
            }
            let mut chosen: Vec<(usize, f32)> = best(&corrected, spec.per_token)
                .iter()
                .map(|&(expert, _)| (expert, scores[expert]))
                .collect();
            if let Some(eps) = normalise {
                let sum = chosen.iter().map(|(_, p)| p).sum::<f32>() + eps as f32;
                chosen.iter_mut().for_each(|(_, p)| *p /= sum);
            }
            chosen.iter_mut().for_each(|(_, p)| *p *= scale as f32);
            chosen
        }
    }
}

/// Masks all experts outside the `kept` groups with the largest sum of their two best scores.
fn keep_groups(scores: &mut [f32], groups: usize, kept: usize) {
    let size = scores.len() / groups.max(1);
    let sums: Vec<f32> = scores
        .chunks_exact(size.max(1))
        .map(|group| best(group, 2).iter().map(|(_, score)| score).sum())
        .collect();
    let kept: Vec<usize> = best(&sums, kept).iter().map(|&(group, _)| group).collect();
    for (group, scores) in scores.chunks_exact_mut(size.max(1)).enumerate() {
        if !kept.contains(&group) {
            scores.fill(f32::NEG_INFINITY);
        }
    }
}

/// Top `k` with indices, descending; ties by index.
fn best(values: &[f32], k: usize) -> Vec<(usize, f32)> {
    let mut order: Vec<(usize, f32)> = values.iter().copied().enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(k);
    order
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e: Vec<f32> = logits.iter().map(|x| (x - max).exp()).collect();
    let sum: f32 = e.iter().sum();
    e.iter().map(|x| x / sum).collect()
}
