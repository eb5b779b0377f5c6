//! LFM3 (transformers, `Lfm3ForCausalLM`): gated short convolutions, and attention with and without windows, gated head by head.

use super::base::{Base, INTERMEDIATE, Unsaid, WINDOW, bias, silu};
use super::rope::{self, RopeDefaults};
use super::{Architecture, Config, Fields, Names, lfm2};
use crate::model::{
    AttentionSpec, DecoderSpec, FeedForwardSpec, LayerNorms, LayerSpec, MixerSpec, ModelError, OutputGate,
    QkNorm, RopeSpec, ShortConvSpec,
};

pub const LFM3: Architecture =
    Architecture { hf: &["lfm3"], gguf: None, released: "lfm3-1.7b", names: NAMES, spec };

const NAMES: Names = Names {
    hf: &[
        ("^norm.", "embedding_norm."),
        ("input_layernorm", "operator_norm"),
        ("post_attention_layernorm", "post_operator_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
        // transformers renames it as it loads.
        ("self_attn.g_proj", "self_attn.gate_proj"),
    ],
    ..Names::PLAIN
};

/// Defaults of `Lfm3Config`.
const UNSAID: Unsaid = Unsaid {
    tied: true,
    vocab: Some(128_000),
    heads: Some(16),
    kv_heads: Some(4),
    head_dim: Some(128),
    eps: Some(1e-5),
    max_positions: Some(128_000),
};
const UNSAID_TAPS: usize = 7;
const UNSAID_WINDOW: usize = 256;

/// Rotary bases of global and of sliding-window layers.
const THETA: f64 = 1_000_000.0;
const LOCAL_THETA: f64 = 10_000.0;

/// Mixers, by their names in `layer_types`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Conv,
    Sliding,
    Full,
}

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    let Config::Json(fields) = config else { return Err(ModelError::NoFile) };
    // Without it other norms would have these names.
    fields.expect("use_sandwich_norm", true)?;
    let eps = fields.optional_positive("norm_eps")?;
    let base = Base::read(config, UNSAID)?;
    let base = Base { eps: eps.unwrap_or(base.eps), ..base };
    let (full, sliding) = ropes(fields, &base)?;
    let gate = if fields.flag("use_attention_gate", true)? { OutputGate::PerHead } else { OutputGate::None };
    let full =
        AttentionSpec { gate, qk_norm: QkNorm::PerHead, bias: bias(config, false)?, ..base.attention(full) };
    let window = config.optional_count(WINDOW)?.unwrap_or(UNSAID_WINDOW);
    let sliding = AttentionSpec { window: Some(window), rope: sliding, ..full.clone() };
    let conv = ShortConvSpec {
        channels: base.hidden,
        taps: lfm2::taps(config, UNSAID_TAPS)?,
        bias: fields.flag("conv_bias", false)?,
    };
    let mlp = silu(config.count(INTERMEDIATE)?);
    let layers = kinds(fields, base.layers)?.into_iter().map(|kind| LayerSpec {
        mixer: match kind {
            Kind::Conv => MixerSpec::ShortConv(conv),
            Kind::Sliding => MixerSpec::Attention(sliding.clone()),
            Kind::Full => MixerSpec::Attention(full.clone()),
        },
        feed_forward: FeedForwardSpec::Dense(mlp),
        norms: LayerNorms::Both,
    });
    Ok(base.decoder(LFM3.hf[0], layers.collect()))
}

/// Rotary settings of layers without and with a window.
fn ropes(fields: &Fields, base: &Base) -> Result<(RopeSpec, RopeSpec), ModelError> {
    let parameters =
        fields.object("rope_parameters")?.ok_or_else(|| fields.refuse("rope_parameters", "is missing"))?;
    let of = |kind: &str, defaults: RopeDefaults| {
        let Some(p) = parameters.object(kind)? else { return Err(parameters.refuse(kind, "is missing")) };
        const PART: &str = "partial_rotary_factor";
        let whole = p.optional_text("rope_type")? == Some("default");
        if let Some(part) = p.optional_positive(PART)?.filter(|part| whole && *part != 1.0) {
            let problem = format!(
                "is {part}, and `rope_type` `default`, under which transformers turns whole heads; say `proportional`, or leave the \
                 factor out"
            );
            return Err(p.refuse(PART, problem));
        }
        let spec = rope::from_parameters(&p, defaults)?;
        p.finish()?;
        Ok(spec)
    };
    let both = (
        of("full_attention", base.rope_defaults(THETA))?,
        of("sliding_attention", base.rope_defaults(LOCAL_THETA))?,
    );
    parameters.finish()?;
    Ok(both)
}

/// The mixer of each layer.
fn kinds(fields: &Fields, layers: usize) -> Result<Vec<Kind>, ModelError> {
    const FIELD: &str = "layer_types";
    let Some(list) = fields.optional_list(FIELD)? else {
        let of = |i: usize| match i % 4 {
            2 => Kind::Full,
            0 if i > 0 => Kind::Sliding,
            _ => Kind::Conv,
        };
        return Ok((0..layers).map(of).collect());
    };
    if list.len() != layers {
        let problem = format!("lists {} layers where `num_hidden_layers` is {layers}", list.len());
        return Err(fields.refuse(FIELD, problem));
    }
    let kind = |value: &serde_json::Value| match value.as_str() {
        Some("conv") => Ok(Kind::Conv),
        Some("sliding_attention") => Ok(Kind::Sliding),
        Some("full_attention") => Ok(Kind::Full),
        _ => {
            let known = "this architecture has `conv`, `sliding_attention` and `full_attention`";
            Err(fields.refuse(FIELD, format!("holds {value}; {known}")))
        }
    };
    list.iter().map(kind).collect()
}
