//! MiniMax-M2 and M2.5 (transformers, `MiniMaxM2ForCausalLM`).

use serde_json::json;

use super::base::{Base, layer};
use super::{Architecture, Fields, Meta, Names, rope};
use crate::model::{
    Activation, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, LayerSpec, MlpSpec, ModelError,
    QkNorm, RopeSpec, Routing,
};

pub const MINIMAX_M2: Architecture = Architecture {
    hf: &["minimax_m2"],
    gguf: Some("minimax-m2"),
    names: Names {
        hf: &[
            ("mlp.gate.e_score", "block_sparse_moe.e_score"),
            ("mlp.", "block_sparse_moe."),
            (".gate_proj", ".w1"),
            (".down_proj", ".w2"),
            (".up_proj", ".w3"),
        ],
        ..Names::PLAIN
    },
    from_hf,
    from_gguf,
};

fn from_hf(config: &Fields) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    // Fields of released files that `MiniMaxM2Config` does not read; their only supported values.
    config.expect_text("scoring_func", &["sigmoid"])?;
    config.expect_text("qk_norm_type", &["per_layer"])?;
    config.expect("use_qk_norm", &json!(true))?;
    config.expect("use_routing_bias", &json!(true))?;
    for beta in ["layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"] {
        config.expect_number(beta, 1.0)?;
    }
    // Unused parts, which `MiniMaxM2Config` ignores too.
    for unused in ["mlp_intermediate_size", "shared_moe_mode"] {
        config.get(unused);
    }
    config.expect_number("shared_intermediate_size", 0.0)?;
    if let Some(types) = config.optional_list("attn_type_list")?
        && types.iter().any(|kind| kind.as_u64() != Some(1))
    {
        return Err(config.refuse("attn_type_list", "lists other kinds than 1, full softmax attention"));
    }
    let base = Base::from_hf(config, false)?;
    let mut defaults = base.rope_defaults(5_000_000.0);
    defaults.partial = Some(1.0);
    if let Some(dims) = config.optional_count("rotary_dim")? {
        defaults.partial = Some(dims as f64 / base.head_dim as f64);
    }
    let rope = rope::from_hf(config, defaults)?;
    let experts = config.optional_count("num_local_experts")?;
    let experts = match experts {
        Some(experts) => experts,
        None => config.count("num_experts")?,
    };
    let per_token = config.count("num_experts_per_tok")?;
    let layer = sparse_layer(&base, rope, experts, per_token, config.count("intermediate_size")?);
    Ok(base.decoder("minimax_m2", vec![layer; base.layers]))
}

fn from_gguf(meta: &Meta) -> Result<DecoderSpec, ModelError> {
    let base = Base::from_gguf(meta)?;
    let rope = rope::from_gguf(meta, base.rope_defaults(5_000_000.0), true)?;
    super::base::gating(meta, 2)?;
    let length = meta.optional_count("expert_feed_forward_length")?;
    let (experts, per_token) = (meta.count("expert_count")?, meta.count("expert_used_count")?);
    let intermediate = match (length, meta.optional_count("feed_forward_length")?) {
        (Some(length), _) | (None, Some(length)) => length,
        (None, None) => meta.count("expert_feed_forward_length")?,
    };
    let layer = sparse_layer(&base, rope, experts, per_token, intermediate);
    Ok(base.decoder("minimax_m2", vec![layer; base.layers]))
}

fn sparse_layer(
    base: &Base,
    rope: RopeSpec,
    experts: usize,
    per_token: usize,
    intermediate: usize,
) -> LayerSpec {
    let attention = AttentionSpec { qk_norm: QkNorm::Whole, ..base.attention(rope) };
    let sparse = ExpertsSpec {
        experts,
        per_token,
        expert: MlpSpec { intermediate, bias: false, activation: Activation::Silu },
        routing: Routing::Sigmoid { normalise: Some(0.0), scale: 1.0, groups: None },
        router_bias: false,
        shared: None,
    };
    layer(attention, FeedForwardSpec::Experts(sparse))
}
