//! Latent attention whose rows choose their keys: DeepSeek-V3.2 and GLM-5 (transformers, `DeepseekV32ForCausalLM`,
//! `GlmMoeDsaForCausalLM`).

use serde_json::Value;

use super::deepseek::sigmoid_decoder;
use super::{Architecture, Config, Fields, latent};
use crate::model::{AttentionSpec, DecoderSpec, IndexerSpec, MixerSpec, ModelError, Sees};

pub const DEEPSEEK_V32: Architecture = Architecture {
    hf: &["deepseek_v32"],
    gguf: None,
    released: "deepseek-v3.2",
    names: latent::NAMES,
    spec: deepseek_v32,
};
pub const GLM_MOE_DSA: Architecture = Architecture {
    hf: &["glm_moe_dsa"],
    gguf: None,
    released: "glm-5",
    names: latent::NAMES,
    spec: glm_moe_dsa,
};

fn deepseek_v32(config: &Config) -> Result<DecoderSpec, ModelError> {
    let spec = sigmoid_decoder(config, "deepseek_v32", 3)?;
    let fields = json(config)?;
    let all = vec![true; spec.layers.len()];
    choosing(fields, spec, &all, false)
}

fn glm_moe_dsa(config: &Config) -> Result<DecoderSpec, ModelError> {
    let spec = sigmoid_decoder(config, "glm_moe_dsa", 3)?;
    let fields = json(config)?;
    fields.expect_text("moe_router_dtype", &["float32"])?;
    let own = with_indexers(fields, spec.layers.len())?;
    choosing(fields, spec, &own, true)
}

/// No GGUF file is read as one of these.
fn json<'r, 'c>(config: &Config<'r, 'c>) -> Result<&'r Fields<'c>, ModelError> {
    match config {
        Config::Json(fields) => Ok(fields),
        Config::Gguf(_) => Err(ModelError::NoFile),
    }
}

/// `own`: the layers with an indexer; others see what the last one before chose. `interleaved`: neighbours turn together in indexers.
fn choosing(
    fields: &Fields,
    mut spec: DecoderSpec,
    own: &[bool],
    interleaved: bool,
) -> Result<DecoderSpec, ModelError> {
    const TYPES: &str = "layer_types";
    let types = fields.optional_list(TYPES)?;
    let sparse =
        |kind: &Value| matches!(kind.as_str(), Some("indexed_attention" | "deepseek_sparse_attention"));
    if types.is_some_and(|types| types.len() != own.len() || !types.iter().all(sparse)) {
        let problem = format!("does not list {} layers of sparse attention", own.len());
        return Err(fields.refuse(TYPES, problem));
    }
    fields.expect("indexer_rope_interleave", interleaved)?;
    let indexer = IndexerSpec {
        heads: fields.count("index_n_heads")?,
        width: fields.count("index_head_dim")?,
        keys: fields.count("index_topk")?,
        interleaved,
    };
    for (layer, own) in spec.layers.iter_mut().zip(own) {
        let MixerSpec::Attention(AttentionSpec { latent: Some(latent), rope, .. }) = &mut layer.mixer else {
            continue;
        };
        if latent.query_rank.is_none() {
            return Err(fields.refuse("q_lora_rank", "is missing; indexers take queries of that width"));
        }
        if indexer.width < rope.dims {
            let problem = format!("is {}, less than the {} dimensions that turn", indexer.width, rope.dims);
            return Err(fields.refuse("index_head_dim", problem));
        }
        latent.sees = if *own { Sees::Chosen(indexer) } else { Sees::AsBefore };
    }
    Ok(spec)
}

/// The layers with an indexer: as listed, or by a pattern, or every so many (transformers, `GlmMoeDsaConfig`).
fn with_indexers(fields: &Fields, layers: usize) -> Result<Vec<bool>, ModelError> {
    const TYPES: &str = "indexer_types";
    const PATTERN: &str = "index_topk_pattern";
    let every = fields.optional_number("index_topk_freq")?.unwrap_or(1).max(1);
    let offset = fields.optional_number("index_skip_topk_offset")?.unwrap_or(2);
    // Of the layer that predicts further tokens, which is not run.
    fields.get("index_share_for_mtp_iteration");
    let pattern = fields.get(PATTERN);
    let letters = pattern.and_then(Value::as_str);
    let own = |kind: &Value| match kind.as_str() {
        Some("full") => Some(true),
        Some("shared") => Some(false),
        _ => None,
    };
    let own: Option<Vec<bool>> = match (fields.optional_list(TYPES)?, letters, pattern) {
        (Some(types), ..) | (None, None, Some(Value::Array(types))) => types.iter().map(own).collect(),
        (None, Some(letters), _) => {
            let own = |letter| match letter {
                'F' => Some(true),
                'S' => Some(false),
                _ => None,
            };
            letters.chars().map(own).collect()
        }
        (None, None, Some(_)) => None,
        (None, None, None) => {
            Some((0..layers).map(|i| (i + 1).saturating_sub(offset).is_multiple_of(every)).collect())
        }
    };
    match own.filter(|own| own.len() == layers && own.first() == Some(&true)) {
        Some(own) => Ok(own),
        None => {
            let problem = format!(
                "does not give {layers} layers an indexer of their own (`full`) or that of a layer before (`shared`), the first one its \
                 own"
            );
            Err(fields.refuse(if fields.states(TYPES) { TYPES } else { PATTERN }, problem))
        }
    }
}
