//! Mixture of experts: router and experts.
//!
//! The token count per expert determines the products, so on a device each layer syncs once for the router's logits: (tokens, experts)
//! f32, 512 bytes per token for 128 experts. Alternatives are a kernel for all experts' products (Candle has one for CUDA in bf16, separate
//! from the weights' other uses) or, for few tokens, gathering the chosen experts' weights, which for gpt-oss-20b moves 200 MB per layer
//! and token: 0.2 ms at 2 TB/s, while the sync takes some 20 us.

use candle_core::{DType, Result, Tensor};

use super::projection::dense_product;
use super::{Mlp, Phase, Projection, RmsNorm};
use crate::fused::products::Own;
use crate::model::{Activation, ExpertsSpec, Routing};
use crate::timing;
use crate::transfer;

/// Sparse mixture of experts (transformers, `Qwen3MoeSparseMoeBlock`, `GptOssMLP`, `Glm4MoeMoE`, `MiniMaxM2SparseMoeBlock`,
/// `NemotronHMoE`, `GraniteMoeHybridMoE`).
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
    pub grouped: Option<Grouped>,
    pub shared: Option<Mlp>,
    /// (hidden, 1), f32
    pub shared_gate: Option<Tensor>,
    pub own: Option<OwnNorms>,
}

/// Norms and scales of [`ExpertsSpec::own_norms`].
#[derive(Debug)]
pub(in crate::model) struct OwnNorms {
    /// Of the residual stream, for the router and for the experts.
    pub router: RmsNorm,
    pub experts: RmsNorm,
    /// Of the outputs.
    pub after_shared: RmsNorm,
    pub after_experts: RmsNorm,
    /// Factors of the experts' weights.
    pub scales: Vec<f32>,
}

impl Experts {
    /// `x`: the block's input, (l, hidden), which is the residual stream after the layer's norm. Returns (l, hidden).
    pub fn forward(&self, x: &Tensor, stream: &Tensor, phase: Phase) -> Result<Tensor> {
        let Some(own) = &self.own else {
            let out = self.routed(x, x, phase)?;
            return self.with_shared(out, x, phase);
        };
        let out = self.routed(&own.router.forward(stream)?, &own.experts.forward(stream)?, phase)?;
        let out = own.after_experts.forward(&out)?;
        match &self.shared {
            Some(shared) => own.after_shared.forward(&shared.forward(x, phase)?)? + out,
            None => Ok(out),
        }
    }

    /// The experts' part for `x`, by what the router makes of `routed`.
    fn routed(&self, routed: &Tensor, x: &Tensor, phase: Phase) -> Result<Tensor> {
        // 1. Route: f32 logits (l, experts), then the tokens of each expert.
        let routing = timing::linear();
        let mut logits = dense_product(&routed.to_dtype(DType::F32)?, &self.router.t()?, phase)?;
        if let Some(bias) = &self.router_bias {
            logits = logits.broadcast_add(bias)?;
        }
        drop(routing);
        let Assigned { counts, tokens, places, weights } = self.assign(&transfer::fetch(&logits)?);
        let (l, hidden) = x.dims2()?;
        let picks = tokens.len();

        // 2. Experts process their tokens, gathered contiguously; a single token is passed to all of its experts as is.
        let mut given = None;
        let mut y = match &self.grouped {
            Some(grouped) => {
                // The expert of each row, beside the rows' tokens in one copy to the device.
                let mut rows = if l > 1 { tokens } else { Vec::new() };
                let gathered = rows.len();
                if grouped.biases.is_some() {
                    rows.extend(
                        (0u32..).zip(&counts).flat_map(|(expert, n)| std::iter::repeat_n(expert, *n)),
                    );
                }
                let owners = if rows.is_empty() {
                    None
                } else {
                    let n = rows.len();
                    let rows = transfer::upload(rows, n, x.device())?;
                    if gathered > 0 {
                        given = Some(x.index_select(&rows.narrow(0, 0, gathered)?, 0)?);
                    }
                    Some(rows.narrow(0, gathered, n - gathered)?)
                };
                grouped.forward(given.as_ref().unwrap_or(x), &counts, owners.as_ref())?
            }
            None => {
                if l > 1 {
                    given = Some(x.index_select(&transfer::upload(tokens, picks, x.device())?, 0)?);
                }
                let mut parts = Vec::new();
                let mut start = 0;
                for (expert, n) in self.experts.iter().zip(counts).filter(|(_, n)| *n > 0) {
                    parts.push(match &given {
                        None => expert.forward(x, phase)?,
                        Some(given) => expert.forward(&given.narrow(0, start, n)?, phase)?,
                    });
                    start += n;
                }
                Tensor::cat(&parts, 0)?
            }
        };

        // 3. Weighted sum of each token's outputs in expert order, in f32. Large tensors are freed early.
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
        out.to_dtype(x.dtype())
    }

    /// Adds the shared expert, which processes all tokens.
    fn with_shared(&self, out: Tensor, x: &Tensor, phase: Phase) -> Result<Tensor> {
        match (&self.shared, &self.shared_gate) {
            (None, _) => Ok(out),
            (Some(shared), None) => out + shared.forward(x, phase)?,
            (Some(shared), Some(gate)) => {
                let gate = candle_nn::ops::sigmoid(&dense_product(&x.to_dtype(DType::F32)?, gate, phase)?)?;
                out + shared.forward(x, phase)?.broadcast_mul(&gate.to_dtype(x.dtype())?)?
            }
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
                if let Some(own) = &self.own {
                    chosen.iter_mut().for_each(|(expert, weight)| *weight *= own.scales[*expert]);
                }
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

/// All experts' weights on devices other than the CPU: their products write into one tensor, so that biases and activations of all
/// experts are one kernel each.
#[derive(Debug)]
pub(in crate::model) struct Grouped {
    /// Per expert: gate and up, (hidden, 2 * intermediate), and down, (intermediate, hidden).
    weights: Vec<[Tensor; 2]>,
    /// (experts, 2 * intermediate) and (experts, hidden).
    biases: Option<[Tensor; 2]>,
    activation: Activation,
}

impl Grouped {
    /// `None` where some weights are not dense or not of a device.
    pub fn new(experts: &[Mlp]) -> Result<Option<Self>> {
        let (mut weights, mut biases) = (Vec::new(), [Vec::new(), Vec::new()]);
        for expert in experts {
            let (Some(gate_up), Some(down)) =
                (expert.gate_up().and_then(Projection::dense_parts), expert.down.dense_parts())
            else {
                return Ok(None);
            };
            weights.push([gate_up.0.clone(), down.0.clone()]);
            for (biases, bias) in biases.iter_mut().zip([gate_up.1, down.1]) {
                biases.extend(bias);
            }
        }
        let biases = match biases.each_ref().map(Vec::len) {
            [0, 0] => None,
            [a, b] if a == experts.len() && b == a => {
                Some([Tensor::stack(&biases[0], 0)?, Tensor::stack(&biases[1], 0)?])
            }
            _ => return Ok(None),
        };
        let activation = experts.first().map(|expert| expert.activation);
        Ok(activation.map(|activation| Grouped { weights, biases, activation }))
    }

    /// Rows of `x` by expert, `counts` each, or one row for all: (rows, hidden). `owners`: each row's expert, u32, if there are biases.
    fn forward(&self, x: &Tensor, counts: &[usize], owners: Option<&Tensor>) -> Result<Tensor> {
        // Decode repeats the same shapes.
        let _layouts = if x.dim(0)? == 1 { transfer::keep_layouts(x.device()) } else { None };
        let inner = self.product(0, x, counts, owners)?;
        let half = inner.dim(1)? / 2;
        let gated = self.activation.gated(inner.narrow(1, 0, half)?, &inner.narrow(1, half, half)?)?;
        drop(inner);
        self.product(1, &gated, counts, owners)
    }

    /// Each expert's rows by its `which`-th weight.
    fn product(&self, which: usize, x: &Tensor, counts: &[usize], owners: Option<&Tensor>) -> Result<Tensor> {
        let _span = timing::linear();
        let rows: usize = counts.iter().sum();
        let width = self.weights[0][which].dim(1)?;
        let mut sum = Own::made(match (&self.biases, owners) {
            (Some(biases), Some(owners)) => biases[which].index_select(owners, 0)?,
            _ => Tensor::zeros((rows, width), x.dtype(), x.device())?,
        });
        let mut first = 0;
        for (weights, &n) in self.weights.iter().zip(counts).filter(|(_, n)| **n > 0) {
            let own = if x.dim(0)? == rows { x.narrow(0, first, n)? } else { x.clone() };
            sum.add_rows(first, &own, &weights[which])?;
            first += n;
        }
        Ok(sum.into_tensor())
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
                keep_groups(&mut corrected, groups, kept, 2);
            }
            weighted(&corrected, &scores, spec.per_token, normalise, scale)
        }
        Routing::SoftmaxGroups { normalise, scale, groups, best } => {
            let scores = softmax(logits);
            let mut open = scores.clone();
            if let Some((groups, kept)) = groups {
                keep_groups(&mut open, groups, kept, best);
            }
            weighted(&open, &scores, spec.per_token, normalise, scale)
        }
    }
}

/// The top `k` by `open` with their weights of `scores`.
fn weighted(open: &[f32], scores: &[f32], k: usize, normalise: Option<f64>, scale: f64) -> Vec<(usize, f32)> {
    let mut chosen: Vec<(usize, f32)> =
        best(open, k).iter().map(|&(expert, _)| (expert, scores[expert])).collect();
    if let Some(eps) = normalise {
        let sum = chosen.iter().map(|(_, p)| p).sum::<f32>() + eps as f32;
        chosen.iter_mut().for_each(|(_, p)| *p /= sum);
    }
    chosen.iter_mut().for_each(|(_, p)| *p *= scale as f32);
    chosen
}

/// Masks all experts outside the `kept` groups with the largest sum of their `of` best scores.
fn keep_groups(scores: &mut [f32], groups: usize, kept: usize, of: usize) {
    let size = scores.len() / groups.max(1);
    let sums: Vec<f32> = scores
        .chunks_exact(size.max(1))
        .map(|group| best(group, of).iter().map(|(_, score)| score).sum())
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
