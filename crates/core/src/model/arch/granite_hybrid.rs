//! Granite 4.0 and 4.0-H (transformers, `GraniteMoeHybridForCausalLM`): Mamba-2 and attention, with Granite's scales, experts with a shared
//! one, or the shared one alone.

use super::architecture::Rows;
use super::base::{Base, INTERMEDIATE, PER_TOKEN, Unsaid, bias, silu};
use super::mamba::{self, Kind};
use super::{Architecture, Config, Names, llama, rope};
use crate::model::{
    AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, LayerNorms, LayerSpec, Mamba2Spec, MixerSpec,
    ModelError, RopeSpec, Routing,
};

pub const GRANITE_HYBRID: Architecture = Architecture {
    hf: &["granitemoehybrid"],
    gguf: Some("granitehybrid"),
    released: "granite-4.0-h-tiny",
    names: NAMES,
    spec,
};

const NAMES: Names = Names {
    hf: &[
        ("mlp.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
        ("mlp.experts.down_proj", "block_sparse_moe.output_linear.weight"),
        ("mlp.gate.", "block_sparse_moe.router.layer."),
        ("mlp.shared_experts.down_proj", "shared_mlp.output_linear"),
        ("mlp.down_proj", "shared_mlp.output_linear"),
    ],
    hf_parts: parts,
    gguf_rows: llama::rows,
    ..Names::PLAIN
};

const KEYS: mamba::Keys = mamba::Keys {
    heads: "mamba_n_heads",
    head_dim: "mamba_d_head",
    groups: "mamba_n_groups",
    state: "mamba_d_state",
    taps: "mamba_d_conv",
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    config.expect_text("normalization_function", &["rmsnorm"])?;
    let base = Base::read(config, Unsaid::default())?;
    let scale = |key| config.optional_positive(key);
    let attention = AttentionSpec {
        scale: scale(("attention_multiplier", "attention.scale"))?.unwrap_or(1.0) as f32,
        bias: bias(config, false)?,
        ..base.attention(rotation(config, &base)?)
    };
    let kinds = mamba::kinds(config, base.layers)?;
    if let Config::Json(fields) = config {
        // The scan's chunk size changes no number, and without Mamba-2 layers its sizes are unused.
        let keys = [KEYS.heads, KEYS.head_dim, KEYS.groups, KEYS.state, KEYS.taps];
        let others =
            ["mamba_chunk_size", "mamba_conv_bias", "mamba_expand", "mamba_proj_bias", "time_step_limit"];
        for field in keys.into_iter().chain(others) {
            fields.get(field);
        }
    }
    let mamba = match kinds.contains(&Kind::Mamba) {
        true => Some(mamba2(config, &base)?),
        false => None,
    };
    let feed_forward = feed_forward(config)?;
    let layer = |kind: Kind| {
        let mixer = match (kind, mamba) {
            (Kind::Mamba, Some(mamba)) => MixerSpec::Mamba2(mamba),
            _ => MixerSpec::Attention(attention.clone()),
        };
        LayerSpec { mixer, feed_forward: feed_forward.clone(), norms: LayerNorms::Inputs }
    };
    Ok(DecoderSpec {
        embedding_scale: scale(("embedding_multiplier", "embedding_scale"))?,
        residual_scale: scale(("residual_multiplier", "residual_scale"))?,
        logit_divisor: scale(("logits_scaling", "logit_scale"))?,
        ..base.decoder(GRANITE_HYBRID.hf[0], kinds.into_iter().map(layer).collect())
    })
}

/// Attention rotates only where the config says so; files of llama.cpp have no such models under this name.
fn rotation(config: &Config, base: &Base) -> Result<RopeSpec, ModelError> {
    let rope = rope::read(config, base.rope_defaults(10_000.0))?;
    let rotates = match config {
        Config::Json(fields) => fields.optional_text("position_embedding_type")? == Some("rope"),
        Config::Gguf(_) => false,
    };
    Ok(if rotates { rope } else { RopeSpec::NONE })
}

fn mamba2(config: &Config, base: &Base) -> Result<Mamba2Spec, ModelError> {
    let heads = mamba::heads(config, &KEYS)?;
    let Config::Json(fields) = config else {
        return Ok(Mamba2Spec { heads, conv_bias: true, bias: false, least_step: 0.0 });
    };
    let expand = fields.optional_count("mamba_expand")?.unwrap_or(2);
    if expand * base.hidden != heads.values() {
        let problem = format!("is {expand}, but {} heads are {} wide", heads.value_heads, heads.value_dim);
        return Err(fields.refuse("mamba_expand", problem));
    }
    Ok(Mamba2Spec {
        heads,
        conv_bias: fields.flag("mamba_conv_bias", true)?,
        bias: fields.flag("mamba_proj_bias", false)?,
        least_step: mamba::least_step(fields)?,
    })
}

fn feed_forward(config: &Config) -> Result<FeedForwardSpec, ModelError> {
    const SHARED: (&str, &str) = ("shared_intermediate_size", "expert_shared_feed_forward_length");
    let experts = match config {
        Config::Json(fields) => fields.optional_number("num_local_experts")?.filter(|n| *n > 0),
        Config::Gguf(meta) => {
            meta.optional_count(PER_TOKEN.1)?;
            meta.optional_count("expert_count")?
        }
    };
    let width = config.optional_count(INTERMEDIATE)?;
    let shared = silu(config.count(SHARED)?);
    let (Some(experts), Some(width)) = (experts, width) else {
        if let Config::Json(fields) = config {
            fields.get(PER_TOKEN.0); // says nothing, and may be 0
        }
        return Ok(FeedForwardSpec::Dense(shared));
    };
    Ok(FeedForwardSpec::Experts(ExpertsSpec {
        experts,
        per_token: config.count(PER_TOKEN)?,
        expert: silu(width),
        routing: Routing::TopKSoftmax,
        router_bias: false,
        shared: Some(shared),
        shared_gate: false,
        own_norms: false,
    }))
}

/// Gate and up of the shared block are one tensor.
fn parts(part: &str, layer: &LayerSpec) -> Option<(&'static str, usize, Rows)> {
    let (shared, part) = match &layer.feed_forward {
        FeedForwardSpec::Dense(mlp) => (mlp, part.strip_prefix("mlp.")?),
        FeedForwardSpec::Experts(e) => (e.shared.as_ref()?, part.strip_prefix("mlp.shared_experts.")?),
        FeedForwardSpec::None => return None,
    };
    let width = shared.intermediate;
    let rows = match part {
        "gate_proj" => 0..width,
        "up_proj" => width..2 * width,
        _ => return None,
    };
    Some(("shared_mlp.input_linear", 2 * width, Box::new(rows)))
}
