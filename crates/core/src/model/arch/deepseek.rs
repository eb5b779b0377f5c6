//! Latent attention with experts: DeepSeek-V2 and V3, Kimi K2, Moonlight, GLM-4.7-Flash, Mistral Small 4 (transformers,
//! `DeepseekV2ForCausalLM`, `DeepseekV3ForCausalLM`, `Glm4MoeLiteForCausalLM`, `Mistral4ForCausalLM`).

use super::base::{Base, EXPERT_INTERMEDIATE, INTERMEDIATE, PER_TOKEN, Unsaid, layer, silu};
use super::{Architecture, Config, latent};
use crate::model::{DecoderSpec, ExpertsSpec, FeedForwardSpec, ModelError, Routing};

/// llama.cpp's name is that of all of them but Mistral's.
pub const V2: Architecture = Architecture {
    hf: &["deepseek_v2"],
    gguf: Some("deepseek2"),
    released: "deepseek-v2-lite-chat",
    names: latent::NAMES,
    spec: v2,
};
pub const V3: Architecture = Architecture {
    hf: &["deepseek_v3", "kimi_k2"],
    gguf: None,
    released: "deepseek-v3",
    names: latent::NAMES,
    spec: v3,
};
pub const GLM4_MOE_LITE: Architecture = Architecture {
    hf: &["glm4_moe_lite"],
    gguf: None,
    released: "glm-4.7-flash",
    names: latent::NAMES,
    spec: glm4_moe_lite,
};
pub const MISTRAL4: Architecture = Architecture {
    hf: &["mistral4", "mistral3"],
    gguf: None,
    released: "mistral-small-4-119b",
    names: latent::NAMES,
    spec: mistral4,
};

/// (groups of experts, groups kept), if they are limited.
type Groups = Option<(usize, usize)>;
/// From the epsilon of the weights' sum, if they are divided by it, their scale, and the groups.
type Route = fn(Option<f64>, f64, Groups) -> Routing;

fn v2(config: &Config) -> Result<DecoderSpec, ModelError> {
    const METHOD: &str = "topk_method";
    let greedy: Route =
        |_, scale, _| Routing::SoftmaxGroups { normalise: None, scale, groups: None, best: 1 };
    let limited: Route =
        |_, scale, groups| Routing::SoftmaxGroups { normalise: None, scale, groups, best: 1 };
    match config {
        Config::Json(fields) => {
            fields.expect_text("scoring_func", &["softmax"])?;
            fields.expect_text(METHOD, &["greedy", "group_limited_greedy"])?;
            fields.expect("norm_topk_prob", false)?;
            let by_groups = fields.optional_text(METHOD)? == Some("group_limited_greedy");
            decoder(config, "deepseek_v2", 0, if by_groups { limited } else { greedy }, false)
        }
        Config::Gguf(meta) => {
            // Older files say nothing; then the correction of the first routed layer tells.
            let first = meta.optional_count("leading_dense_block_count")?.unwrap_or(0);
            let corrected = meta.has(&format!("blk.{first}.exp_probs_b.bias"));
            match meta.optional_count("expert_gating_func")? {
                Some(2) => return v3(config),
                None if corrected => return v3(config),
                _ => config.expect_routing(1)?,
            }
            if meta.flag("expert_weights_norm", false)? {
                return Err(
                    meta.refuse("expert_weights_norm", "is true; softmax weights are built without it")
                );
            }
            decoder(config, "deepseek_v2", 0, limited, false)
        }
    }
}

fn v3(config: &Config) -> Result<DecoderSpec, ModelError> {
    sigmoid_decoder(config, "deepseek_v3", 3)
}

fn glm4_moe_lite(config: &Config) -> Result<DecoderSpec, ModelError> {
    sigmoid_decoder(config, "glm4_moe_lite", 1)
}

fn mistral4(config: &Config) -> Result<DecoderSpec, ModelError> {
    let softmax: Route =
        |normalise, scale, groups| Routing::SoftmaxGroups { normalise, scale, groups, best: 2 };
    decoder(config, "mistral4", 0, softmax, true)
}

/// `first_dense`: leading layers without experts, where the config does not say.
pub fn sigmoid_decoder(
    config: &Config,
    name: &'static str,
    first_dense: usize,
) -> Result<DecoderSpec, ModelError> {
    config.expect_text("scoring_func", &["sigmoid"])?;
    config.expect_text("topk_method", &["noaux_tc"])?;
    let sigmoid: Route = |normalise, scale, groups| Routing::Sigmoid { normalise, scale, groups };
    decoder(config, name, first_dense, sigmoid, false)
}

/// `first_dense`: leading layers without experts, where the config does not say; `query_beta`: queries are scaled by position.
fn decoder(
    config: &Config,
    name: &'static str,
    first_dense: usize,
    route: Route,
    query_beta: bool,
) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_act", &["silu"])?;
    let base = Base::read(config, Unsaid::default())?;
    let attention = latent::attention(config, &base, query_beta)?;
    let first_dense = dense_layers(config, base.layers, first_dense)?;
    let or_one = |key| config.optional_count(key).map(|count| count.unwrap_or(1));
    let groups =
        (or_one(("n_group", "expert_group_count"))?, or_one(("topk_group", "expert_group_used_count"))?);
    let normalise = config.flag(("norm_topk_prob", "expert_weights_norm"), config.is_json())?;
    let scale = config.optional_positive(("routed_scaling_factor", "expert_weights_scale"))?.unwrap_or(1.0);
    let width = config.count(EXPERT_INTERMEDIATE)?;
    let sparse = FeedForwardSpec::Experts(ExpertsSpec {
        experts: config.experts("n_routed_experts", "num_local_experts")?,
        per_token: config.count(PER_TOKEN)?,
        expert: silu(width),
        routing: route(normalise.then_some(1e-20), scale, (groups.0 > 1).then_some(groups)),
        router_bias: false,
        shared: Some(silu(width * or_one(("n_shared_experts", "expert_shared_count"))?)),
        shared_gate: false,
        own_norms: false,
    });
    let dense = FeedForwardSpec::Dense(silu(config.count(INTERMEDIATE)?));
    let feed_forward = |i: usize| if i < first_dense { dense.clone() } else { sparse.clone() };
    let layers = (0..base.layers).map(|i| layer(attention.clone(), feed_forward(i)));
    Ok(base.decoder(name, layers.collect()))
}

/// Leading layers without experts; `unsaid` where the config says nothing.
fn dense_layers(config: &Config, layers: usize, unsaid: usize) -> Result<usize, ModelError> {
    const TYPES: &str = "mlp_layer_types";
    let fields = match config {
        Config::Gguf(meta) => return Ok(meta.optional_count("leading_dense_block_count")?.unwrap_or(0)),
        Config::Json(fields) => fields,
    };
    let first = fields.optional_number("first_k_dense_replace")?.unwrap_or(unsaid);
    let Some(types) = fields.optional_list(TYPES)? else { return Ok(first) };
    let dense = types.iter().take_while(|kind| kind.as_str() == Some("dense")).count();
    let sparse = types.iter().skip(dense).all(|kind| kind.as_str() == Some("sparse"));
    match sparse && types.len() == layers {
        true => Ok(dense),
        false => {
            let problem = format!("does not list {layers} layers, `dense` ones and then `sparse` ones");
            Err(fields.refuse(TYPES, problem))
        }
    }
}
