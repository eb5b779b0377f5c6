//! Nemotron-H and Nemotron 3 Nano (transformers, `NemotronHForCausalLM`): each layer is Mamba-2, attention without positions, a block of
//! squared ReLUs, or experts of such. llama.cpp's files are not read.

use super::base::{Base, EXPERT_INTERMEDIATE, INTERMEDIATE, PER_TOKEN, Unsaid};
use super::config::Config;
use super::mamba::{self, Kind};
use super::{Architecture, Fields, Names};
use crate::model::{
    Activation, DecoderSpec, ExpertsSpec, FeedForwardSpec, LayerNorms, LayerSpec, Mamba2Spec, MixerSpec,
    MlpSpec, ModelError, RopeSpec, Routing,
};

pub const NEMOTRON_H: Architecture =
    Architecture { hf: &["nemotron_h"], gguf: None, released: "nemotron-3-nano-30b-a3b", names: NAMES, spec };

const NAMES: Names = Names {
    hf: &[
        ("^embed_tokens.", "embeddings."),
        ("^norm.", "norm_f."),
        ("input_layernorm", "norm"),
        ("post_attention_layernorm", "norm"),
        ("self_attn.", "mixer."),
        ("mamba.", "mixer."),
        ("mlp.", "mixer."),
    ],
    ..Names::PLAIN
};

const KEYS: mamba::Keys = mamba::Keys {
    heads: "mamba_num_heads",
    head_dim: "mamba_head_dim",
    groups: "n_groups",
    state: "ssm_state_size",
    taps: "conv_kernel",
};
/// Of `NemotronHConfig`.
const LEAST_STEP: f64 = 1e-3;
const EPS: f64 = 1e-5;

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    let Config::Json(fields) = config else { return Err(ModelError::NoFile) };
    let eps = fields.optional_positive("layer_norm_epsilon")?.unwrap_or(EPS);
    // Which transformers takes instead of `time_step_limit`.
    let least_step = fields.optional_positive("time_step_min")?.unwrap_or(LEAST_STEP);
    mamba::least_step(fields)?;
    let conv_bias = fields.flag("use_conv_bias", true)?;
    let bias = fields.flag("use_bias", false)?;
    let mlp_bias = fields.flag("mlp_bias", false)?;
    as_released(fields)?;
    let base = Base { eps, ..Base::read(config, Unsaid { eps: Some(eps), ..Unsaid::default() })? };
    let kinds = mamba::kinds(config, base.layers)?;
    let mamba = Mamba2Spec { heads: mamba::heads(config, &KEYS)?, conv_bias, bias, least_step };
    let mlp = |intermediate| MlpSpec { intermediate, bias: mlp_bias, activation: Activation::SquaredRelu };
    let experts = match kinds.contains(&Kind::Experts) {
        true => Some(experts(config, mlp)?),
        false => None,
    };
    let dense = config.optional_count(INTERMEDIATE)?;
    let layer = |kind: Kind| -> Result<LayerSpec, ModelError> {
        let (mixer, feed_forward) = match kind {
            Kind::Mamba => (MixerSpec::Mamba2(mamba), FeedForwardSpec::None),
            Kind::Attention => (MixerSpec::Attention(base.attention(RopeSpec::NONE)), FeedForwardSpec::None),
            Kind::Experts => (MixerSpec::None, experts.clone().unwrap_or(FeedForwardSpec::None)),
            Kind::Mlp => {
                let width = dense.map_or_else(|| config.count(INTERMEDIATE), Ok)?;
                (MixerSpec::None, FeedForwardSpec::Dense(mlp(width)))
            }
        };
        Ok(LayerSpec { mixer, feed_forward, norms: LayerNorms::Inputs })
    };
    let layers = kinds.into_iter().map(layer).collect::<Result<_, ModelError>>()?;
    Ok(base.decoder(NEMOTRON_H.hf[0], layers))
}

fn experts(config: &Config, mlp: impl Fn(usize) -> MlpSpec) -> Result<FeedForwardSpec, ModelError> {
    const LATENT: (&str, &str) = ("moe_latent_size", "moe_latent_size");
    if let Some(width) = config.optional_count(LATENT)? {
        return Err(config.refuse(LATENT, format!("is {width}; experts of narrower inputs are not built")));
    }
    let count = |key| config.count(key);
    let or_one = |key| config.optional_count(key).map(|count| count.unwrap_or(1));
    let groups = or_one(("n_group", "expert_group_count"))?;
    let kept = or_one(("topk_group", "expert_group_used_count"))?;
    let scale = config.optional_positive(("routed_scaling_factor", "expert_weights_scale"))?;
    let normalise = config.flag(("norm_topk_prob", "expert_weights_norm"), true)?;
    config.optional_count(("n_shared_experts", "expert_shared_count"))?; // one, of the stated width
    Ok(FeedForwardSpec::Experts(ExpertsSpec {
        experts: count(("n_routed_experts", "expert_count"))?,
        per_token: count(PER_TOKEN)?,
        expert: mlp(count(EXPERT_INTERMEDIATE)?),
        routing: Routing::Sigmoid {
            normalise: normalise.then_some(1e-20),
            scale: scale.unwrap_or(1.0),
            groups: (groups > 1).then_some((groups, kept)),
        },
        router_bias: false,
        shared: Some(mlp(count((
            "moe_shared_expert_intermediate_size",
            "expert_shared_feed_forward_length",
        ))?)),
        shared_gate: false,
        own_norms: false,
    }))
}

/// Fields of which released models have one value, and those that change no number, or none where no layer is of their kind.
fn as_released(fields: &Fields) -> Result<(), ModelError> {
    fields.expect("attention_bias", false)?;
    fields.expect("mamba_proj_bias", false)?;
    fields.expect_text("mlp_hidden_act", &["relu2"])?;
    fields.expect_text("mamba_hidden_act", &["silu"])?;
    const UNREAD: &str = "chunk_size expand intermediate_size mamba_ssm_cache_dtype moe_intermediate_size \
        moe_latent_size moe_shared_expert_intermediate_size moe_shared_expert_overlap \
        mtp_hybrid_override_pattern mtp_layers_block_type n_group n_routed_experts \
        n_shared_experts norm_eps norm_topk_prob num_experts_per_tok num_logits_to_keep \
        partial_rotary_factor rescale_prenorm_residual rope_theta routed_scaling_factor \
        time_step_floor time_step_max topk_group use_mamba_kernels";
    for field in UNREAD.split_whitespace() {
        fields.get(field);
    }
    Ok(())
}
