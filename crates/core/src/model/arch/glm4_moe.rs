//! GLM-4.5 (transformers, `Glm4MoeForCausalLM`).

use super::base::{Base, EXPERT_INTERMEDIATE, INTERMEDIATE, PER_TOKEN, Unsaid, layer, silu};
use super::{Architecture, Config, Names, rope};
use crate::model::{
    AttentionBias, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, ModelError, QkNorm, Routing,
};

pub const GLM4_MOE: Architecture = Architecture {
    hf: &["glm4_moe"],
    gguf: Some("glm4moe"),
    released: "glm-4.5-air",
    names: Names { gguf: &[("post_attention_layernorm", "post_attention_norm")], ..Names::PLAIN },
    spec,
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    config.expect_text("scoring_func", &["sigmoid"])?;
    config.expect_routing(2)?;
    let base = Base::read(config, Unsaid::default())?;
    let mut defaults = base.rope_defaults(10_000.0);
    defaults.partial = Some(0.5);
    let biased = config.flag_or_tensor(("attention_bias", "blk.0.attn_q.bias"), false)?;
    let normed = config.flag_or_tensor(("use_qk_norm", "blk.0.attn_q_norm.weight"), false)?;
    let attention = AttentionSpec {
        bias: if biased { AttentionBias::Qkv } else { AttentionBias::None },
        qk_norm: if normed { QkNorm::PerHead } else { QkNorm::None },
        ..base.attention(rope::read(config, defaults)?)
    };
    let first_dense = match config {
        Config::Json(fields) => fields.optional_number("first_k_dense_replace")?.unwrap_or(1),
        Config::Gguf(meta) => meta.optional_count("leading_dense_block_count")?.unwrap_or(0),
    };
    let dense = FeedForwardSpec::Dense(silu(config.count(INTERMEDIATE)?));
    let width = config.count(EXPERT_INTERMEDIATE)?;
    let or_one = |key| config.optional_count(key).map(|count| count.unwrap_or(1));
    let groups =
        (or_one(("n_group", "expert_group_count"))?, or_one(("topk_group", "expert_group_used_count"))?);
    let normalise = config.flag(("norm_topk_prob", "expert_weights_norm"), true)?;
    let scale = config.optional_positive(("routed_scaling_factor", "expert_weights_scale"))?;
    let sparse = FeedForwardSpec::Experts(ExpertsSpec {
        experts: config.experts("n_routed_experts", "num_local_experts")?,
        per_token: config.count(PER_TOKEN)?,
        expert: silu(width),
        routing: Routing::Sigmoid {
            normalise: normalise.then_some(1e-20),
            scale: scale.unwrap_or(1.0),
            groups: (groups.0 > 1).then_some(groups),
        },
        router_bias: false,
        shared: Some(silu(width * or_one(("n_shared_experts", "expert_shared_count"))?)),
        shared_gate: false,
        own_norms: false,
    });
    let feed_forward = |i: usize| if i < first_dense { dense.clone() } else { sparse.clone() };
    let layers = (0..base.layers).map(|i| layer(attention.clone(), feed_forward(i)));
    Ok(base.decoder("glm4_moe", layers.collect()))
}
