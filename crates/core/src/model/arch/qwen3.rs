//! Qwen3 (transformers, `Qwen3ForCausalLM`).

use super::base::{Base, layer};
use super::qwen2::{dense, windows};
use super::{Architecture, Fields, Meta, Names, rope};
use crate::model::{AttentionBias, AttentionSpec, DecoderSpec, ModelError, QkNorm};

pub const QWEN3: Architecture =
    Architecture { hf: &["qwen3"], gguf: Some("qwen3"), names: Names::PLAIN, from_hf, from_gguf };

fn from_hf(config: &Fields) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::from_hf(config, false)?;
    let attention = attention_from_hf(config, &base)?;
    let mlp = dense(config.count("intermediate_size")?);
    let layers = (windows(config, base.layers)?.into_iter())
        .map(|window| layer(AttentionSpec { window, ..attention.clone() }, mlp.clone()));
    Ok(base.decoder("qwen3", layers.collect()))
}

fn from_gguf(meta: &Meta) -> Result<DecoderSpec, ModelError> {
    let base = Base::from_gguf(meta)?;
    let layer = layer(attention_from_gguf(meta, &base)?, dense(meta.count("feed_forward_length")?));
    Ok(base.decoder("qwen3", vec![layer; base.layers]))
}

/// `Qwen3Attention`: queries and keys are normalised per head.
pub fn attention_from_hf(config: &Fields, base: &Base) -> Result<AttentionSpec, ModelError> {
    let rope = rope::from_hf(config, base.rope_defaults(10_000.0))?;
    let bias = match config.flag("attention_bias", false)? {
        true => AttentionBias::All,
        false => AttentionBias::None,
    };
    Ok(AttentionSpec { qk_norm: QkNorm::PerHead, bias, ..base.attention(rope) })
}

pub fn attention_from_gguf(meta: &Meta, base: &Base) -> Result<AttentionSpec, ModelError> {
    let rope = rope::from_gguf(meta, base.rope_defaults(10_000.0), true)?;
    let bias = if meta.has("blk.0.attn_q.bias") { AttentionBias::All } else { AttentionBias::None };
    Ok(AttentionSpec { qk_norm: QkNorm::PerHead, bias, ..base.attention(rope) })
}
