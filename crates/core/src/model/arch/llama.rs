//! Llama: Llama 3.1 and 3.3, SmolLM2 (transformers, `LlamaForCausalLM`).

use super::base::{Base, INTERMEDIATE, Unsaid, bias, layer, silu};
use super::{Architecture, Config, Names, rope};
use crate::model::{AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, MlpSpec, ModelError};

pub const LLAMA: Architecture = Architecture {
    hf: &["llama"],
    gguf: Some("llama"),
    released: "llama-3.1-8b-instruct",
    names: NAMES,
    spec,
};

pub const NAMES: Names = Names { gguf_rows: rows, ..Names::PLAIN };

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    match config {
        Config::Json(fields) => fields.expect("pretraining_tp", 1)?,
        Config::Gguf(meta) => {
            meta.expect_none("expert_count")?;
            meta.expect_none("expert_used_count")?;
        }
    }
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::read(config, Unsaid::default())?;
    let rope = rope::read(config, base.rope_defaults(10_000.0))?;
    let attention = AttentionSpec { bias: bias(config, false)?, ..base.attention(rope) };
    let mlp = MlpSpec {
        bias: config.flag_or_tensor(("mlp_bias", "blk.0.ffn_gate.bias"), false)?,
        ..silu(config.count(INTERMEDIATE)?)
    };
    let layer = layer(attention, FeedForwardSpec::Dense(mlp));
    Ok(base.decoder("llama", vec![layer; base.layers]))
}

/// llama.cpp's converter interleaves the halves of each query and key head: its row 2i + j is row j * head_dim / 2 + i.
pub fn rows(part: &str, layer: &LayerSpec, rows: usize) -> Option<Vec<usize>> {
    if part != "self_attn.q_proj" && part != "self_attn.k_proj" {
        return None;
    }
    let head_dim = layer.attention()?.head_dim;
    let half = head_dim / 2;
    Some(
        (0..rows)
            .map(|row| row / head_dim * head_dim + 2 * (row % head_dim % half) + row % head_dim / half)
            .collect(),
    )
}
