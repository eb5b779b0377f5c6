//! Sizes that every config states, in either format, and the standard specs built from them.

use super::rope::RopeDefaults;
use super::{Fields, Meta};
use crate::model::{
    AttentionBias, AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, MAX_LAYERS, MixerSpec, ModelError,
    NormSpec, QkNorm, RopeScaling, RopeSpec,
};

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
    /// From config.json; `tied` is the architecture's default.
    pub fn from_hf(config: &Fields, tied: bool) -> Result<Self, ModelError> {
        Self::from_hf_or(config, Unsaid { tied, ..Unsaid::default() })
    }

    /// From config.json, for architectures whose released files omit sizes.
    pub fn from_hf_or(config: &Fields, unsaid: Unsaid) -> Result<Self, ModelError> {
        let count = |field: &str, unsaid: Option<usize>| match (config.optional_count(field)?, unsaid) {
            (Some(n), _) | (None, Some(n)) => Ok(n),
            (None, None) => config.count(field),
        };
        let eps = config.optional_positive("rms_norm_eps")?.or(unsaid.eps);
        let hidden = config.count("hidden_size")?;
        let heads = count("num_attention_heads", unsaid.heads)?;
        let base = Base {
            vocab: count("vocab_size", unsaid.vocab)?,
            hidden,
            layers: config.count("num_hidden_layers")?,
            heads,
            kv_heads: config.optional_count("num_key_value_heads")?.or(unsaid.kv_heads).unwrap_or(heads),
            head_dim: config.optional_count("head_dim")?.or(unsaid.head_dim).unwrap_or(hidden / heads),
            eps: match eps {
                Some(eps) => eps,
                None => config.positive("rms_norm_eps")?,
            },
            max_positions: count("max_position_embeddings", unsaid.max_positions)?,
            tied: config.flag("tie_word_embeddings", unsaid.tied)?,
        };
        if base.layers > MAX_LAYERS {
            return Err(config.refuse("num_hidden_layers", too_many(base.layers)));
        }
        if !heads.is_multiple_of(base.kv_heads) {
            let problem = format!("is {}, which does not divide the {heads} attention heads", base.kv_heads);
            return Err(config.refuse("num_key_value_heads", problem));
        }
        if let Some(problem) = head_fault(base.head_dim) {
            return Err(config.refuse("head_dim", problem));
        }
        Ok(base)
    }

    pub fn from_gguf(meta: &Meta) -> Result<Self, ModelError> {
        let hidden = meta.count("embedding_length")?;
        let heads = meta.count("attention.head_count")?;
        let kv_heads = meta.optional_count("attention.head_count_kv")?.unwrap_or(heads);
        let head_dim = meta.optional_count("attention.key_length")?.unwrap_or(hidden / heads);
        let value_dim = meta.optional_count("attention.value_length")?.unwrap_or(head_dim);
        if value_dim != head_dim {
            let problem =
                format!("is {value_dim}, but key heads are {head_dim} wide; only equal widths are read");
            return Err(meta.refuse("attention.value_length", problem));
        }
        if !heads.is_multiple_of(kv_heads) {
            let problem = format!("is {kv_heads}, which does not divide the {heads} attention heads");
            return Err(meta.refuse("attention.head_count_kv", problem));
        }
        if let Some(problem) = head_fault(head_dim) {
            return Err(meta.refuse("attention.key_length", problem));
        }
        // Multi-token prediction layers count in the file but are not run.
        let predicting = meta.optional_count("nextn_predict_layers")?.unwrap_or(0);
        let blocks = meta.count("block_count")?;
        let layers = blocks.checked_sub(predicting).filter(|&n| n > 0).ok_or_else(|| {
            meta.refuse("nextn_predict_layers", format!("is {predicting} of {blocks} layers; none is left"))
        })?;
        if layers > MAX_LAYERS {
            return Err(meta.refuse("block_count", too_many(layers)));
        }
        const EMBEDDING: &str = "token_embd.weight";
        let vocab = (meta.file().tensor_info(EMBEDDING)).and_then(|info| info.shape.first().copied());
        Ok(Base {
            vocab: vocab.ok_or_else(|| ModelError::MissingTensor {
                place: meta.place().to_owned(),
                name: EMBEDDING.to_owned(),
            })?,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            eps: meta.positive("attention.layer_norm_rms_epsilon")?,
            max_positions: meta.count("context_length")?,
            tied: !meta.has("output.weight"),
        })
    }

    /// Default rotary settings: full head, base `theta`.
    pub fn rope_defaults(&self, theta: f64) -> RopeDefaults {
        RopeDefaults { head_dim: self.head_dim, theta, partial: None, max_positions: self.max_positions }
    }

    pub fn attention(&self, rope: RopeSpec) -> AttentionSpec {
        AttentionSpec {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            window: None,
            sinks: false,
            gated: false,
            qk_norm: QkNorm::None,
            bias: AttentionBias::None,
            rope,
        }
    }

    pub fn decoder(self, architecture: &'static str, layers: Vec<LayerSpec>) -> DecoderSpec {
        DecoderSpec {
            architecture,
            vocab: self.vocab,
            hidden: self.hidden,
            norm: NormSpec { eps: self.eps, plus_one: false },
            embedding_scale: None,
            tied: self.tied,
            max_positions: self.max_positions.max(reach(&layers)),
            layers,
        }
    }
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
    LayerSpec { mixer: MixerSpec::Attention(attention), feed_forward, sandwich: false }
}

/// Layer kinds from `layer_types`, each one of `known`; `None` if the config has no such list.
pub fn layer_types<'a>(
    config: &Fields<'a>,
    layers: usize,
    known: &[&str],
) -> Result<Option<Vec<&'a str>>, ModelError> {
    let Some(list) = config.optional_list("layer_types")? else { return Ok(None) };
    if list.len() != layers {
        let problem = format!("lists {} layers where `num_hidden_layers` is {layers}", list.len());
        return Err(config.refuse("layer_types", problem));
    }
    let kind = |value: &'a serde_json::Value| match value.as_str() {
        Some(kind) if known.contains(&kind) => Ok(kind),
        _ => {
            let known = known.join("` and `");
            Err(config.refuse("layer_types", format!("holds {value}; this architecture has `{known}`")))
        }
    };
    list.iter().map(kind).collect::<Result<_, _>>().map(Some)
}

/// Sliding window in tokens; 0 is an error.
pub fn window(config: &Fields) -> Result<usize, ModelError> {
    config.count("sliding_window")
}

/// Rejects a GGUF file whose routing is not `expected` (llama.cpp: 1 softmax, 2 sigmoid, 3 softmax over the selected). A missing key is
/// accepted.
pub fn gating(meta: &Meta, expected: usize) -> Result<(), ModelError> {
    match meta.optional_count("expert_gating_func")? {
        Some(n) if n != expected => {
            let problem = format!("is {n}; this architecture routes by {expected}");
            Err(meta.refuse("expert_gating_func", problem))
        }
        _ => Ok(()),
    }
}

fn head_fault(head_dim: usize) -> Option<String> {
    // Frequencies are computed before tensors are read, so bound their number.
    const WIDEST: usize = 1 << 16;
    if !head_dim.is_multiple_of(2) || head_dim == 0 {
        Some(format!("is {head_dim}; rotary embedding needs an even number"))
    } else {
        (head_dim > WIDEST).then(|| format!("is {head_dim}; no model has heads wider than {WIDEST}"))
    }
}

fn too_many(layers: usize) -> String {
    format!("is {layers}; no model has more than {MAX_LAYERS} layers")
}
