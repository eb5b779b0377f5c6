//! LFM2 with experts (transformers, `Lfm2MoeForCausalLM`): the layers of LFM2, dense ones first.

use super::base::{EXPERT_INTERMEDIATE, INTERMEDIATE, PER_TOKEN, silu};
use super::{Architecture, Config, lfm2};
use crate::model::{DecoderSpec, ExpertsSpec, FeedForwardSpec, ModelError, Routing};

pub const LFM2_MOE: Architecture = Architecture {
    hf: &["lfm2_moe"],
    gguf: Some("lfm2moe"),
    released: "lfm2-8b-a1b",
    names: lfm2::NAMES,
    spec,
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_routing(2)?;
    let mut first_dense = 2;
    let mut scale = 1.0;
    match config {
        Config::Json(fields) => {
            fields.expect("use_expert_bias", true)?;
            first_dense = fields.optional_number("num_dense_layers")?.unwrap_or(first_dense);
            scale = fields.optional_positive("routed_scaling_factor")?.unwrap_or(scale);
        }
        Config::Gguf(meta) => first_dense = meta.optional_count("leading_dense_block_count")?.unwrap_or(0),
    }
    // GGUF does not say it; llama.cpp normalises, as the released models do.
    let normalise = config.flag(("norm_topk_prob", "expert_weights_norm"), true)?;
    let dense = FeedForwardSpec::Dense(silu(config.count(INTERMEDIATE)?));
    let sparse = FeedForwardSpec::Experts(ExpertsSpec {
        experts: config.experts("num_experts", "num_local_experts")?,
        per_token: config.count(PER_TOKEN)?,
        expert: silu(config.count(EXPERT_INTERMEDIATE)?),
        routing: Routing::Sigmoid { normalise: normalise.then_some(1e-6), scale, groups: None },
        router_bias: false,
        shared: None,
        shared_gate: false,
        own_norms: false,
    });
    let of = |i: usize| if i < first_dense { dense.clone() } else { sparse.clone() };
    lfm2::hybrid(config, LFM2_MOE.hf[0], |base| Ok((0..base.layers).map(of).collect()))
}
