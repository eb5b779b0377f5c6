//! Builds layers from a spec: the tensors of each part and their shapes.

use std::ops::Range;

use candle_core::{DType, Tensor};
use half::{bf16, f16};

use super::arch::paired;
use super::layers::{
    Attention, Convolution, DeltaNet, Embedding, Experts, Grouped, Indexer, Inputs, LatentAttention,
    LayerEmbeddings, LayerInput, Mamba2, Mlp, OwnNorms, PerHead, Phase, Projection, Projections, RmsNorm,
    ShortConv,
};
use super::{
    Activation, AttentionBias, AttentionSpec, DeltaNetSpec, ExpertsSpec, FeedForwardSpec, IndexerSpec,
    KeyValues, LatentSpec, LayerNorms, LayerSpec, Loader, Mamba2Spec, MixerSpec, ModelError, NormSpec,
    OutputGate, QkNorm, Routing, ShortConvSpec,
};
use crate::attention::delta::norm_factor;
use crate::attention::{AttentionKernel, Sinks};

#[derive(Debug)]
pub(super) struct Layer {
    pub mixer: Mixer,
    pub feed_forward: FeedForward,
    /// Norms of the inputs of mixer and feed-forward block, if any.
    pub before: [Option<RmsNorm>; 2],
    /// Norms of their outputs, if any.
    pub after: [Option<RmsNorm>; 2],
    /// Adds the layer's part of the per-layer embeddings, if there are any.
    pub input: Option<LayerInput>,
    /// Factor of the layer's output, if any.
    pub scalar: Option<f64>,
    /// Later layers share its keys and values.
    pub shared: bool,
}

#[derive(Debug)]
pub(super) enum Mixer {
    Attention(Attention),
    Latent(Box<LatentAttention>),
    DeltaNet(DeltaNet),
    ShortConv(ShortConv),
    Mamba2(Mamba2),
    None,
}

impl Mixer {
    /// Its output projection.
    pub fn out(&self) -> Option<&Projection> {
        match self {
            Mixer::Attention(attention) => Some(&attention.o),
            Mixer::Latent(latent) => Some(&latent.o),
            Mixer::DeltaNet(delta_net) => Some(&delta_net.out),
            Mixer::ShortConv(conv) => Some(&conv.out),
            Mixer::Mamba2(mamba) => Some(&mamba.out),
            Mixer::None => None,
        }
    }
}

#[derive(Debug)]
pub(super) enum FeedForward {
    Dense(Box<Mlp>),
    Experts(Box<Experts>),
    None,
}

impl FeedForward {
    /// (l, hidden) -> (l, hidden). `stream`: the residual stream that `x` was normed from.
    pub fn forward(&self, x: &Tensor, stream: &Tensor, phase: Phase) -> candle_core::Result<Tensor> {
        match self {
            FeedForward::Dense(mlp) => mlp.forward(x, phase),
            FeedForward::Experts(experts) => experts.forward(x, stream, phase),
            FeedForward::None => x.zeros_like(),
        }
    }
}

pub(super) fn norm(
    loader: &mut Loader,
    name: &str,
    width: usize,
    spec: NormSpec,
) -> Result<RmsNorm, ModelError> {
    Ok(RmsNorm::new(loader.tensor_f32(&format!("{name}.weight"), &[width])?, spec)?)
}

/// The per-layer embeddings, of width `width`.
pub(super) fn layer_embeddings(loader: &mut Loader, width: usize) -> Result<LayerEmbeddings, ModelError> {
    let (vocab, hidden, norms) = (loader.spec().vocab, loader.spec().hidden, loader.spec().norm);
    let all = loader.spec().layers.len() * width;
    let rows = loader.weight("embed_tokens_per_layer.weight", &[vocab, all])?;
    Ok(LayerEmbeddings {
        rows: Embedding::new(rows, false, loader.formats().half_products())?,
        projection: loader.linear("per_layer_model_projection", all, hidden, false)?,
        norm: norm(loader, "per_layer_projection_norm", width, norms)?,
        width,
        scale: rounded_to((width as f64).sqrt(), loader.formats().dtype),
    })
}

fn layer_input(loader: &mut Loader, name: &str, width: usize) -> Result<LayerInput, ModelError> {
    let (hidden, norms) = (loader.spec().hidden, loader.spec().norm);
    Ok(LayerInput {
        gate: loader.linear(&format!("{name}.per_layer_input_gate"), width, hidden, false)?,
        out: loader.linear(&format!("{name}.per_layer_projection"), hidden, width, false)?,
        norm: norm(loader, &format!("{name}.post_per_layer_input_norm"), hidden, norms)?,
        activation: Activation::GeluTanh,
    })
}

/// A scale as the dtype rounds it.
pub(super) fn rounded_to(factor: f64, dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => bf16::from_f32(factor as f32).to_f64(),
        DType::F16 => f16::from_f32(factor as f32).to_f64(),
        _ => f64::from(factor as f32),
    }
}

/// Layer `i`; `kernel` computes its attention on CUDA.
pub(super) fn layer(
    loader: &mut Loader,
    i: usize,
    spec: &LayerSpec,
    kernel: AttentionKernel,
) -> Result<Layer, ModelError> {
    let (hidden, norms) = (loader.spec().hidden, loader.spec().norm);
    let at = |name: &str| format!("layers.{i}.{name}");
    // Where outputs are normalised, `post_attention_layernorm` follows attention.
    const AFTER: (&str, &str) = ("post_attention_layernorm", "post_feedforward_layernorm");
    let (before, after) = match spec.norms {
        LayerNorms::Inputs => (Some(("input_layernorm", AFTER.0)), None),
        LayerNorms::Both => (Some(("input_layernorm", "pre_feedforward_layernorm")), Some(AFTER)),
        LayerNorms::Outputs => (None, Some(AFTER)),
    };
    let mut pair = |names: Option<(&str, &str)>| -> Result<_, ModelError> {
        let mut one =
            |name: Option<&str>| name.map(|name| norm(loader, &at(name), hidden, norms)).transpose();
        let (mixer, feed_forward) = names.unzip();
        let mixer = mixer.filter(|_| spec.mixer != MixerSpec::None);
        let feed_forward = feed_forward.filter(|_| spec.feed_forward != FeedForwardSpec::None);
        Ok([one(mixer)?, one(feed_forward)?])
    };
    let (before, after) = (pair(before)?, pair(after)?);
    let (width, scaled) = (loader.spec().layer_inputs, loader.spec().layer_scalars);
    let scalar = scaled.then(|| loader.tensor_f32(&at("layer_scalar"), &[1])).transpose()?;
    let scalar = scalar.map(|scalar| scalar.get(0)?.to_scalar::<f32>()).transpose()?;
    let later = loader.spec().layers.iter().filter_map(LayerSpec::attention);
    Ok(Layer {
        shared: later.map(|attention| attention.key_values).any(|from| from == KeyValues::Of(i)),
        before,
        after,
        input: width.map(|width| layer_input(loader, &format!("layers.{i}"), width)).transpose()?,
        scalar: scalar.map(f64::from),
        mixer: match &spec.mixer {
            MixerSpec::Attention(a) => match a.latent {
                Some(latent) => Mixer::Latent(Box::new(latent_attention(loader, i, a, latent, kernel)?)),
                None => Mixer::Attention(attention(loader, &at("self_attn"), a, kernel)?),
            },
            MixerSpec::DeltaNet(d) => Mixer::DeltaNet(delta_net(loader, &at("linear_attn"), d)?),
            MixerSpec::ShortConv(c) => Mixer::ShortConv(short_conv(loader, &at("conv"), c)?),
            MixerSpec::Mamba2(m) => Mixer::Mamba2(mamba2(loader, &at("mamba"), m)?),
            MixerSpec::None => Mixer::None,
        },
        feed_forward: match &spec.feed_forward {
            FeedForwardSpec::Dense(mlp) => {
                FeedForward::Dense(Box::new(loader.mlp(&at("mlp"), hidden, mlp)?))
            }
            FeedForwardSpec::Experts(e) => FeedForward::Experts(Box::new(experts(loader, &at("mlp"), e)?)),
            FeedForwardSpec::None => FeedForward::None,
        },
    })
}

fn attention(
    loader: &mut Loader,
    name: &str,
    a: &AttentionSpec,
    kernel: AttentionKernel,
) -> Result<Attention, ModelError> {
    let (hidden, norms) = (loader.spec().hidden, loader.spec().norm);
    let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    let (qkv_bias, o_bias) = (a.bias != AttentionBias::None, a.bias == AttentionBias::All);
    let mut norm_of = |part: &str, width| norm(loader, &format!("{name}.{part}"), width, norms);
    let shares = matches!(a.key_values, KeyValues::Of(_));
    let q_norm = match a.qk_norm {
        QkNorm::None => None,
        QkNorm::PerHead => Some(norm_of("q_norm", a.head_dim)?),
        QkNorm::Whole => Some(norm_of("q_norm", q)?),
    };
    let k_norm = match a.qk_norm {
        QkNorm::Whole if !shares => Some(norm_of("k_norm", kv)?),
        QkNorm::PerHead if !shares => Some(norm_of("k_norm", a.head_dim)?),
        _ => None,
    };
    let (q_norm, qk_norm) = match (q_norm, k_norm) {
        (Some(q), Some(k)) => (None, Some((q, k))),
        (q, _) => (q, None),
    };
    let logits = a.sinks.then(|| loader.tensor_f32(&format!("{name}.sinks"), &[a.heads])).transpose()?;
    let sinks = logits.map(|logits| Sinks::new(logits.to_vec1()?, logits.device())).transpose()?;
    let queries = if a.gate == OutputGate::Elementwise { 2 * q } else { q };
    let mut map = |part: &str, width| loader.linear(&format!("{name}.{part}"), width, hidden, qkv_bias);
    let inputs = match a.key_values {
        KeyValues::Projected => {
            let maps = [map("q_proj", queries)?, map("k_proj", kv)?, map("v_proj", kv)?];
            Inputs::Qkv(Projections::new(maps)?)
        }
        KeyValues::Tied => Inputs::Qk(Projections::new([map("q_proj", queries)?, map("k_proj", kv)?])?),
        KeyValues::Of(_) => Inputs::Q(map("q_proj", queries)?, q_norm),
    };
    let gate = (a.gate == OutputGate::PerHead)
        .then(|| loader.linear(&format!("{name}.g_proj"), a.heads, hidden, false))
        .transpose()?;
    let o = loader.linear(&format!("{name}.o_proj"), hidden, q, o_bias)?;
    let ones = || Tensor::ones(a.head_dim, DType::F32, loader.device());
    let unweighted = |ones| RmsNorm::new(ones, NormSpec { plus_one: false, ..norms });
    let value_norm = (a.value_norm && !shares).then(|| unweighted(ones()?)).transpose()?;
    let half = loader.formats().half_products();
    Ok(Attention { kernel, half, inputs, gate, o, qk_norm, value_norm, sinks, spec: a.clone() })
}

fn latent_attention(
    loader: &mut Loader,
    i: usize,
    a: &AttentionSpec,
    latent: LatentSpec,
    kernel: AttentionKernel,
) -> Result<LatentAttention, ModelError> {
    // In every architecture, whatever the epsilon of the others.
    const NORM: NormSpec = NormSpec { eps: 1e-6, plus_one: false };
    let (name, hidden) = (format!("layers.{i}.self_attn"), loader.spec().hidden);
    let (LatentSpec { rank, plain, value, query_rank, .. }, rotated) = (latent, a.rope.dims);
    let wide = a.heads * (plain + rotated);
    let (first, outputs) = query_rank.map_or(("q_proj", wide), |between| ("q_a_proj", between));
    let inputs = [
        loader.linear(&format!("{name}.{first}"), outputs, hidden, false)?,
        loader.linear(&format!("{name}.kv_a_proj_with_mqa"), rank + rotated, hidden, false)?,
    ];
    let second = |between| -> Result<_, ModelError> {
        let norm = norm(loader, &format!("{name}.q_a_layernorm"), between, NORM)?;
        Ok((norm, loader.linear(&format!("{name}.q_b_proj"), wide, between, false)?))
    };
    let queries = query_rank.map(second).transpose()?;
    let indexer = match (latent.indexer(), query_rank) {
        (Some(spec), Some(between)) => {
            let layers = loader.spec().sharing_choice(i);
            Some(indexer(loader, &format!("{name}.indexer"), (spec, layers), [hidden, between, rotated])?)
        }
        _ => None,
    };
    // (heads, plain, rank) and (heads, value, rank).
    let (keys, values) = if loader.has(&format!("{name}.k_b_proj.weight")) {
        let keys = loader.tensor_f32(&format!("{name}.k_b_proj.weight"), &[a.heads, rank, plain])?;
        let values = loader.tensor_f32(&format!("{name}.v_b_proj.weight"), &[a.heads, value, rank])?;
        (keys.transpose(1, 2)?, values)
    } else {
        let both = loader.linear(&format!("{name}.kv_b_proj"), a.heads * (plain + value), rank, false)?;
        let both = both.weight()?.t()?.contiguous()?.reshape((a.heads, plain + value, rank))?;
        (both.narrow(1, 0, plain)?, both.narrow(1, plain, value)?)
    };
    // Each head's part, (out, in).
    let per_head = |weights: &Tensor| {
        let maps = (0..a.heads).map(|head| loader.dense(&weights.get(head)?.contiguous()?, None));
        PerHead::new(maps.collect::<candle_core::Result<_>>()?)
    };
    Ok(LatentAttention {
        kernel,
        half: loader.formats().half_products(),
        keys: per_head(&keys.transpose(1, 2)?)?,
        values: per_head(&values)?,
        inputs: Projections::new(inputs)?,
        queries,
        indexer,
        norm: norm(loader, &format!("{name}.kv_a_layernorm"), rank, NORM)?,
        o: loader.linear(&format!("{name}.o_proj"), hidden, a.heads * value, false)?,
        latent,
        spec: a.clone(),
    })
}

/// `layers`: those that choose by it; `hidden`, `between`: widths of its inputs; `rotated`: dimensions that turn.
fn indexer(
    loader: &mut Loader,
    name: &str,
    (spec, layers): (IndexerSpec, Range<usize>),
    [hidden, between, rotated]: [usize; 3],
) -> Result<Indexer, ModelError> {
    let IndexerSpec { heads, width, interleaved, .. } = spec;
    let mut norm = |part: &str| -> Result<_, ModelError> {
        let norm = loader.tensor_f32(&format!("{name}.k_norm.{part}"), &[width])?;
        // As the rows of the projection before it.
        let order = (0..width).map(|i| if interleaved { paired(i, rotated) } else { i } as u32);
        Ok(norm.index_select(&Tensor::from_iter(order, norm.device())?, 0)?)
    };
    Ok(Indexer {
        spec,
        layers,
        norm: [norm("weight")?, norm("bias")?],
        queries: loader.linear(&format!("{name}.wq_b"), heads * width, between, false)?,
        keys: loader.linear(&format!("{name}.wk"), width, hidden, false)?,
        weights: loader.linear(&format!("{name}.weights_proj"), heads, hidden, false)?,
    })
}

fn delta_net(loader: &mut Loader, name: &str, d: &DeltaNetSpec) -> Result<DeltaNet, ModelError> {
    let (hidden, eps) = (loader.spec().hidden, loader.spec().norm.eps);
    let rate = loader.decay(&format!("{name}.A_log"), d.value_heads)?.neg()?;
    let inputs = [
        loader.linear(&format!("{name}.in_proj_qkv"), d.channels(), hidden, false)?,
        loader.linear(&format!("{name}.in_proj_z"), d.values(), hidden, false)?,
        loader.linear(&format!("{name}.in_proj_b"), d.value_heads, hidden, false)?,
        loader.linear(&format!("{name}.in_proj_a"), d.value_heads, hidden, false)?,
    ];
    Ok(DeltaNet {
        spec: *d,
        inputs: Projections::new(inputs)?,
        conv: convolution(loader, &format!("{name}.conv1d"), [d.channels(), d.conv], (false, true))?,
        norms: [
            norm_factor(d.key_dim, (d.key_dim as f64).powf(-0.5), rate.device())?,
            norm_factor(d.key_dim, 1.0, rate.device())?,
        ],
        rate,
        dt_bias: loader.tensor_f32(&format!("{name}.dt_bias"), &[d.value_heads])?,
        // Not offset by 1, unlike this model's other norms.
        norm: loader.tensor_f32(&format!("{name}.norm.weight"), &[d.value_dim])?,
        eps,
        out: loader.linear(&format!("{name}.out_proj"), hidden, d.values(), false)?,
    })
}

fn short_conv(loader: &mut Loader, name: &str, c: &ShortConvSpec) -> Result<ShortConv, ModelError> {
    let hidden = loader.spec().hidden;
    Ok(ShortConv {
        spec: *c,
        inputs: loader.linear(&format!("{name}.in_proj"), 3 * c.channels, hidden, c.bias)?,
        conv: convolution(loader, &format!("{name}.conv"), [c.channels, c.taps], (c.bias, false))?,
        out: loader.linear(&format!("{name}.out_proj"), hidden, c.channels, c.bias)?,
    })
}

fn mamba2(loader: &mut Loader, name: &str, m: &Mamba2Spec) -> Result<Mamba2, ModelError> {
    let (hidden, eps, heads) = (loader.spec().hidden, loader.spec().norm.eps, m.heads);
    let rate = loader.decay(&format!("{name}.A_log"), heads.value_heads)?.neg()?;
    let (channels, values) = (heads.channels(), heads.values());
    let inputs = values + channels + heads.value_heads;
    let ones = |width: usize| Tensor::ones(width, rate.dtype(), rate.device());
    Ok(Mamba2 {
        spec: *m,
        inputs: loader.linear(&format!("{name}.in_proj"), inputs, hidden, m.bias)?,
        conv: convolution(loader, &format!("{name}.conv1d"), [channels, heads.conv], (m.conv_bias, true))?,
        ones: ones(heads.value_heads)?,
        group: ones(values / heads.key_heads)?,
        dt_bias: loader.tensor_f32(&format!("{name}.dt_bias"), &[heads.value_heads])?,
        skip: loader.vector_f32(&format!("{name}.D"), heads.value_heads)?,
        norm: loader.vector_f32(&format!("{name}.norm.weight"), values)?,
        rate,
        eps,
        out: loader.linear(&format!("{name}.out_proj"), hidden, values, m.bias)?,
    })
}

fn convolution(
    loader: &mut Loader,
    name: &str,
    [channels, taps]: [usize; 2],
    (bias, silu): (bool, bool),
) -> Result<Convolution, ModelError> {
    let bias = bias.then(|| loader.tensor_f32(&format!("{name}.bias"), &[channels])).transpose()?;
    let taps = loader.taps(&format!("{name}.weight"), channels, taps)?.t()?.contiguous()?;
    Ok(Convolution { taps, bias, silu })
}

fn experts(loader: &mut Loader, name: &str, e: &ExpertsSpec) -> Result<Experts, ModelError> {
    let hidden = loader.spec().hidden;
    let router_bias = e.router_bias.then(|| loader.tensor_f32(&format!("{name}.gate.bias"), &[e.experts]));
    let router_bias = router_bias.transpose()?;
    let correction = match e.routing {
        Routing::Sigmoid { .. } => {
            let name = format!("{name}.gate.e_score_correction_bias");
            Some(loader.tensor_f32(&name, &[e.experts])?.to_vec1()?)
        }
        _ => None,
    };
    let shared = e.shared.as_ref().map(|mlp| loader.mlp(&format!("{name}.shared_experts"), hidden, mlp));
    let shared = shared.transpose()?;
    let gate = e.shared_gate.then(|| loader.row_f32(&format!("{name}.shared_expert_gate.weight"), hidden));
    let experts = loader.experts(&format!("{name}.experts"), e.experts, hidden, &e.expert)?;
    let own = e.own_norms.then(|| own_norms(loader, name, e.experts)).transpose()?;
    Ok(Experts {
        own,
        router: loader.tensor_f32(&format!("{name}.gate.weight"), &[e.experts, hidden])?,
        router_bias,
        correction,
        grouped: Grouped::new(&experts)?,
        experts,
        shared,
        shared_gate: gate.transpose()?,
        spec: e.clone(),
    })
}

/// Their norms are beside the block `name`.
fn own_norms(loader: &mut Loader, name: &str, experts: usize) -> Result<OwnNorms, ModelError> {
    let (hidden, norms) = (loader.spec().hidden, loader.spec().norm);
    let layer = name.trim_end_matches(".mlp");
    // The router's scale has its place in the norm before it.
    let scale = loader.tensor_f32(&format!("{name}.gate.scale"), &[hidden])?;
    let router = (scale * (hidden as f64).powf(-0.5))?;
    let mut norm_of = |part: &str| norm(loader, &format!("{layer}.{part}"), hidden, norms);
    Ok(OwnNorms {
        router: RmsNorm::new(router, NormSpec { plus_one: false, ..norms })?,
        experts: norm_of("pre_feedforward_layernorm_2")?,
        after_shared: norm_of("post_feedforward_layernorm_1")?,
        after_experts: norm_of("post_feedforward_layernorm_2")?,
        scales: loader.tensor_f32(&format!("{name}.experts.scale"), &[experts])?.to_vec1()?,
    })
}
