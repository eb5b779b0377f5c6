//! Gemma 3, text part (transformers, `Gemma3ForCausalLM`).

use super::base::{Base, INTERMEDIATE, Unsaid, WINDOW, bias};
use super::rope::{self, RopeDefaults};
use super::{Architecture, Config, Names};
use crate::model::{
    Activation, AttentionSpec, DecoderSpec, FeedForwardSpec, LayerNorms, LayerSpec, MixerSpec, MlpSpec,
    ModelError, NormSpec, QkNorm, RopeScaling, RopeSpec,
};

pub const GEMMA3: Architecture = Architecture {
    hf: &["gemma3_text", "gemma3"],
    gguf: Some("gemma3"),
    released: "gemma3-270m",
    names: Names {
        gguf: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
        ],
        ..Names::PLAIN
    },
    spec,
};

/// Rotary bases of global and of sliding-window layers.
const THETA: f64 = 1_000_000.0;
const LOCAL_THETA: f64 = 10_000.0;
/// The last of every `PATTERN` layers is global.
const PATTERN: usize = 6;

/// Defaults of `Gemma3TextConfig`, which larger released models rely on.
const UNSAID: Unsaid = Unsaid {
    tied: true,
    vocab: Some(262_208),
    heads: Some(8),
    kv_heads: Some(4),
    head_dim: Some(256),
    eps: Some(1e-6),
    max_positions: Some(131_072),
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_activation", &["gelu_pytorch_tanh"])?;
    config.expect_text("hidden_act", &["gelu_pytorch_tanh"])?;
    let base = Base::read(config, UNSAID)?;
    let local_theta = config.optional_positive(("rope_local_base_freq", "rope.freq_base_swa"))?;
    let local = base.rope_defaults(local_theta.unwrap_or(LOCAL_THETA));
    let (rope, local_rope) = ropes(config, base.rope_defaults(THETA), local)?;
    let (scale, pattern) = match config {
        Config::Json(fields) => {
            let pattern = fields.optional_count("sliding_window_pattern")?;
            let older = fields.optional_count("_sliding_window_pattern")?;
            let scale = fields.optional_positive("query_pre_attn_scalar")?.unwrap_or(256.0);
            (scale.powf(-0.5) as f32, pattern.or(older).unwrap_or(PATTERN))
        }
        Config::Gguf(_) => {
            // Only the largest released size has a scale that does not follow from its head width; llama.cpp detects it by layer count.
            const LARGEST: usize = 62;
            let head = if base.layers == LARGEST { base.hidden / base.heads } else { base.head_dim };
            ((head as f32).powf(-0.5), PATTERN)
        }
    };
    let global =
        AttentionSpec { scale, bias: bias(config, false)?, qk_norm: QkNorm::PerHead, ..base.attention(rope) };
    let local = AttentionSpec { window: Some(config.count(WINDOW)?), rope: local_rope, ..global.clone() };
    let mlp =
        MlpSpec { intermediate: config.count(INTERMEDIATE)?, bias: false, activation: Activation::GeluTanh };
    let slides = config.layers_of("sliding_attention", base.layers)?;
    let slides =
        slides.unwrap_or_else(|| (0..base.layers).map(|i| !(i + 1).is_multiple_of(pattern)).collect());
    let layers = slides.into_iter().map(|slides| LayerSpec {
        mixer: MixerSpec::Attention(if slides { local.clone() } else { global.clone() }),
        feed_forward: FeedForwardSpec::Dense(mlp),
        norms: LayerNorms::Both,
    });
    Ok(DecoderSpec {
        // Hugging Face checkpoints store norm weights without their 1.
        norm: NormSpec { eps: base.eps, plus_one: config.is_json() },
        embedding_scale: Some((base.hidden as f64).sqrt()),
        ..base.decoder("gemma3_text", layers.collect())
    })
}

/// Rotary settings of global and sliding-window layers: `rope_parameters` by layer type (transformers 5), or `rope_theta`,
/// `rope_scaling` of global layers only (earlier).
pub fn ropes(
    config: &Config,
    global: RopeDefaults,
    local: RopeDefaults,
) -> Result<(RopeSpec, RopeSpec), ModelError> {
    if let Config::Json(fields) = config
        && let Some(parameters) = fields.object("rope_parameters")?
        && (parameters.get("full_attention").is_some() || parameters.get("sliding_attention").is_some())
    {
        let of = |kind: &str, defaults| match parameters.object(kind)? {
            Some(p) => {
                let spec = rope::from_parameters(&p, defaults)?;
                p.finish()?;
                Ok(spec)
            }
            None => Err(parameters.refuse(kind, "is missing")),
        };
        let both = (of("full_attention", global)?, of("sliding_attention", local)?);
        parameters.finish()?;
        return Ok(both);
    }
    let plain = RopeSpec { theta: local.theta, dims: local.head_dim, scaling: RopeScaling::None };
    Ok((rope::read(config, global)?, plain))
}
