//! GLM-4.5 (transformers, `Glm4MoeForCausalLM`).

use super::base::{Base, layer};
use super::{Architecture, Fields, Meta, Names, rope};
use crate::model::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, LayerSpec, MlpSpec,
    ModelError, QkNorm, RopeSpec, Routing,
};

pub const GLM4_MOE: Architecture = Architecture {
    hf: &["glm4_moe"],
    gguf: Some("glm4moe"),
    names: Names { gguf: &[("post_attention_layernorm", "post_attention_norm")], ..Names::PLAIN },
    from_hf,
    from_gguf,
};

struct Stated {
    rope: RopeSpec,
    bias: bool,
    qk_norm: bool,
    intermediate: usize,
    first_dense: usize,
    experts: usize,
    per_token: usize,
    expert_intermediate: usize,
    shared: usize,
    normalise: bool,
    scale: f64,
    groups: (usize, usize),
}

fn from_hf(config: &Fields) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    config.expect_text("scoring_func", &["sigmoid"])?;
    let base = Base::from_hf(config, false)?;
    let mut defaults = base.rope_defaults(10_000.0);
    defaults.partial = Some(0.5);
    let experts = config.optional_count("n_routed_experts")?;
    let stated = Stated {
        rope: rope::from_hf(config, defaults)?,
        bias: config.flag("attention_bias", false)?,
        qk_norm: config.flag("use_qk_norm", false)?,
        intermediate: config.count("intermediate_size")?,
        first_dense: config.optional_number("first_k_dense_replace")?.unwrap_or(1),
        experts: match experts {
            Some(experts) => experts,
            None => config.count("num_local_experts")?,
        },
        per_token: config.count("num_experts_per_tok")?,
        expert_intermediate: config.count("moe_intermediate_size")?,
        shared: config.optional_count("n_shared_experts")?.unwrap_or(1),
        normalise: config.flag("norm_topk_prob", true)?,
        scale: config.optional_positive("routed_scaling_factor")?.unwrap_or(1.0),
        groups: (
            config.optional_count("n_group")?.unwrap_or(1),
            config.optional_count("topk_group")?.unwrap_or(1),
        ),
    };
    Ok(base.decoder("glm4_moe", layers(&base, &stated)))
}

fn from_gguf(meta: &Meta) -> Result<DecoderSpec, ModelError> {
    let base = Base::from_gguf(meta)?;
    let mut defaults = base.rope_defaults(10_000.0);
    defaults.partial = Some(0.5);
    super::base::gating(meta, 2)?;
    let stated = Stated {
        rope: rope::from_gguf(meta, defaults, true)?,
        bias: meta.has("blk.0.attn_q.bias"),
        qk_norm: meta.has("blk.0.attn_q_norm.weight"),
        intermediate: meta.count("feed_forward_length")?,
        first_dense: meta.optional_count("leading_dense_block_count")?.unwrap_or(0),
        experts: meta.count("expert_count")?,
        per_token: meta.count("expert_used_count")?,
        expert_intermediate: meta.count("expert_feed_forward_length")?,
        shared: meta.optional_count("expert_shared_count")?.unwrap_or(1),
        normalise: meta.flag("expert_weights_norm", true)?,
        scale: meta.optional_positive("expert_weights_scale")?.unwrap_or(1.0),
        groups: (
            meta.optional_count("expert_group_count")?.unwrap_or(1),
            meta.optional_count("expert_group_used_count")?.unwrap_or(1),
        ),
    };
    Ok(base.decoder("glm4_moe", layers(&base, &stated)))
}

fn layers(base: &Base, s: &Stated) -> Vec<LayerSpec> {
    let attention = AttentionSpec {
        bias: if s.bias { AttentionBias::Qkv } else { AttentionBias::None },
        qk_norm: if s.qk_norm { QkNorm::PerHead } else { QkNorm::None },
        ..base.attention(s.rope.clone())
    };
    let mlp = |intermediate| MlpSpec { intermediate, bias: false, activation: Activation::Silu };
    let sparse = ExpertsSpec {
        experts: s.experts,
        per_token: s.per_token,
        expert: mlp(s.expert_intermediate),
        routing: Routing::Sigmoid {
            normalise: s.normalise.then_some(1e-20),
            scale: s.scale,
            groups: (s.groups.0 > 1).then_some(s.groups),
        },
        router_bias: false,
        shared: Some(mlp(s.expert_intermediate * s.shared)),
    };
    let feed_forward = |i: usize| {
        if i < s.first_dense {
            FeedForwardSpec::Dense(mlp(s.intermediate))
        } else {
            FeedForwardSpec::Experts(sparse.clone())
        }
    };
    (0..base.layers).map(|i| layer(attention.clone(), feed_forward(i))).collect()
}
