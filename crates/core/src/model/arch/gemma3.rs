//! Gemma 3, text part (transformers, `Gemma3ForCausalLM`).

use super::base::{Base, Unsaid, layer_types, window};
use super::{Architecture, Fields, Meta, Names, rope};
use crate::model::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, MixerSpec, MlpSpec,
    ModelError, NormSpec, QkNorm, RopeScaling, RopeSpec,
};

pub const GEMMA3: Architecture = Architecture {
    hf: &["gemma3_text", "gemma3"],
    gguf: Some("gemma3"),
    names: Names {
        gguf: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
        ],
        ..Names::PLAIN
    },
    from_hf,
    from_gguf,
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

struct Stated {
    scale: f32,
    window: usize,
    bias: bool,
    intermediate: usize,
    rope: RopeSpec,
    local_rope: RopeSpec,
    /// Per layer: has a sliding window.
    slides: Vec<bool>,
    /// Norm weights are stored without their 1.
    plus_one: bool,
}

fn from_hf(config: &Fields) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_activation", &["gelu_pytorch_tanh"])?;
    config.expect_text("hidden_act", &["gelu_pytorch_tanh"])?;
    let base = Base::from_hf_or(config, UNSAID)?;
    let (rope, local_rope) = ropes(config, &base)?;
    let pattern = config.optional_count("sliding_window_pattern")?;
    let older = config.optional_count("_sliding_window_pattern")?;
    let pattern = pattern.or(older).unwrap_or(PATTERN);
    let types = layer_types(config, base.layers, &["full_attention", "sliding_attention"])?;
    let stated = Stated {
        scale: config.optional_positive("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5) as f32,
        window: window(config)?,
        bias: config.flag("attention_bias", false)?,
        intermediate: config.count("intermediate_size")?,
        rope,
        local_rope,
        slides: match types {
            Some(types) => types.into_iter().map(|kind| kind == "sliding_attention").collect(),
            None => (0..base.layers).map(|i| !(i + 1).is_multiple_of(pattern)).collect(),
        },
        plus_one: true,
    };
    Ok(decoder(&base, &stated))
}

/// Rotary settings of global and sliding-window layers: `rope_parameters` by layer type (transformers 5), or `rope_theta`,
/// `rope_scaling` (global only) and `rope_local_base_freq` (earlier).
fn ropes(config: &Fields, base: &Base) -> Result<(RopeSpec, RopeSpec), ModelError> {
    let local_theta = config.optional_positive("rope_local_base_freq")?.unwrap_or(LOCAL_THETA);
    let (global, local) = (base.rope_defaults(THETA), base.rope_defaults(local_theta));
    let plain = RopeSpec { theta: local_theta, dims: base.head_dim, scaling: RopeScaling::None };
    if let Some(parameters) = config.object("rope_parameters")?
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
    Ok((rope::from_hf(config, global)?, plain))
}

fn from_gguf(meta: &Meta) -> Result<DecoderSpec, ModelError> {
    let base = Base::from_gguf(meta)?;
    let local_theta = meta.optional_positive("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA);
    // Only the largest released size has a scale that does not follow from its head width; llama.cpp detects it by layer count.
    const LARGEST: usize = 62;
    let head = if base.layers == LARGEST { base.hidden / base.heads } else { base.head_dim };
    let stated = Stated {
        scale: (head as f32).powf(-0.5),
        window: meta.count("attention.sliding_window")?,
        bias: false,
        intermediate: meta.count("feed_forward_length")?,
        rope: rope::from_gguf(meta, base.rope_defaults(THETA), true)?,
        local_rope: RopeSpec { theta: local_theta, dims: base.head_dim, scaling: RopeScaling::None },
        slides: (0..base.layers).map(|i| !(i + 1).is_multiple_of(PATTERN)).collect(),
        plus_one: false,
    };
    Ok(decoder(&base, &stated))
}

fn decoder(base: &Base, s: &Stated) -> DecoderSpec {
    let layers = s.slides.iter().map(|&slides| {
        let rope = if slides { s.local_rope.clone() } else { s.rope.clone() };
        let attention = AttentionSpec {
            scale: s.scale,
            window: slides.then_some(s.window),
            bias: if s.bias { AttentionBias::All } else { AttentionBias::None },
            qk_norm: QkNorm::PerHead,
            ..base.attention(rope)
        };
        let activation = Activation::GeluTanh;
        let mlp = MlpSpec { intermediate: s.intermediate, bias: false, activation };
        LayerSpec {
            mixer: MixerSpec::Attention(attention),
            feed_forward: FeedForwardSpec::Dense(mlp),
            sandwich: true,
        }
    });
    DecoderSpec {
        norm: NormSpec { eps: base.eps, plus_one: s.plus_one },
        embedding_scale: Some((base.hidden as f64).sqrt()),
        ..base.decoder("gemma3_text", layers.collect())
    }
}
