//! A router and its experts.

use candle_core::{DType, Device, Result, Tensor};

use super::linear::dense_product;
use super::{Mlp, Phase};
use crate::model::{ExpertsSpec, Routing};
use crate::stats;

/// A feed-forward part of which every token uses a few experts (transformers, `Qwen3MoeSparseMoeBlock`, `GptOssMLP`,
/// `Glm4MoeMoE`, `MiniMaxM2SparseMoeBlock`).
#[derive(Debug)]
pub(in crate::model) struct Experts {
    pub spec: ExpertsSpec,
    /// (experts, hidden), f32: routing is decided in f32 whatever the model's dtype.
    pub router: Tensor,
    /// (experts), f32
    pub router_bias: Option<Tensor>,
    /// What is added to the scores that experts are chosen by, one an expert.
    pub correction: Option<Vec<f32>>,
    pub experts: Vec<Mlp>,
    pub shared: Option<Mlp>,
}

impl Experts {
    /// (l, hidden) -> (l, hidden)
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        // 1. Route: logits f32 (l, experts), and for every expert the tokens that it gets, with their weights.
        let routing = stats::linear();
        let mut logits = dense_product(&x.to_dtype(DType::F32)?, &self.router.t()?, phase)?;
        if let Some(bias) = &self.router_bias {
            logits = logits.broadcast_add(bias)?;
        }
        drop(routing);
        let logits = logits.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
        let mut assigned: Vec<(Vec<u32>, Vec<f32>)> = vec![Default::default(); self.experts.len()];
        for (token, logits) in logits.iter().enumerate() {
            for (expert, weight) in route(logits, self.correction.as_deref(), &self.spec) {
                assigned[expert].0.push(token as u32);
                assigned[expert].1.push(weight);
            }
        }

        // 2. Every expert reads its tokens, and their weighed outputs are added up in the experts' order.
        let mut out = x.zeros_like()?;
        for (expert, (tokens, weights)) in self.experts.iter().zip(assigned) {
            if tokens.is_empty() {
                continue;
            }
            let n = tokens.len();
            let tokens = Tensor::from_vec(tokens, n, x.device())?;
            let weights = Tensor::from_vec(weights, (n, 1), x.device())?;
            let y = expert.forward(&x.index_select(&tokens, 0)?, phase)?;
            let y = y.to_dtype(DType::F32)?.broadcast_mul(&weights)?.to_dtype(x.dtype())?;
            out = out.index_add(&tokens, &y, 0)?;
        }

        // 3. The shared expert reads all of them.
        match &self.shared {
            Some(shared) => out + shared.forward(x, phase)?,
            None => Ok(out),
        }
    }
}

/// The experts of one token and their weights.
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

/// Leaves out all experts but those of the `kept` groups whose two best scores have the largest sums.
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

/// The `k` largest with their indices, largest first; of equal ones the first.
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
