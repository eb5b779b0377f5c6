//! MiniMax-M2 and M2.5 (transformers, `MiniMaxM2ForCausalLM`).

use super::base::{Base, EXPERT_INTERMEDIATE, INTERMEDIATE, PER_TOKEN, Unsaid, layer, silu};
use super::{Architecture, Config, Fields, Names, rope};
use crate::model::{AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, ModelError, QkNorm, Routing};

pub const MINIMAX_M2: Architecture = Architecture {
    hf: &["minimax_m2"],
    gguf: Some("minimax-m2"),
    released: "minimax-m2.5",
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
    spec,
};

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    config.expect_routing(2)?;
    let base = Base::read(config, Unsaid::default())?;
    let mut defaults = base.rope_defaults(5_000_000.0);
    defaults.partial = Some(1.0);
    let intermediate = match config {
        Config::Json(fields) => {
            expect_supported(fields)?;
            if let Some(dims) = fields.optional_count("rotary_dim")? {
                defaults.partial = Some(dims as f64 / base.head_dim as f64);
            }
            config.count(INTERMEDIATE)?
        }
        Config::Gguf(_) => {
            match (config.optional_count(EXPERT_INTERMEDIATE)?, config.optional_count(INTERMEDIATE)?) {
                (Some(width), _) | (None, Some(width)) => width,
                (None, None) => config.count(EXPERT_INTERMEDIATE)?,
            }
        }
    };
    let rope = rope::read(config, defaults)?;
    let attention = AttentionSpec { qk_norm: QkNorm::Whole, ..base.attention(rope) };
    let sparse = ExpertsSpec {
        experts: config.experts("num_local_experts", "num_experts")?,
        per_token: config.count(PER_TOKEN)?,
        expert: silu(intermediate),
        routing: Routing::Sigmoid { normalise: Some(0.0), scale: 1.0, groups: None },
        router_bias: false,
        shared: None,
        shared_gate: false,
        own_norms: false,
    };
    let layer = layer(attention, FeedForwardSpec::Experts(sparse));
    Ok(base.decoder("minimax_m2", vec![layer; base.layers]))
}

/// Fields of released files that `MiniMaxM2Config` does not read, with their only supported values.
fn expect_supported(fields: &Fields) -> Result<(), ModelError> {
    fields.expect_text("scoring_func", &["sigmoid"])?;
    fields.expect_text("qk_norm_type", &["per_layer"])?;
    fields.expect("use_qk_norm", true)?;
    fields.expect("use_routing_bias", true)?;
    for beta in ["layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"] {
        fields.expect(beta, 1)?;
    }
    // Unused parts.
    for unused in ["mlp_intermediate_size", "shared_moe_mode"] {
        fields.get(unused);
    }
    fields.expect("shared_intermediate_size", 0)?;
    match fields.optional_list("attn_type_list")? {
        Some(types) if types.iter().any(|kind| kind.as_u64() != Some(1)) => {
            Err(fields.refuse("attn_type_list", "lists other kinds than 1, full softmax attention"))
        }
        _ => Ok(()),
    }
}
