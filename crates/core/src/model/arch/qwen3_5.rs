//! Qwen3.5, text part (transformers, `Qwen3_5ForCausalLM`): three of four layers are gated delta nets.

use super::base::{Base, INTERMEDIATE, Unsaid, bias, silu};
use super::config::{Config, Key};
use super::{Architecture, Names, rope};
use crate::model::{
    AttentionSpec, DecoderSpec, DeltaNetSpec, FeedForwardSpec, LayerNorms, LayerSpec, MixerSpec, ModelError,
    NormSpec, OutputGate, QkNorm,
};

pub const QWEN3_5: Architecture = Architecture {
    hf: &["qwen3_5_text", "qwen3_5"],
    gguf: Some("qwen35"),
    released: "qwen3.5-9b",
    names: NAMES,
    spec,
};

pub const NAMES: Names = Names {
    gguf: &[("post_attention_layernorm", "post_attention_norm")],
    gguf_rows: rows,
    gguf_columns: columns,
    ..Names::PLAIN
};

/// Rotated fraction of a head; and the last of every `INTERVAL` layers has softmax attention.
const PARTIAL: f64 = 0.25;
const INTERVAL: usize = 4;

const KEY_HEADS: Key = ("linear_num_key_heads", "ssm.group_count");
const CONVOLUTION: Key = ("linear_conv_kernel_dim", "ssm.conv_kernel");

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    let dense = FeedForwardSpec::Dense(silu(config.count(INTERMEDIATE)?));
    hybrid(config, QWEN3_5.hf[0], |base| Ok(vec![dense; base.layers]))
}

/// The decoder of the family with these feed-forward blocks, one per layer.
pub fn hybrid(
    config: &Config,
    name: &'static str,
    feed_forward: impl FnOnce(&Base) -> Result<Vec<FeedForwardSpec>, ModelError>,
) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    config.expect_text("output_gate_type", &["swish", "silu"])?;
    if let Config::Json(fields) = config {
        fields.expect("attn_output_gate", true)?;
    }
    let base = Base::read(config, Unsaid::default())?;
    let mut defaults = base.rope_defaults(10_000.0);
    defaults.partial = Some(PARTIAL);
    let rope = rope::read(config, defaults)?;
    let bias = bias(config, false)?;
    let attention = AttentionSpec {
        gate: OutputGate::Elementwise,
        qk_norm: QkNorm::PerHead,
        bias,
        ..base.attention(rope)
    };
    let delta_net = delta_net(config)?;
    let interval = config.optional_count(("full_attention_interval", "full_attention_interval"))?;
    let interval = interval.unwrap_or(INTERVAL);
    let listed = match config {
        Config::Json(_) => config.layers_of("linear_attention", base.layers)?,
        Config::Gguf(meta) => meta.optional_flags("attention.recurrent_layers")?,
    };
    let linear = |i: usize| match &listed {
        Some(listed) => listed.get(i).copied().unwrap_or(false),
        None => !(i + 1).is_multiple_of(interval),
    };
    let layers = feed_forward(&base)?.into_iter().enumerate().map(|(i, feed_forward)| LayerSpec {
        mixer: match linear(i) {
            true => MixerSpec::DeltaNet(delta_net),
            false => MixerSpec::Attention(attention.clone()),
        },
        feed_forward,
        norms: LayerNorms::Inputs,
    });
    Ok(DecoderSpec {
        // Hugging Face checkpoints store norm weights without their 1.
        norm: NormSpec { eps: base.eps, plus_one: config.is_json() },
        ..base.decoder(name, layers.collect())
    })
}

fn delta_net(config: &Config) -> Result<DeltaNetSpec, ModelError> {
    let value_heads = config.count(("linear_num_value_heads", "ssm.time_step_rank"))?;
    let key_heads = config.count(KEY_HEADS)?;
    let value_dim = match config {
        Config::Json(fields) => fields.count("linear_value_head_dim")?,
        Config::Gguf(meta) => {
            let inner = meta.count("ssm.inner_size")?;
            if !inner.is_multiple_of(value_heads) {
                let problem = format!("is {inner}, no multiple of the {value_heads} value heads");
                return Err(meta.refuse("ssm.inner_size", problem));
            }
            inner / value_heads
        }
    };
    if !value_heads.is_multiple_of(key_heads) {
        let problem = format!("is {key_heads}, which does not divide the {value_heads} value heads");
        return Err(config.refuse(KEY_HEADS, problem));
    }
    let conv = config.count(CONVOLUTION)?;
    if conv < 2 {
        // The state would be empty.
        let problem =
            "is 1, a convolution that sees no earlier token; the layers here are made for 2 taps and more";
        return Err(config.refuse(CONVOLUTION, problem));
    }
    let key_dim = config.count(("linear_key_head_dim", "ssm.state_size"))?;
    Ok(DeltaNetSpec { key_heads, value_heads, key_dim, value_dim, conv })
}

/// llama.cpp's converter stores value heads round-robin over key heads: its head v * key_heads + k is the v-th value head of key head
/// k. Returns the file's head for each value head.
fn tiled(d: &DeltaNetSpec) -> impl Fn(usize) -> usize {
    let (key_heads, each) = (d.key_heads, d.value_heads / d.key_heads);
    move |head| head % each * key_heads + head / each
}

/// Permutation of `rows` rows: the first `fixed` stay, the others are `width` per value head.
fn tiled_rows(d: &DeltaNetSpec, rows: usize, fixed: usize, width: usize) -> Vec<usize> {
    let tiled = tiled(d);
    (0..rows)
        .map(|row| match row.checked_sub(fixed) {
            None => row,
            Some(row) => fixed + tiled(row / width) * width + row % width,
        })
        .collect()
}

fn rows(part: &str, layer: &LayerSpec, rows: usize) -> Option<Vec<usize>> {
    let d = layer.delta_net().filter(|d| d.key_heads != d.value_heads)?;
    match part {
        "linear_attn.in_proj_qkv" | "linear_attn.conv1d" => {
            Some(tiled_rows(d, rows, 2 * d.keys(), d.value_dim))
        }
        "linear_attn.in_proj_z" => Some(tiled_rows(d, rows, 0, d.value_dim)),
        "linear_attn.in_proj_a" | "linear_attn.in_proj_b" | "linear_attn.A_log" | "linear_attn.dt_bias" => {
            Some(tiled_rows(d, rows, 0, 1))
        }
        _ => None,
    }
}

fn columns(part: &str, layer: &LayerSpec, columns: usize) -> Option<Vec<usize>> {
    let d = layer.delta_net().filter(|d| d.key_heads != d.value_heads)?;
    (part == "linear_attn.out_proj").then(|| tiled_rows(d, columns, 0, d.value_dim))
}
