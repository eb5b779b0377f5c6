//! LFM2 and LFM2.5 (transformers, `Lfm2ForCausalLM`): gated short convolutions, and among them attention.

use super::base::{Base, INTERMEDIATE, Unsaid, silu};
use super::config::{Config, Key};
use super::{Architecture, Fields, Names, rope};
use crate::model::{
    AttentionSpec, DecoderSpec, FeedForwardSpec, LayerNorms, LayerSpec, MixerSpec, ModelError, QkNorm,
    ShortConvSpec,
};

pub const LFM2: Architecture =
    Architecture { hf: &["lfm2"], gguf: Some("lfm2"), released: "lfm2.5-1.2b-instruct", names: NAMES, spec };

pub const NAMES: Names = Names {
    hf: &[
        ("^norm.", "embedding_norm."),
        ("input_layernorm", "operator_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "self_attn.out_proj"),
        ("q_norm", "q_layernorm"),
        ("k_norm", "k_layernorm"),
        ("mlp.gate.e_score_correction_bias", "mlp.expert_bias"),
        ("mlp.", "feed_forward."),
        ("gate_proj", "w1"),
        ("up_proj", "w3"),
        ("down_proj", "w2"),
    ],
    gguf: &[
        ("norm", "token_embd_norm"),
        ("conv.in_proj", "shortconv.in_proj"),
        ("conv.conv", "shortconv.conv"),
        ("conv.out_proj", "shortconv.out_proj"),
    ],
    ..Names::PLAIN
};

const TAPS: Key = ("conv_L_cache", "shortconv.l_cache");
/// Of `Lfm2Config`.
const UNSAID_TAPS: usize = 3;
const UNSAID_MULTIPLE: usize = 256;
const UNSAID_EPS: f64 = 1e-5;

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    let width = match config {
        Config::Gguf(_) => config.count(INTERMEDIATE)?,
        Config::Json(fields) => width(fields)?,
    };
    hybrid(config, LFM2.hf[0], |base| Ok(vec![FeedForwardSpec::Dense(silu(width)); base.layers]))
}

/// The decoder of the family with these feed-forward blocks, one per layer.
pub fn hybrid(
    config: &Config,
    name: &'static str,
    feed_forward: impl FnOnce(&Base) -> Result<Vec<FeedForwardSpec>, ModelError>,
) -> Result<DecoderSpec, ModelError> {
    let mut unsaid = Unsaid { tied: true, ..Unsaid::default() };
    let mut bias = false;
    if let Config::Json(fields) = config {
        unsaid.eps = Some(fields.optional_positive("norm_eps")?.unwrap_or(UNSAID_EPS));
        bias = fields.flag("conv_bias", false)?;
    }
    let mut base = Base::read(config, unsaid)?;
    if let Config::Json(fields) = config {
        base.tied = fields.flag("tie_embedding", base.tied)?;
        base.eps = unsaid.eps.unwrap_or(base.eps);
        as_released(fields, &base)?;
    }
    let rope = rope::read(config, base.rope_defaults(1_000_000.0))?;
    let attention = AttentionSpec { qk_norm: QkNorm::PerHead, ..base.attention(rope) };
    let conv = ShortConvSpec { channels: base.hidden, taps: taps(config, UNSAID_TAPS)?, bias };
    let is_conv = convolutions(config, base.layers)?;
    let layers = feed_forward(&base)?.into_iter().zip(is_conv).map(|(feed_forward, is_conv)| LayerSpec {
        mixer: match is_conv {
            true => MixerSpec::ShortConv(conv),
            false => MixerSpec::Attention(attention.clone()),
        },
        feed_forward,
        norms: LayerNorms::Inputs,
    });
    Ok(base.decoder(name, layers.collect()))
}

/// Taps of the convolutions; `unsaid` where config.json does not say.
pub fn taps(config: &Config, unsaid: usize) -> Result<usize, ModelError> {
    match config.optional_count(TAPS)? {
        None if config.is_json() => Ok(unsaid),
        None => config.count(TAPS),
        Some(1) => {
            let problem =
                "is 1, a convolution that sees no earlier token; the layers here have 2 taps and more";
            Err(config.refuse(TAPS, problem))
        }
        Some(taps) => Ok(taps),
    }
}

/// Per layer: it is a convolution, not attention.
fn convolutions(config: &Config, layers: usize) -> Result<Vec<bool>, ModelError> {
    let fields = match config {
        Config::Json(fields) => fields,
        Config::Gguf(meta) => {
            return Ok((0..layers).map(|i| meta.has(&format!("blk.{i}.shortconv.conv.weight"))).collect());
        }
    };
    let attending = fields.optional_list("full_attn_idxs")?;
    if let Some(listed) = config.layers_of("conv", layers)? {
        return Ok(listed);
    }
    let attends = |i: usize| attending.is_none_or(|list| list.iter().any(|n| n.as_u64() == Some(i as u64)));
    Ok((0..layers).map(|i| !attends(i)).collect())
}

/// Width of the feed-forward blocks: two thirds of the stated one, scaled and rounded up, unless it says that it is exact.
fn width(fields: &Fields) -> Result<usize, ModelError> {
    let stated = fields.optional_count("block_ff_dim")?.or(fields.optional_count("intermediate_size")?);
    let Some(stated) = stated else { return fields.count("intermediate_size") };
    let multiple = fields.optional_count("block_multiple_of")?.unwrap_or(UNSAID_MULTIPLE);
    let multiplier = fields.optional_positive("block_ffn_dim_multiplier")?;
    if !fields.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(stated);
    }
    let width = 2 * stated / 3;
    match multiplier {
        None if fields.states("block_ffn_dim_multiplier") => Ok(width),
        Some(multiplier) if multiplier > 16.0 => {
            Err(fields.refuse("block_ffn_dim_multiplier", format!("is {multiplier}; at most 16 is read")))
        }
        _ => Ok(((multiplier.unwrap_or(1.0) * width as f64) as usize).next_multiple_of(multiple)),
    }
}

/// Fields that transformers does not read, which repeat others or say how weights were initialised.
fn as_released(fields: &Fields, base: &Base) -> Result<(), ModelError> {
    for field in ["block_dim", "conv_dim", "conv_dim_out"] {
        fields.expect(field, base.hidden)?;
    }
    fields.expect("num_heads", base.heads)?;
    fields.expect("block_use_swiglu", true)?;
    fields.expect("use_pos_enc", true)?;
    fields.expect("block_norm_eps", base.eps)?;
    for field in
        ["block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init"]
    {
        fields.get(field);
    }
    Ok(())
}
