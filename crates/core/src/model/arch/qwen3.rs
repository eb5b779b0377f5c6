//! Qwen3 (transformers, `Qwen3ForCausalLM`).

use super::base::{Base, Unsaid, bias};
use super::qwen2::decoder;
use super::{Architecture, Config, Names, rope};
use crate::model::{AttentionSpec, DecoderSpec, ModelError, QkNorm};

pub const QWEN3: Architecture =
    Architecture { hf: &["qwen3"], gguf: Some("qwen3"), released: "qwen3-8b", names: Names::PLAIN, spec };

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::read(config, Unsaid::default())?;
    decoder("qwen3", config, &base, &attention(config, &base)?)
}

/// `Qwen3Attention`: queries and keys are normalised per head.
pub fn attention(config: &Config, base: &Base) -> Result<AttentionSpec, ModelError> {
    let rope = rope::read(config, base.rope_defaults(10_000.0))?;
    let bias = bias(config, false)?;
    Ok(AttentionSpec { qk_norm: QkNorm::PerHead, bias, ..base.attention(rope) })
}
