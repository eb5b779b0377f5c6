//! EXAONE 4.0 (transformers, `Exaone4ForCausalLM`): outputs of blocks are normalised, inputs are not; beside layers with windows, global
//! ones do not rotate.

use super::base::{Base, INTERMEDIATE, Unsaid, WINDOW, silu};
use super::{Architecture, Config, Names, rope};
use crate::model::{
    AttentionSpec, DecoderSpec, FeedForwardSpec, LayerNorms, LayerSpec, MixerSpec, ModelError, QkNorm,
    RopeSpec,
};

pub const EXAONE4: Architecture = Architecture {
    hf: &["exaone4"],
    gguf: Some("exaone4"),
    released: "exaone-4.0-1.2b",
    names: Names { gguf: &[("post_attention_layernorm", "post_attention_norm")], ..Names::PLAIN },
    spec,
};

/// Defaults of `Exaone4Config`: the window, and the number of layers of which the last is global.
const LENGTH: usize = 4096;
const INTERVAL: usize = 4;

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    const PATTERN: &str = "sliding_window_pattern";
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::read(config, Unsaid { kv_heads: Some(32), ..Unsaid::default() })?;
    let rope = rope::read(config, base.rope_defaults(10_000.0))?;
    let (mut window, mut interval) = (config.optional_count(WINDOW)?, INTERVAL);
    let listed = match config {
        Config::Json(fields) => {
            // Null is no window.
            window = window.or((!fields.states(WINDOW.0)).then_some(LENGTH));
            let listed = config.layers_of("sliding_attention", base.layers)?;
            if listed.is_some() {
                fields.get(PATTERN); // Also a text in released files; the list wins.
            } else {
                interval = fields.optional_count(PATTERN)?.unwrap_or(INTERVAL);
            }
            listed
        }
        Config::Gguf(meta) => meta.optional_flags("attention.sliding_window_pattern")?,
    };
    let slides = |i: usize| match &listed {
        Some(listed) => listed.get(i).copied().unwrap_or(false),
        None => window.is_some() && !(i + 1).is_multiple_of(interval),
    };
    if window.is_none() && (0..base.layers).any(slides) {
        return Err(config.refuse(WINDOW, "is missing, but layers of `sliding_attention` are listed"));
    }
    let mlp = FeedForwardSpec::Dense(silu(config.count(INTERMEDIATE)?));
    let layers = (0..base.layers).map(|i| {
        let rope = if window.is_none() || slides(i) { rope.clone() } else { RopeSpec::NONE };
        let window = window.filter(|_| slides(i));
        let attention = AttentionSpec { window, qk_norm: QkNorm::PerHead, ..base.attention(rope) };
        let mixer = MixerSpec::Attention(attention);
        LayerSpec { mixer, feed_forward: mlp.clone(), norms: LayerNorms::Outputs }
    });
    let layers = layers.collect();
    Ok(base.decoder("exaone4", layers))
}
