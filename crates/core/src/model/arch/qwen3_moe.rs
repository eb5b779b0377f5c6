//! Qwen3 MoE (transformers, `Qwen3MoeForCausalLM`).

use super::base::{Base, layer};
use super::qwen2::dense;
use super::qwen3::{attention_from_gguf, attention_from_hf};
use super::{Architecture, Fields, Meta, Names};
use crate::model::{
    Activation, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, MlpSpec, ModelError, Routing,
};

pub const QWEN3_MOE: Architecture =
    Architecture { hf: &["qwen3_moe"], gguf: Some("qwen3moe"), names: Names::PLAIN, from_hf, from_gguf };

fn from_hf(config: &Fields) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::from_hf(config, false)?;
    let attention = attention_from_hf(config, &base)?;
    let experts = config.optional_count("num_experts")?;
    let experts = match experts {
        Some(experts) => experts,
        None => config.count("num_local_experts")?,
    };
    let sparse = FeedForwardSpec::Experts(softmax_top_k(
        experts,
        config.count("num_experts_per_tok")?,
        config.count("moe_intermediate_size")?,
        config.flag("norm_topk_prob", false)?,
    ));
    let mlp = dense(config.count("intermediate_size")?);
    // Unlike Qwen2 and Qwen3, the window applies to every layer.
    let stated = config.optional_count("sliding_window")?;
    let window = if config.flag("use_sliding_window", false)? { stated } else { None };
    config.get("max_window_layers");
    let dense_layers = (config.optional_list("mlp_only_layers")?.into_iter().flatten())
        .map(|value| match value.as_u64() {
            Some(layer) if layer < base.layers as u64 => Ok(layer as usize),
            _ => {
                let problem = format!("holds {value}, which is none of the {} layers", base.layers);
                Err(config.refuse("mlp_only_layers", problem))
            }
        })
        .collect::<Result<Vec<usize>, _>>()?;
    let step = config.optional_count("decoder_sparse_step")?.unwrap_or(1);
    let is_dense = |i: usize| dense_layers.contains(&i) || !(i + 1).is_multiple_of(step);
    let layers = (0..base.layers).map(|i| {
        let feed_forward = if is_dense(i) { mlp.clone() } else { sparse.clone() };
        layer(AttentionSpec { window, ..attention.clone() }, feed_forward)
    });
    Ok(base.decoder("qwen3_moe", layers.collect()))
}

fn from_gguf(meta: &Meta) -> Result<DecoderSpec, ModelError> {
    let base = Base::from_gguf(meta)?;
    let attention = attention_from_gguf(meta, &base)?;
    super::base::gating(meta, 1)?;
    let sparse = FeedForwardSpec::Experts(softmax_top_k(
        meta.count("expert_count")?,
        meta.count("expert_used_count")?,
        meta.count("expert_feed_forward_length")?,
        // llama.cpp always normalises for this architecture, as the released models do; GGUF does not store it.
        meta.flag("expert_weights_norm", true)?,
    ));
    let mlp = meta.optional_count("feed_forward_length")?.map(dense);
    let layers = (0..base.layers).map(|i| {
        let feed_forward = match (&mlp, meta.has(&format!("blk.{i}.ffn_gate_inp.weight"))) {
            (Some(mlp), false) => mlp.clone(),
            _ => sparse.clone(),
        };
        layer(attention.clone(), feed_forward)
    });
    Ok(base.decoder("qwen3_moe", layers.collect()))
}

fn softmax_top_k(experts: usize, per_token: usize, intermediate: usize, normalise: bool) -> ExpertsSpec {
    ExpertsSpec {
        experts,
        per_token,
        expert: MlpSpec { intermediate, bias: false, activation: Activation::Silu },
        routing: Routing::SoftmaxTopK { normalise },
        router_bias: false,
        shared: None,
    }
}
