//! Llama: Llama 3.1 and 3.3, SmolLM2 (transformers, `LlamaForCausalLM`).

use super::super::weights::GgufFile;
use super::super::{
    AttentionSpec, DecoderSpec, LayerSpec, MAX_LAYERS, MlpSpec, ModelError, RopeScaling, RopeSpec,
};
use super::Fields;

/// Reads config.json.
pub fn from_hf(config: &Fields) -> Result<DecoderSpec, ModelError> {
    match config.get("hidden_act").and_then(|v| v.as_str()) {
        None | Some("silu") => {}
        Some(other) => {
            return Err(
                config.refuse("hidden_act", format!("is `{other}`; this architecture is built for `silu`"))
            );
        }
    }
    match config.optional_count("pretraining_tp")? {
        None | Some(1) => {}
        Some(n) => {
            return Err(config.refuse("pretraining_tp", format!("is {n}; only 1 gives the published maths")));
        }
    }
    let hidden = config.count("hidden_size")?;
    let heads = config.count("num_attention_heads")?;
    let kv_heads = config.optional_count("num_key_value_heads")?.unwrap_or(heads);
    let head_dim = config.optional_count("head_dim")?.unwrap_or(hidden / heads);
    let layer = LayerSpec {
        attention: AttentionSpec {
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            bias: config.flag("attention_bias", false)?,
            rope: rope(config, head_dim)?,
        },
        mlp: MlpSpec {
            intermediate: config.count("intermediate_size")?,
            bias: config.flag("mlp_bias", false)?,
        },
    };
    check_heads(config, &layer.attention)?;
    let layers = config.count("num_hidden_layers")?;
    if layers > MAX_LAYERS {
        return Err(config.refuse("num_hidden_layers", too_many(layers)));
    }
    Ok(DecoderSpec {
        architecture: "llama",
        vocab: config.count("vocab_size")?,
        hidden,
        norm_eps: config.positive("rms_norm_eps")?,
        tied: config.flag("tie_word_embeddings", false)?,
        max_positions: config.count("max_position_embeddings")?,
        layers: vec![layer; layers],
    })
}

fn too_many(layers: usize) -> String {
    format!("is {layers}; no model has more than {MAX_LAYERS} layers")
}

fn check_heads(config: &Fields, a: &AttentionSpec) -> Result<(), ModelError> {
    if !a.heads.is_multiple_of(a.kv_heads) {
        let problem = format!("is {}, which does not divide the {} attention heads", a.kv_heads, a.heads);
        return Err(config.refuse("num_key_value_heads", problem));
    }
    if !a.head_dim.is_multiple_of(2) || a.head_dim == 0 {
        return Err(
            config.refuse("head_dim", format!("is {}; rotary embedding needs an even number", a.head_dim))
        );
    }
    Ok(())
}

/// Rotary settings, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (earlier).
fn rope(config: &Fields, head_dim: usize) -> Result<RopeSpec, ModelError> {
    let parameters = match config.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => config.object("rope_scaling")?,
    };
    let theta = match &parameters {
        Some(p) if p.get("rope_theta").is_some() => p.positive("rope_theta")?,
        _ => config.optional_positive("rope_theta")?.unwrap_or(10_000.0),
    };
    let scaling = match &parameters {
        None => RopeScaling::None,
        Some(p) => {
            let field = if p.get("rope_type").is_some() { "rope_type" } else { "type" };
            match p.text(field)? {
                "default" => RopeScaling::None,
                "llama3" => RopeScaling::Llama3 {
                    factor: p.positive("factor")?,
                    low: p.positive("low_freq_factor")?,
                    high: p.positive("high_freq_factor")?,
                    original: p.positive("original_max_position_embeddings")?,
                },
                other => {
                    let problem = format!("is `{other}`; llama models are read with `default` or `llama3`");
                    return Err(p.refuse(field, problem));
                }
            }
        }
    };
    Ok(RopeSpec { theta, dims: head_dim, scaling })
}

/// Reads GGUF metadata.
pub fn from_gguf(file: &GgufFile, place: &str) -> Result<DecoderSpec, ModelError> {
    let refuse = |field: &str, problem: String| ModelError::Config {
        place: place.to_owned(),
        field: format!("llama.{field}"),
        problem,
    };
    let optional = |field: &str| -> Result<Option<usize>, ModelError> {
        match file.get::<u64>(&format!("llama.{field}"))? {
            None => Ok(None),
            Some(n @ 1..=0x100_0000) => Ok(Some(n as usize)),
            Some(n) => Err(refuse(field, format!("is {n}, not a whole number from 1 to 16777216"))),
        }
    };
    let count = |field: &str| optional(field)?.ok_or_else(|| refuse(field, "is missing".to_owned()));
    let positive = |field: &str| -> Result<Option<f64>, ModelError> {
        match file.get::<f64>(&format!("llama.{field}"))? {
            Some(x) if !(x.is_finite() && x > 0.0) => {
                Err(refuse(field, format!("is {x}, not a number above 0")))
            }
            found => Ok(found),
        }
    };
    if let Some(kind) = file.get::<&str>("llama.rope.scaling.type")?
        && kind != "none"
    {
        return Err(refuse(
            "rope.scaling.type",
            format!("is `{kind}`; this build reads `none` and `rope_freqs.weight`"),
        ));
    }
    if let Some(experts @ 1..) =
        optional("expert_count").or_else(|e| match file.get::<u64>("llama.expert_count") {
            Ok(Some(0)) => Ok(None),
            _ => Err(e),
        })?
    {
        return Err(refuse("expert_count", format!("is {experts}; this build has no experts for llama")));
    }
    let hidden = count("embedding_length")?;
    let heads = count("attention.head_count")?;
    let kv_heads = optional("attention.head_count_kv")?.unwrap_or(heads);
    let head_dim = optional("attention.key_length")?.unwrap_or(hidden / heads);
    let dims = optional("rope.dimension_count")?.unwrap_or(head_dim);
    if !heads.is_multiple_of(kv_heads) || !head_dim.is_multiple_of(2) || head_dim == 0 || dims != head_dim {
        let problem = format!(
            "is {heads} with {kv_heads} key/value heads of width {head_dim} and {dims} rotary dimensions, which do not fit together"
        );
        return Err(refuse("attention.head_count", problem));
    }
    let vocab =
        file.tensor_info("token_embd.weight").and_then(|info| info.shape.first().copied()).ok_or_else(
            || ModelError::MissingTensor { place: place.to_owned(), name: "token_embd.weight".to_owned() },
        )?;
    let scaling = match file.tensor_info("rope_freqs.weight") {
        None => RopeScaling::None,
        Some(info) if info.elements() == head_dim / 2 => {
            let divisors = file.qtensor("rope_freqs.weight", &candle_core::Device::Cpu)?;
            let divisors: Vec<f32> =
                divisors.dequantize(&candle_core::Device::Cpu)?.flatten_all()?.to_vec1()?;
            RopeScaling::Divisors(divisors.into())
        }
        Some(info) => {
            return Err(ModelError::Shape {
                place: place.to_owned(),
                name: "rope_freqs.weight".to_owned(),
                found: info.shape.clone(),
                expected: vec![head_dim / 2],
            });
        }
    };
    let layers = count("block_count")?;
    if layers > MAX_LAYERS {
        return Err(refuse("block_count", too_many(layers)));
    }
    let layer = LayerSpec {
        attention: AttentionSpec {
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            bias: file.contains("blk.0.attn_q.bias"),
            rope: RopeSpec { theta: positive("rope.freq_base")?.unwrap_or(10_000.0), dims, scaling },
        },
        mlp: MlpSpec { intermediate: count("feed_forward_length")?, bias: false },
    };
    Ok(DecoderSpec {
        architecture: "llama",
        vocab,
        hidden,
        norm_eps: positive("attention.layer_norm_rms_epsilon")?
            .ok_or_else(|| refuse("attention.layer_norm_rms_epsilon", "is missing".to_owned()))?,
        tied: !file.contains("output.weight"),
        max_positions: count("context_length")?,
        layers: vec![layer; layers],
    })
}
