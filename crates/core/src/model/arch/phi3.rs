//! Phi-4 and Phi-4-mini (transformers, `Phi3ForCausalLM`): queries, keys and values are one tensor, gate and up another. llama.cpp's files
//! are not read: their factors of LongRoPE and fused tensors are stored otherwise.

use super::architecture::Rows;
use super::base::{Base, INTERMEDIATE, Unsaid, WINDOW, layer, silu};
use super::{Architecture, Config, Names, rope};
use crate::model::{AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, ModelError};

pub const PHI3: Architecture = Architecture {
    hf: &["phi3"],
    gguf: None,
    released: "phi-4",
    names: Names { hf_parts: parts, ..Names::PLAIN },
    spec,
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    let Config::Json(fields) = config else { return Err(ModelError::NoFile) };
    config.expect_text("hidden_act", &["silu"])?;
    // In files of Phi-4-mini; transformers reads neither.
    fields.expect("full_attn_mod", 1)?;
    fields.expect("interpolate_factor", 1)?;
    let base = Base::read(config, Unsaid::default())?;
    let mut defaults = base.rope_defaults(10_000.0);
    defaults.partial = Some(1.0);
    defaults.original = fields.optional_positive("original_max_position_embeddings")?.or(Some(4096.0));
    let rope = rope::read(config, defaults)?;
    let attention = AttentionSpec { window: config.optional_count(WINDOW)?, ..base.attention(rope) };
    let layer = layer(attention, FeedForwardSpec::Dense(silu(config.count(INTERMEDIATE)?)));
    Ok(base.decoder("phi3", vec![layer; base.layers]))
}

fn parts(part: &str, layer: &LayerSpec) -> Option<(&'static str, usize, Rows)> {
    let (a, FeedForwardSpec::Dense(mlp)) = (layer.attention()?, &layer.feed_forward) else { return None };
    let (q, kv, width) = (a.heads * a.head_dim, a.kv_heads * a.head_dim, mlp.intermediate);
    let (larger, all, rows) = match part {
        "self_attn.q_proj" => ("self_attn.qkv_proj", q + 2 * kv, 0..q),
        "self_attn.k_proj" => ("self_attn.qkv_proj", q + 2 * kv, q..q + kv),
        "self_attn.v_proj" => ("self_attn.qkv_proj", q + 2 * kv, q + kv..q + 2 * kv),
        "mlp.gate_proj" => ("mlp.gate_up_proj", 2 * width, 0..width),
        "mlp.up_proj" => ("mlp.gate_up_proj", 2 * width, width..2 * width),
        _ => return None,
    };
    Some((larger, all, Box::new(rows)))
}
