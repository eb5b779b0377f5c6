//! gpt-oss (transformers, `GptOssForCausalLM`).

use serde_json::json;

use super::base::{Base, layer, layer_types, window};
use super::{Architecture, Fields, Meta, Names, rope};
use crate::model::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, MlpSpec, ModelError,
    RopeSpec, Routing,
};

pub const GPT_OSS: Architecture = Architecture {
    hf: &["gpt_oss"],
    gguf: Some("gpt-oss"),
    names: Names {
        hf: &[("mlp.gate.", "mlp.router.")],
        gguf: &[("post_attention_layernorm", "post_attention_norm")],
        interleaved_experts: true,
        ..Names::PLAIN
    },
    from_hf,
    from_gguf,
};

fn from_hf(config: &Fields) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::from_hf(config, false)?;
    let rope = rope::from_hf(config, base.rope_defaults(150_000.0))?;
    let bias = match config.flag("attention_bias", true)? {
        true => AttentionBias::All,
        false => AttentionBias::None,
    };
    let experts = config.optional_count("num_local_experts")?;
    let experts = match experts {
        Some(experts) => experts,
        None => config.count("num_experts")?,
    };
    // Legacy name of the same field.
    let per_token = config.count("num_experts_per_tok")?;
    config.expect("experts_per_token", &json!(per_token))?;
    let experts = self::experts(
        experts,
        per_token,
        config.count("intermediate_size")?,
        config.optional_positive("swiglu_alpha")?,
        config.optional_positive("swiglu_limit")?,
    );
    let types = layer_types(config, base.layers, &["full_attention", "sliding_attention"])?;
    let window = window(config)?;
    let slides = |i: usize| match &types {
        Some(types) => types[i] == "sliding_attention",
        None => i.is_multiple_of(2),
    };
    let layers = (0..base.layers).map(|i| {
        let attention = attention(&base, rope.clone(), bias, slides(i).then_some(window));
        layer(attention, FeedForwardSpec::Experts(experts.clone()))
    });
    Ok(base.decoder("gpt_oss", layers.collect()))
}

fn from_gguf(meta: &Meta) -> Result<DecoderSpec, ModelError> {
    let base = Base::from_gguf(meta)?;
    // Released models do not truncate YaRN's blend; GGUF does not store it.
    let rope = rope::from_gguf(meta, base.rope_defaults(150_000.0), false)?;
    let window = meta.count("attention.sliding_window")?;
    super::base::gating(meta, 3)?;
    // Redundant; read so that it is not rejected.
    meta.optional_count("feed_forward_length")?;
    let experts = experts(
        meta.count("expert_count")?,
        meta.count("expert_used_count")?,
        meta.count("expert_feed_forward_length")?,
        None,
        None,
    );
    let layers = (0..base.layers).map(|i| {
        let window = i.is_multiple_of(2).then_some(window);
        let attention = attention(&base, rope.clone(), AttentionBias::All, window);
        layer(attention, FeedForwardSpec::Experts(experts.clone()))
    });
    Ok(base.decoder("gpt_oss", layers.collect()))
}

fn attention(base: &Base, rope: RopeSpec, bias: AttentionBias, window: Option<usize>) -> AttentionSpec {
    AttentionSpec { sinks: true, bias, window, ..base.attention(rope) }
}

/// `GptOssExperts`; constants of the released models are the defaults.
fn experts(
    experts: usize,
    per_token: usize,
    intermediate: usize,
    alpha: Option<f64>,
    limit: Option<f64>,
) -> ExpertsSpec {
    let activation = Activation::Clamped { alpha: alpha.unwrap_or(1.702), limit: limit.unwrap_or(7.0) };
    ExpertsSpec {
        experts,
        per_token,
        expert: MlpSpec { intermediate, bias: true, activation },
        routing: Routing::TopKSoftmax,
        router_bias: true,
        shared: None,
    }
}
