//! Qwen3.5, text part (transformers, `Qwen3_5ForCausalLM`): three of four layers are gated delta nets.

use super::base::{Base, layer_types};
use super::qwen2::dense;
use super::{Architecture, Fields, Meta, Names, rope};
use crate::model::{
    AttentionBias, AttentionSpec, DecoderSpec, DeltaNetSpec, FeedForwardSpec, LayerSpec, MixerSpec,
    ModelError, NormSpec, QkNorm, RopeSpec,
};

pub const QWEN3_5: Architecture = Architecture {
    hf: &["qwen3_5_text", "qwen3_5"],
    gguf: Some("qwen35"),
    names: Names {
        gguf: &[("post_attention_layernorm", "post_attention_norm")],
        gguf_rows: rows,
        gguf_columns: columns,
        ..Names::PLAIN
    },
    from_hf,
    from_gguf,
};

/// Rotated fraction of a head; and the last of every `INTERVAL` layers has softmax attention.
const PARTIAL: f64 = 0.25;
const INTERVAL: usize = 4;

/// Error for a convolution with one tap, whose state would be empty.
const NO_PAST: &str =
    "is 1, a convolution that sees no earlier token; the layers here are made for 2 taps and more";

fn from_hf(config: &Fields) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    config.expect_text("output_gate_type", &["swish", "silu"])?;
    config.expect("attn_output_gate", &serde_json::json!(true))?;
    let base = Base::from_hf(config, false)?;
    let mut defaults = base.rope_defaults(10_000.0);
    defaults.partial = Some(PARTIAL);
    let rope = rope::from_hf(config, defaults)?;
    let bias = match config.flag("attention_bias", false)? {
        true => AttentionBias::All,
        false => AttentionBias::None,
    };
    let delta_net = DeltaNetSpec {
        key_heads: config.count("linear_num_key_heads")?,
        value_heads: config.count("linear_num_value_heads")?,
        key_dim: config.count("linear_key_head_dim")?,
        value_dim: config.count("linear_value_head_dim")?,
        conv: config.count("linear_conv_kernel_dim")?,
    };
    if !delta_net.value_heads.is_multiple_of(delta_net.key_heads) {
        let problem = format!(
            "is {}, which does not divide the {} value heads",
            delta_net.key_heads, delta_net.value_heads
        );
        return Err(config.refuse("linear_num_key_heads", problem));
    }
    if delta_net.conv < 2 {
        return Err(config.refuse("linear_conv_kernel_dim", NO_PAST));
    }
    let interval = config.optional_count("full_attention_interval")?.unwrap_or(INTERVAL);
    let types = layer_types(config, base.layers, &["full_attention", "linear_attention"])?;
    let linear = |i: usize| match &types {
        Some(types) => types[i] == "linear_attention",
        None => !(i + 1).is_multiple_of(interval),
    };
    let mlp = dense(config.count("intermediate_size")?);
    Ok(decoder(&base, rope, bias, delta_net, &mlp, true, linear))
}

fn from_gguf(meta: &Meta) -> Result<DecoderSpec, ModelError> {
    let base = Base::from_gguf(meta)?;
    let mut defaults = base.rope_defaults(10_000.0);
    defaults.partial = Some(PARTIAL);
    let rope = rope::from_gguf(meta, defaults, true)?;
    let (value_heads, inner) = (meta.count("ssm.time_step_rank")?, meta.count("ssm.inner_size")?);
    let delta_net = DeltaNetSpec {
        key_heads: meta.count("ssm.group_count")?,
        value_heads,
        key_dim: meta.count("ssm.state_size")?,
        value_dim: inner / value_heads,
        conv: meta.count("ssm.conv_kernel")?,
    };
    if !value_heads.is_multiple_of(delta_net.key_heads) || inner % value_heads != 0 {
        let problem = format!(
            "is {value_heads}, for {} key heads and an inner size of {inner}: one does not divide the other",
            delta_net.key_heads
        );
        return Err(meta.refuse("ssm.time_step_rank", problem));
    }
    if delta_net.conv < 2 {
        return Err(meta.refuse("ssm.conv_kernel", NO_PAST));
    }
    let interval = meta.optional_count("full_attention_interval")?.unwrap_or(INTERVAL);
    let mlp = dense(meta.count("feed_forward_length")?);
    let listed = meta.optional_flags("attention.recurrent_layers")?;
    let linear = |i: usize| match &listed {
        Some(listed) => listed.get(i).copied().unwrap_or(false),
        None => !(i + 1).is_multiple_of(interval),
    };
    Ok(decoder(&base, rope, AttentionBias::None, delta_net, &mlp, false, linear))
}

/// `plus_one`: norm weights are stored without their 1.
fn decoder(
    base: &Base,
    rope: RopeSpec,
    bias: AttentionBias,
    delta_net: DeltaNetSpec,
    mlp: &FeedForwardSpec,
    plus_one: bool,
    linear: impl Fn(usize) -> bool,
) -> DecoderSpec {
    let attention = AttentionSpec { gated: true, qk_norm: QkNorm::PerHead, bias, ..base.attention(rope) };
    let layers = (0..base.layers).map(|i| LayerSpec {
        mixer: match linear(i) {
            true => MixerSpec::DeltaNet(delta_net),
            false => MixerSpec::Attention(attention.clone()),
        },
        feed_forward: mlp.clone(),
        sandwich: false,
    });
    DecoderSpec {
        norm: NormSpec { eps: base.eps, plus_one },
        ..base.decoder("qwen3_5_text", layers.collect())
    }
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
