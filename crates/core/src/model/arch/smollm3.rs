//! SmolLM3 (transformers, `SmolLM3ForCausalLM`): Llama with layers that do not rotate queries and keys.

use super::base::{Base, INTERMEDIATE, Unsaid, bias, layer, silu};
use super::{Architecture, Config, llama, qwen2, rope};
use crate::model::{AttentionSpec, DecoderSpec, FeedForwardSpec, MlpSpec, ModelError, RopeSpec};

pub const SMOLLM3: Architecture = Architecture {
    hf: &["smollm3"],
    gguf: Some("smollm3"),
    released: "smollm3-3b",
    names: llama::NAMES,
    spec,
};

/// The last of every `INTERVAL` layers does not rotate; GGUF does not store it.
const INTERVAL: usize = 4;

/// Defaults of `SmolLM3Config`.
const UNSAID: Unsaid = Unsaid {
    tied: true,
    vocab: None,
    heads: None,
    kv_heads: Some(4),
    head_dim: None,
    eps: None,
    max_positions: None,
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::read(config, UNSAID)?;
    let rope = rope::read(config, base.rope_defaults(2_000_000.0))?;
    let rotates = rotates(config, base.layers)?;
    let windows = qwen2::windows(config, base.layers, |i, _| !rotates[i])?;
    let mlp = FeedForwardSpec::Dense(MlpSpec {
        bias: config.flag_or_tensor(("mlp_bias", "blk.0.ffn_gate.bias"), false)?,
        ..silu(config.count(INTERMEDIATE)?)
    });
    let bias = bias(config, false)?;
    let layers = rotates.iter().zip(windows).map(|(&rotates, window)| {
        let rope = if rotates { rope.clone() } else { RopeSpec::NONE };
        layer(AttentionSpec { bias, window, ..base.attention(rope) }, mlp.clone())
    });
    let layers = layers.collect();
    Ok(base.decoder("smollm3", layers))
}

/// Layers that rotate: 1 in `no_rope_layers`, or without that list all but the last of each `no_rope_layer_interval`.
fn rotates(config: &Config, layers: usize) -> Result<Vec<bool>, ModelError> {
    const LIST: &str = "no_rope_layers";
    let every = |interval: usize| (0..layers).map(|i| !(i + 1).is_multiple_of(interval)).collect();
    let Config::Json(fields) = config else { return Ok(every(INTERVAL)) };
    // Of training; released files state it.
    fields.get("pretraining_tp");
    let interval = fields.optional_count("no_rope_layer_interval")?.unwrap_or(INTERVAL);
    let Some(list) = fields.optional_list(LIST)? else { return Ok(every(interval)) };
    if list.len() < layers {
        let problem = format!("lists {} layers where `num_hidden_layers` is {layers}", list.len());
        return Err(fields.refuse(LIST, problem));
    }
    let one = |value: &serde_json::Value| match value.as_u64() {
        Some(rotates @ (0 | 1)) => Ok(rotates == 1),
        _ => Err(fields.refuse(LIST, format!("holds {value}; a layer is 1, or 0 without rotation"))),
    };
    list.iter().take(layers).map(one).collect()
}
