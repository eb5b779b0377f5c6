//! Qwen2 and Qwen2.5 (transformers, `Qwen2ForCausalLM`).

use super::base::{Base, INTERMEDIATE, Unsaid, layer, silu};
use super::{Architecture, Config, Names, rope};
use crate::model::{AttentionBias, AttentionSpec, DecoderSpec, FeedForwardSpec, ModelError};

pub const QWEN2: Architecture = Architecture {
    hf: &["qwen2"],
    gguf: Some("qwen2"),
    released: "qwen2.5-7b-instruct",
    names: Names::PLAIN,
    spec,
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::read(config, Unsaid::default())?;
    let rope = rope::read(config, base.rope_defaults(10_000.0))?;
    let attention = AttentionSpec { bias: AttentionBias::Qkv, ..base.attention(rope) };
    decoder("qwen2", config, &base, &attention)
}

/// A dense Qwen model. Sliding windows: if `use_sliding_window`, for the layers in `layer_types`, or without that list from
/// `max_window_layers` on.
pub fn decoder(
    name: &'static str,
    config: &Config,
    base: &Base,
    attention: &AttentionSpec,
) -> Result<DecoderSpec, ModelError> {
    let mlp = FeedForwardSpec::Dense(silu(config.count(INTERMEDIATE)?));
    let layers = (windows(config, base.layers, |i, from| i >= from)?.into_iter())
        .map(|window| layer(AttentionSpec { window, ..attention.clone() }, mlp.clone()));
    Ok(base.decoder(name, layers.collect()))
}

/// The window of each layer; `slides`: whether a layer has one where `layer_types` is missing, given its index and `max_window_layers`.
pub fn windows(
    config: &Config,
    layers: usize,
    slides: impl Fn(usize, usize) -> bool,
) -> Result<Vec<Option<usize>>, ModelError> {
    let Config::Json(fields) = config else { return Ok(vec![None; layers]) };
    let listed = config.layers_of("sliding_attention", layers)?;
    let from = fields.optional_number("max_window_layers")?.unwrap_or(28);
    // Always read: models without windows state it too.
    let window = fields.optional_count("sliding_window")?;
    if !fields.flag("use_sliding_window", false)? {
        if listed.is_some_and(|slides| slides.contains(&true)) {
            let problem = "is false, but `layer_types` lists layers of `sliding_attention`";
            return Err(fields.refuse("use_sliding_window", problem));
        }
        return Ok(vec![None; layers]);
    }
    let slides = listed.unwrap_or_else(|| (0..layers).map(|i| slides(i, from)).collect());
    Ok(slides.into_iter().map(|slides| window.filter(|_| slides)).collect())
}
