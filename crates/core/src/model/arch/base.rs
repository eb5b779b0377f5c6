//! Sizes that every config states, and the standard specs built from them.

use super::config::{Config, Key};
use super::fields::Fields;
use super::rope::RopeDefaults;
use crate::model::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, FeedForwardSpec, KeyValues, LayerNorms, LayerSpec,
    MAX_LAYERS, MixerSpec, MlpSpec, ModelError, NormSpec, OutputGate, QkNorm, RopeScaling, RopeSpec,
};

const KV_HEADS: Key = ("num_key_value_heads", "attention.head_count_kv");
const HEAD_DIM: Key = ("head_dim", "attention.key_length");
const EPS: Key = ("rms_norm_eps", "attention.layer_norm_rms_epsilon");
pub const INTERMEDIATE: Key = ("intermediate_size", "feed_forward_length");
pub const PER_TOKEN: Key = ("num_experts_per_tok", "expert_used_count");
pub const EXPERT_INTERMEDIATE: Key = ("moe_intermediate_size", "expert_feed_forward_length");
pub const WINDOW: Key = ("sliding_window", "attention.sliding_window");

#[derive(Debug, Clone, Copy)]
pub struct Base {
    /// Vocabulary size (embedding rows).
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    pub eps: f64,
    /// Maximum context of the model.
    pub max_positions: usize,
    /// The output head is the embedding.
    pub tied: bool,
}

/// Defaults for fields missing in config.json; `None` if the field is required.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unsaid {
    pub tied: bool,
    /// Vocabulary size (embedding rows).
    pub vocab: Option<usize>,
    pub heads: Option<usize>,
    /// Key/value heads; default: query heads.
    pub kv_heads: Option<usize>,
    /// Width of a head; default: hidden / heads.
    pub head_dim: Option<usize>,
    pub eps: Option<f64>,
    /// Maximum context of the model.
    pub max_positions: Option<usize>,
}

impl Base {
    /// `unsaid`: the architecture's defaults in config.json.
    pub fn read(config: &Config, unsaid: Unsaid) -> Result<Self, ModelError> {
        let unsaid = if config.is_json() { unsaid } else { Unsaid::default() };
        let count = |key: Key, unsaid: Option<usize>| match config.optional_count(key)?.or(unsaid) {
            Some(n) => Ok(n),
            None => config.count(key),
        };
        let hidden = config.count(("hidden_size", "embedding_length"))?;
        let heads = count(("num_attention_heads", "attention.head_count"), unsaid.heads)?;
        let kv_heads = config.optional_count(KV_HEADS)?.or(unsaid.kv_heads).unwrap_or(heads);
        let head_dim = config.optional_count(HEAD_DIM)?.or(unsaid.head_dim).unwrap_or(hidden / heads);
        let eps = config.optional_positive(EPS)?.or(unsaid.eps);
        let max_positions = count(("max_position_embeddings", "context_length"), unsaid.max_positions)?;
        let (vocab, layers, tied) = match config {
            Config::Json(fields) => (
                count(("vocab_size", ""), unsaid.vocab)?,
                layers(fields)?,
                fields.flag("tie_word_embeddings", unsaid.tied)?,
            ),
            Config::Gguf(meta) => {
                let value_dim = meta.optional_count("attention.value_length")?.unwrap_or(head_dim);
                // Latent attention has widths of its own.
                if value_dim != head_dim && !meta.has("blk.0.attn_kv_a_mqa.weight") {
                    let problem = format!(
                        "is {value_dim}, but key heads are {head_dim} wide; only equal widths are read"
                    );
                    return Err(meta.refuse("attention.value_length", problem));
                }
                (meta.vocab()?, meta.layers()?, !meta.has("output.weight"))
            }
        };
        if layers > MAX_LAYERS {
            let problem = format!("is {layers}; no model has more than {MAX_LAYERS} layers");
            return Err(config.refuse(("num_hidden_layers", "block_count"), problem));
        }
        if !heads.is_multiple_of(kv_heads) {
            let problem = format!("is {kv_heads}, which does not divide the {heads} attention heads");
            return Err(config.refuse(KV_HEADS, problem));
        }
        if let Some(problem) = head_fault(head_dim) {
            return Err(config.refuse(HEAD_DIM, problem));
        }
        let eps = eps.ok_or_else(|| config.refuse(EPS, "is missing"))?;
        Ok(Base { vocab, hidden, layers, heads, kv_heads, head_dim, eps, max_positions, tied })
    }

    /// Default rotary settings: full head, base `theta`.
    pub fn rope_defaults(&self, theta: f64) -> RopeDefaults {
        let Base { head_dim, max_positions, .. } = *self;
        RopeDefaults {
            head_dim,
            theta,
            partial: None,
            max_positions,
            truncate: true,
            original: None,
            query_beta: false,
            latent: false,
        }
    }

    pub fn attention(&self, rope: RopeSpec) -> AttentionSpec {
        AttentionSpec {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            window: None,
            sinks: false,
            gate: OutputGate::None,
            qk_norm: QkNorm::None,
            value_norm: false,
            key_values: KeyValues::Projected,
            bias: AttentionBias::None,
            rope,
            latent: None,
        }
    }

    pub fn decoder(self, architecture: &'static str, layers: Vec<LayerSpec>) -> DecoderSpec {
        DecoderSpec {
            architecture,
            vocab: self.vocab,
            hidden: self.hidden,
            norm: NormSpec { eps: self.eps, plus_one: false },
            embedding_scale: None,
            residual_scale: None,
            logit_divisor: None,
            logit_cap: None,
            layer_inputs: None,
            layer_scalars: false,
            tied: self.tied,
            max_positions: self.max_positions.max(reach(&layers)).min(limit(&layers)),
            layers,
        }
    }
}

/// Layers, by their number or their list.
fn layers(fields: &Fields) -> Result<usize, ModelError> {
    const NUMBER: &str = "num_hidden_layers";
    if let Some(layers) = fields.optional_count(NUMBER)? {
        return Ok(layers);
    }
    match fields.optional_list("layers_block_type")? {
        Some(list) if !list.is_empty() => Ok(list.len()),
        _ => fields.count(NUMBER),
    }
}

/// Context that the rotary frequencies are for.
fn limit(layers: &[LayerSpec]) -> usize {
    let limits = layers.iter().filter_map(LayerSpec::attention).filter_map(|a| a.rope.limit());
    limits.min().unwrap_or(usize::MAX)
}

/// Context that YaRN extends to; 0 without YaRN. Model cards add the scaling only and keep `max_position_embeddings`.
fn reach(layers: &[LayerSpec]) -> usize {
    // Larger values mean a damaged file.
    const MOST: f64 = (1u64 << 32) as f64;
    let scaled =
        layers.iter().filter_map(LayerSpec::attention).map(|attention| match &attention.rope.scaling {
            RopeScaling::Yarn(yarn) => (yarn.factor * yarn.original).round(),
            _ => 0.0,
        });
    scaled.filter(|positions| *positions <= MOST).fold(0.0, f64::max) as usize
}

pub fn layer(attention: AttentionSpec, feed_forward: FeedForwardSpec) -> LayerSpec {
    LayerSpec { mixer: MixerSpec::Attention(attention), feed_forward, norms: LayerNorms::Inputs }
}

/// A gated block with SiLU.
pub fn silu(intermediate: usize) -> MlpSpec {
    MlpSpec { intermediate, bias: false, activation: Activation::Silu }
}

/// Biases of all projections, or of none.
pub fn bias(config: &Config, default: bool) -> Result<AttentionBias, ModelError> {
    let biased = config.flag_or_tensor(("attention_bias", "blk.0.attn_q.bias"), default)?;
    Ok(if biased { AttentionBias::All } else { AttentionBias::None })
}

/// A fault in the number of dimensions that a head rotates in, if any.
pub fn head_fault(head_dim: usize) -> Option<String> {
    // Frequencies are computed before tensors are read, so bound their number.
    const WIDEST: usize = 1 << 16;
    if !head_dim.is_multiple_of(2) || head_dim == 0 {
        Some(format!("is {head_dim}; rotary embedding needs an even number"))
    } else {
        (head_dim > WIDEST).then(|| format!("is {head_dim}; no model has heads wider than {WIDEST}"))
    }
}
