//! Qwen3-Next (transformers, `Qwen3NextForCausalLM`): the layers of Qwen3.5, whose linear layers' projections are stored together by key
//! head, with experts. llama.cpp's files keep only strengths and decays together (`ssm_ba`).

use super::architecture::Rows;
use super::base::{INTERMEDIATE, silu};
use super::config::Config;
use super::qwen3_5_moe::{self, SHARED_EXPERT};
use super::{Architecture, Names, qwen3_5, qwen3_moe};
use crate::model::{DecoderSpec, FeedForwardSpec, LayerSpec, ModelError};

pub const QWEN3_NEXT: Architecture = Architecture {
    hf: &["qwen3_next"],
    gguf: Some("qwen3next"),
    released: "qwen3-next-80b-a3b-instruct",
    names: Names {
        hf: SHARED_EXPERT,
        hf_parts: parts,
        gguf: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
            (STRENGTHS_AND_DECAYS, "ssm_ba"),
        ],
        gguf_parts: |part, layer| parts(part, layer).filter(|(name, ..)| *name == STRENGTHS_AND_DECAYS),
        ..Names::PLAIN
    },
    spec,
};

const STRENGTHS_AND_DECAYS: &str = "linear_attn.in_proj_ba";

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    // llama.cpp always normalises and has no dense layers; released models are such.
    let normalise = config.flag(("norm_topk_prob", "expert_weights_norm"), true)?;
    let sparse = FeedForwardSpec::Experts(qwen3_5_moe::experts(config, normalise)?);
    let dense = config.optional_count(INTERMEDIATE)?.map(|width| FeedForwardSpec::Dense(silu(width)));
    qwen3_5::hybrid(config, QWEN3_NEXT.hf[0], |base| {
        let is_dense = match config {
            Config::Json(fields) => qwen3_moe::dense_layers(fields, base.layers)?,
            Config::Gguf(_) => vec![false; base.layers],
        };
        let of = |is: bool| dense.clone().filter(|_| is).unwrap_or_else(|| sparse.clone());
        Ok(is_dense.into_iter().map(of).collect())
    })
}

/// `in_proj_qkvz` has for each key head its query, its key, then its value heads and their gates; `in_proj_ba` write strengths, then
/// decays, of its value heads.
fn parts(part: &str, layer: &LayerSpec) -> Option<(&'static str, usize, Rows)> {
    let d = layer.delta_net()?;
    let each = d.value_heads / d.key_heads;
    let values = each * d.value_dim;
    let wide = 2 * d.key_dim + 2 * values;
    // Rows `from..from + width` of each key head's `all`.
    let heads = d.key_heads;
    let of_heads = move |from: usize, width: usize, all: usize| {
        (0..heads).flat_map(move |head| head * all + from..head * all + from + width)
    };
    let (name, all) = match part {
        "linear_attn.in_proj_qkv" | "linear_attn.in_proj_z" => ("linear_attn.in_proj_qkvz", wide),
        "linear_attn.in_proj_b" | "linear_attn.in_proj_a" => (STRENGTHS_AND_DECAYS, 2 * each),
        _ => return None,
    };
    let rows: Rows = match part {
        "linear_attn.in_proj_qkv" => Box::new(
            of_heads(0, d.key_dim, wide).chain(of_heads(d.key_dim, d.key_dim, wide)).chain(of_heads(
                2 * d.key_dim,
                values,
                wide,
            )),
        ),
        "linear_attn.in_proj_z" => Box::new(of_heads(2 * d.key_dim + values, values, wide)),
        "linear_attn.in_proj_b" => Box::new(of_heads(0, each, 2 * each)),
        _ => Box::new(of_heads(each, each, 2 * each)),
    };
    Some((name, all * d.key_heads, rows))
}
