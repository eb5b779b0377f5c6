//! gpt-oss (transformers, `GptOssForCausalLM`).

use super::base::{Base, EXPERT_INTERMEDIATE, INTERMEDIATE, PER_TOKEN, Unsaid, WINDOW, bias, layer};
use super::{Architecture, Config, Names, rope};
use crate::model::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, MlpSpec, ModelError,
    Routing,
};

pub const GPT_OSS: Architecture = Architecture {
    hf: &["gpt_oss"],
    gguf: Some("gpt-oss"),
    released: "gpt-oss-20b",
    names: Names {
        hf: &[("mlp.gate.", "mlp.router.")],
        gguf: &[("post_attention_layernorm", "post_attention_norm")],
        interleaved_experts: true,
        ..Names::PLAIN
    },
    spec,
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    config.expect_routing(3)?;
    let base = Base::read(config, Unsaid::default())?;
    // Released models do not truncate YaRN's blend.
    let defaults = rope::RopeDefaults { truncate: false, ..base.rope_defaults(150_000.0) };
    let rope = rope::read(config, defaults)?;
    let per_token = config.count(PER_TOKEN)?;
    // Constants of `GptOssExperts`.
    let (mut alpha, mut limit) = (1.702, 7.0);
    let (bias, intermediate) = match config {
        Config::Json(fields) => {
            // Legacy name of the same field.
            fields.expect("experts_per_token", per_token)?;
            alpha = fields.optional_positive("swiglu_alpha")?.unwrap_or(alpha);
            limit = fields.optional_positive("swiglu_limit")?.unwrap_or(limit);
            (bias(config, true)?, config.count(INTERMEDIATE)?)
        }
        Config::Gguf(_) => {
            // Redundant; read so that it is not rejected.
            config.optional_count(INTERMEDIATE)?;
            (AttentionBias::All, config.count(EXPERT_INTERMEDIATE)?)
        }
    };
    let experts = ExpertsSpec {
        experts: config.experts("num_local_experts", "num_experts")?,
        per_token,
        expert: MlpSpec { intermediate, bias: true, activation: Activation::Clamped { alpha, limit } },
        routing: Routing::TopKSoftmax,
        router_bias: true,
        shared: None,
        shared_gate: false,
        own_norms: false,
    };
    let window = config.count(WINDOW)?;
    let slides = config.layers_of("sliding_attention", base.layers)?;
    let slides = slides.unwrap_or_else(|| (0..base.layers).map(|i| i.is_multiple_of(2)).collect());
    let layers = slides.into_iter().map(|slides| {
        let window = slides.then_some(window);
        let attention = AttentionSpec { sinks: true, bias, window, ..base.attention(rope.clone()) };
        layer(attention, FeedForwardSpec::Experts(experts.clone()))
    });
    Ok(base.decoder("gpt_oss", layers.collect()))
}
