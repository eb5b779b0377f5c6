//! Llama: Llama 3.1 and 3.3, SmolLM2 (transformers, `LlamaForCausalLM`).

use serde_json::json;

use super::base::{Base, layer};
use super::{Architecture, Fields, Meta, Names, rope};
use crate::model::{Activation, AttentionBias, DecoderSpec, FeedForwardSpec, LayerSpec, MlpSpec, ModelError};

pub const LLAMA: Architecture = Architecture {
    hf: &["llama"],
    gguf: Some("llama"),
    names: Names { gguf_rows: rows, ..Names::PLAIN },
    from_hf,
    from_gguf,
};

fn from_hf(config: &Fields) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    config.expect("pretraining_tp", &json!(1))?;
    let base = Base::from_hf(config, false)?;
    let mut attention = base.attention(rope::from_hf(config, base.rope_defaults(10_000.0))?);
    if config.flag("attention_bias", false)? {
        attention.bias = AttentionBias::All;
    }
    let mlp = MlpSpec {
        intermediate: config.count("intermediate_size")?,
        bias: config.flag("mlp_bias", false)?,
        activation: Activation::Silu,
    };
    let layer = layer(attention, FeedForwardSpec::Dense(mlp));
    Ok(base.decoder("llama", vec![layer; base.layers]))
}

fn from_gguf(meta: &Meta) -> Result<DecoderSpec, ModelError> {
    meta.expect_none("expert_count")?;
    meta.expect_none("expert_used_count")?;
    let base = Base::from_gguf(meta)?;
    let mut attention = base.attention(rope::from_gguf(meta, base.rope_defaults(10_000.0), true)?);
    if meta.has("blk.0.attn_q.bias") {
        attention.bias = AttentionBias::All;
    }
    let mlp = MlpSpec {
        intermediate: meta.count("feed_forward_length")?,
        bias: meta.has("blk.0.ffn_gate.bias"),
        activation: Activation::Silu,
    };
    let layer = layer(attention, FeedForwardSpec::Dense(mlp));
    Ok(base.decoder("llama", vec![layer; base.layers]))
}

/// llama.cpp's converter interleaves the halves of each query and key head: its row 2i + j is row j * head_dim / 2 + i.
fn rows(part: &str, layer: &LayerSpec, rows: usize) -> Option<Vec<usize>> {
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
