//! Qwen3 MoE (transformers, `Qwen3MoeForCausalLM`).

use super::base::{Base, EXPERT_INTERMEDIATE, INTERMEDIATE, PER_TOKEN, Unsaid, layer, silu};
use super::{Architecture, Config, Fields, Names, qwen3};
use crate::model::{DecoderSpec, ExpertsSpec, FeedForwardSpec, ModelError, Routing};

pub const QWEN3_MOE: Architecture = Architecture {
    hf: &["qwen3_moe"],
    gguf: Some("qwen3moe"),
    released: "qwen3-235b-a22b",
    names: Names::PLAIN,
    spec,
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    config.expect_routing(1)?;
    let base = Base::read(config, Unsaid::default())?;
    let mut attention = qwen3::attention(config, &base)?;
    // llama.cpp always normalises for this architecture, as the released models do; GGUF does not store it.
    let normalise = config.flag(("norm_topk_prob", "expert_weights_norm"), !config.is_json())?;
    let sparse = FeedForwardSpec::Experts(ExpertsSpec {
        experts: config.experts("num_experts", "num_local_experts")?,
        per_token: config.count(PER_TOKEN)?,
        expert: silu(config.count(EXPERT_INTERMEDIATE)?),
        routing: Routing::SoftmaxTopK { normalise },
        router_bias: false,
        shared: None,
        shared_gate: false,
        own_norms: false,
    });
    let (intermediate, is_dense) = match config {
        Config::Json(fields) => {
            attention.window = window(fields)?;
            (Some(config.count(INTERMEDIATE)?), dense_layers(fields, base.layers)?)
        }
        Config::Gguf(meta) => {
            let routed = |i: usize| meta.has(&format!("blk.{i}.ffn_gate_inp.weight"));
            (config.optional_count(INTERMEDIATE)?, (0..base.layers).map(|i| !routed(i)).collect())
        }
    };
    let dense = intermediate.map(|width| FeedForwardSpec::Dense(silu(width)));
    let layers = is_dense.into_iter().map(|is_dense| {
        let dense = dense.clone().filter(|_| is_dense);
        layer(attention.clone(), dense.unwrap_or_else(|| sparse.clone()))
    });
    Ok(base.decoder("qwen3_moe", layers.collect()))
}

/// Unlike in Qwen2 and Qwen3, the window applies to every layer.
fn window(fields: &Fields) -> Result<Option<usize>, ModelError> {
    fields.get("max_window_layers");
    let stated = fields.optional_count("sliding_window")?;
    Ok(if fields.flag("use_sliding_window", false)? { stated } else { None })
}

pub(super) fn dense_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>, ModelError> {
    let step = fields.optional_count("decoder_sparse_step")?.unwrap_or(1);
    let mut dense: Vec<bool> = (0..layers).map(|i| !(i + 1).is_multiple_of(step)).collect();
    for value in fields.optional_list("mlp_only_layers")?.into_iter().flatten() {
        match value.as_u64().and_then(|layer| dense.get_mut(layer as usize)) {
            Some(dense) => *dense = true,
            None => {
                let problem = format!("holds {value}, which is none of the {layers} layers");
                return Err(fields.refuse("mlp_only_layers", problem));
            }
        }
    }
    Ok(dense)
}
