//! Qwen2 and Qwen2.5 (transformers, `Qwen2ForCausalLM`).

use super::base::{self, Base, layer};
use super::{Architecture, Fields, Meta, Names, rope};
use crate::model::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, FeedForwardSpec, MlpSpec, ModelError,
};

pub const QWEN2: Architecture =
    Architecture { hf: &["qwen2"], gguf: Some("qwen2"), names: Names::PLAIN, from_hf, from_gguf };

fn from_hf(config: &Fields) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::from_hf(config, false)?;
    let rope = rope::from_hf(config, base.rope_defaults(10_000.0))?;
    let attention = AttentionSpec { bias: AttentionBias::Qkv, ..base.attention(rope) };
    let mlp = dense(config.count("intermediate_size")?);
    let layers = (windows(config, base.layers)?.into_iter())
        .map(|window| layer(AttentionSpec { window, ..attention.clone() }, mlp.clone()));
    Ok(base.decoder("qwen2", layers.collect()))
}

fn from_gguf(meta: &Meta) -> Result<DecoderSpec, ModelError> {
    let base = Base::from_gguf(meta)?;
    let rope = rope::from_gguf(meta, base.rope_defaults(10_000.0), true)?;
    let attention = AttentionSpec { bias: AttentionBias::Qkv, ..base.attention(rope) };
    let layer = layer(attention, dense(meta.count("feed_forward_length")?));
    Ok(base.decoder("qwen2", vec![layer; base.layers]))
}

/// Feed-forward block of the Qwen models.
pub fn dense(intermediate: usize) -> FeedForwardSpec {
    FeedForwardSpec::Dense(MlpSpec { intermediate, bias: false, activation: Activation::Silu })
}

/// Window per layer of a Qwen model: if `use_sliding_window`, for the layers in `layer_types`, or without that list from
/// `max_window_layers` on.
pub fn windows(config: &Fields, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    let types = base::layer_types(config, layers, &["full_attention", "sliding_attention"])?;
    let from = config.optional_number("max_window_layers")?.unwrap_or(28);
    // Always read: models without windows state it too.
    let window = config.optional_count("sliding_window")?;
    if !config.flag("use_sliding_window", false)? {
        if types.is_some_and(|types| types.contains(&"sliding_attention")) {
            let problem = "is false, but `layer_types` lists layers of `sliding_attention`";
            return Err(config.refuse("use_sliding_window", problem));
        }
        return Ok(vec![None; layers]);
    }
    let Some(window) = window else { return Ok(vec![None; layers]) };
    let slides = |i: usize| match &types {
        Some(types) => types[i] == "sliding_attention",
        None => i >= from,
    };
    Ok((0..layers).map(|i| slides(i).then_some(window)).collect())
}
