//! Gemma 4, text part (transformers, `Gemma4ForCausalLM`, and of its 12B `Gemma4UnifiedForCausalLM`).

use super::base::{Base, EXPERT_INTERMEDIATE, Unsaid, WINDOW, bias};
use super::gemma3::ropes;
use super::{Architecture, Config};
use crate::model::{
    Activation, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForwardSpec, KeyValues, LayerNorms, LayerSpec,
    MixerSpec, MlpSpec, ModelError, QkNorm, Routing,
};

mod layout;
mod names;

use layout::{Heads, Layout};

pub const GEMMA4: Architecture = Architecture {
    hf: &["gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified"],
    gguf: Some("gemma4"),
    released: "gemma4-e4b",
    names: names::NAMES,
    spec,
};

/// Defaults of `Gemma4TextConfig`.
const UNSAID: Unsaid = Unsaid {
    tied: true,
    vocab: Some(262_144),
    heads: Some(8),
    kv_heads: Some(4),
    head_dim: Some(256),
    eps: Some(1e-6),
    max_positions: Some(131_072),
};

/// Rotary bases of global and of sliding-window layers.
const THETA: f64 = 1_000_000.0;
const LOCAL_THETA: f64 = 10_000.0;

fn spec(config: &Config) -> Result<DecoderSpec, ModelError> {
    config.expect_text("hidden_activation", &["gelu_pytorch_tanh"])?;
    // Of images alone; text is causal.
    config.expect_text("use_bidirectional_attention", &["vision"])?;
    let base = Base::read(config, UNSAID)?;
    let layout = Layout::read(config, &base)?;
    let theta = match config {
        Config::Json(fields) if fields.object("rope_parameters")?.is_none() => {
            return Err(fields.refuse("rope_parameters", "is missing"));
        }
        Config::Json(_) => None,
        Config::Gguf(meta) => meta.optional_positive("rope.freq_base_swa")?,
    };
    let [local, global] = layout.heads;
    let defaults = |Heads { head_dim, .. }, theta| Base { head_dim, ..base }.rope_defaults(theta);
    let (rope, local_rope) =
        ropes(config, defaults(global, THETA), defaults(local, theta.unwrap_or(LOCAL_THETA)))?;
    let (window, bias) = (config.count(WINDOW)?, bias(config, false)?);
    let own = base.layers.saturating_sub(layout.shared);
    let key_values = |i: usize| match layout.slides[..own].iter().rposition(|kind| *kind == layout.slides[i])
    {
        _ if i < own && layout.tied[i] => Ok(KeyValues::Tied),
        _ if i < own => Ok(KeyValues::Projected),
        Some(source) => Ok(KeyValues::Of(source)),
        None => {
            let key = ("num_kv_shared_layers", "attention.shared_kv_layers");
            let problem = format!("is {}, and no layer before them is like layer {i}", layout.shared);
            Err(config.refuse(key, problem))
        }
    };
    let mlp = |intermediate| MlpSpec { intermediate, bias: false, activation: Activation::GeluTanh };
    let experts = layout.sparse.then(|| experts(config, mlp)).transpose()?;
    let layers = (0..base.layers).map(|i| {
        let (Heads { head_dim, kv_heads }, rope) =
            if layout.slides[i] { (local, &local_rope) } else { (global, &rope) };
        let attention = AttentionSpec {
            scale: 1.0,
            window: layout.slides[i].then_some(window),
            bias,
            qk_norm: QkNorm::PerHead,
            value_norm: true,
            key_values: key_values(i)?,
            ..Base { head_dim, kv_heads, ..base }.attention(rope.clone())
        };
        let dense = mlp(layout.widths[i]);
        let feed_forward = match &experts {
            None => FeedForwardSpec::Dense(dense),
            Some(experts) => FeedForwardSpec::Experts(ExpertsSpec { shared: Some(dense), ..experts.clone() }),
        };
        Ok(LayerSpec { mixer: MixerSpec::Attention(attention), feed_forward, norms: LayerNorms::Both })
    });
    let layers = layers.collect::<Result<_, ModelError>>()?;
    Ok(DecoderSpec {
        embedding_scale: Some((base.hidden as f64).sqrt()),
        logit_cap: config.optional_positive(("final_logit_softcapping", "final_logit_softcapping"))?,
        layer_inputs: layout.inputs,
        layer_scalars: layout.scalars,
        ..base.decoder("gemma4_text", layers)
    })
}

fn experts(config: &Config, mlp: impl Fn(usize) -> MlpSpec) -> Result<ExpertsSpec, ModelError> {
    config.expect_routing(1)?;
    Ok(ExpertsSpec {
        experts: config.count(("num_experts", "expert_count"))?,
        per_token: config.count(("top_k_experts", "expert_used_count"))?,
        expert: mlp(config.count(EXPERT_INTERMEDIATE)?),
        routing: Routing::SoftmaxTopK { normalise: true },
        router_bias: false,
        shared: None,
        shared_gate: false,
        own_norms: true,
    })
}
