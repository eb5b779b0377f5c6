//! OLMo 3 (transformers, `Olmo3ForCausalLM`): outputs of attention and feed-forward blocks are normalised, inputs are not.

use super::base::{Base, INTERMEDIATE, Unsaid, WINDOW, bias, silu};
use super::gemma3::ropes;
use super::{Architecture, Config, Names};
use crate::model::{
    AttentionSpec, DecoderSpec, FeedForwardSpec, LayerNorms, LayerSpec, MixerSpec, ModelError, QkNorm,
};

pub const OLMO3: Architecture = Architecture {
    hf: &["olmo3"],
    gguf: Some("olmo2"),
    released: "olmo-3-7b-instruct",
    names: Names { gguf: &[("post_attention_layernorm", "post_attention_norm")], ..Names::PLAIN },
    spec,
};

/// Rotary base of all layers; only the global ones' frequencies are scaled.
const THETA: f64 = 500_000.0;
/// The last of every `PATTERN` layers is global.
const PATTERN: usize = 4;

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::read(config, Unsaid::default())?;
    if let Config::Json(fields) = config
        && let Some(parameters) = fields.object("rope_parameters")?
        && parameters.get("full_attention").is_none()
    {
        return Err(
            parameters.refuse("full_attention", "is missing; state the settings of each kind of layer")
        );
    }
    let (slides, local_theta) = match config {
        Config::Json(_) => (config.layers_of("sliding_attention", base.layers)?, None),
        // Files of OLMo 2, which has no windows, list no layers.
        Config::Gguf(meta) => (
            Some(meta.optional_flags("attention.sliding_window_pattern")?.unwrap_or_default()),
            meta.optional_positive("rope.freq_base_swa")?.or(meta.optional_positive("rope.freq_base")?),
        ),
    };
    let (rope, local_rope) =
        ropes(config, base.rope_defaults(THETA), base.rope_defaults(local_theta.unwrap_or(THETA)))?;
    let global = AttentionSpec { bias: bias(config, false)?, qk_norm: QkNorm::Whole, ..base.attention(rope) };
    let local = AttentionSpec { window: config.optional_count(WINDOW)?, rope: local_rope, ..global.clone() };
    let mlp = FeedForwardSpec::Dense(silu(config.count(INTERMEDIATE)?));
    let slides = |i: usize| match &slides {
        Some(slides) => slides.get(i).copied().unwrap_or(false),
        None => !(i + 1).is_multiple_of(PATTERN),
    };
    let layers = (0..base.layers).map(|i| LayerSpec {
        mixer: MixerSpec::Attention(if slides(i) { local.clone() } else { global.clone() }),
        feed_forward: mlp.clone(),
        norms: LayerNorms::Outputs,
    });
    Ok(base.decoder("olmo3", layers.collect()))
}
