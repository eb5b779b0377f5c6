//! Qwen3.5 and 3.6 with experts, text part (transformers, `Qwen3_5MoeForCausalLM`): the layers of Qwen3.5, and in each of them experts
//! with a gated shared one.

use super::base::{EXPERT_INTERMEDIATE, INTERMEDIATE, PER_TOKEN, silu};
use super::config::{Config, Key};
use super::{Architecture, Names, qwen3_5};
use crate::model::{DecoderSpec, ExpertsSpec, FeedForwardSpec, ModelError, Routing};

pub const QWEN3_5_MOE: Architecture = Architecture {
    hf: &["qwen3_5_moe_text", "qwen3_5_moe"],
    gguf: Some("qwen35moe"),
    released: "qwen3.5-35b-a3b",
    names: Names {
        hf: SHARED_EXPERT,
        gguf: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        ],
        ..qwen3_5::NAMES
    },
    spec,
};

/// Qwen's name for the shared expert.
pub const SHARED_EXPERT: &[(&str, &str)] = &[("mlp.shared_experts.", "mlp.shared_expert.")];

const SHARED: Key = ("shared_expert_intermediate_size", "expert_shared_feed_forward_length");

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    // Stated by some files, though no layer is dense.
    config.optional_count(INTERMEDIATE)?;
    if let Config::Json(fields) = config {
        fields.expect("norm_topk_prob", true)?;
    }
    let sparse = FeedForwardSpec::Experts(experts(config, true)?);
    qwen3_5::hybrid(config, QWEN3_5_MOE.hf[0], |base| Ok(vec![sparse; base.layers]))
}

/// Experts with a gated shared one, as all hybrid Qwen models have them.
pub fn experts(config: &Config, normalise: bool) -> Result<ExpertsSpec, ModelError> {
    Ok(ExpertsSpec {
        experts: config.experts("num_experts", "num_local_experts")?,
        per_token: config.count(PER_TOKEN)?,
        expert: silu(config.count(EXPERT_INTERMEDIATE)?),
        routing: Routing::SoftmaxTopK { normalise },
        router_bias: false,
        shared: Some(silu(config.count(SHARED)?)),
        shared_gate: true,
        own_norms: false,
    })
}
