//! Model facts from its headers, for `model info`: GGUF metadata, or config.json and safetensors headers. Loads no weights. Fields that the
//! files do not state are `None`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value as Json;

use palimpsest_core::model::weights::gguf::FromValue;
use palimpsest_core::model::weights::{GgufFile, SafetensorsFolder};
use palimpsest_core::model::{ModelFiles, ModelKind, arch};

use super::error::cannot;
use crate::progress::grouped;
use palimpsest_data::ground::order::entry;

#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// `general.architecture`, or `model_type` in config.json.
    pub architecture: Option<String>,
    /// Elements of all stored tensors; a tied output matrix stored once counts once.
    pub parameters: u64,
    pub layers: Option<u64>,
    pub hidden: Option<u64>,
    pub heads: Option<u64>,
    pub kv_heads: Option<u64>,
    pub head_dim: Option<u64>,
    pub vocab: Option<u64>,
    /// Trained context, tokens.
    pub context: Option<u64>,
    /// Sliding window of local layers, tokens.
    pub window: Option<u64>,
    pub rope_theta: Option<f64>,
    pub rope_scaling: Option<String>,
    /// (dtype, tensors, elements), most elements first.
    pub dtypes: Vec<(String, usize, u64)>,
    pub file_bytes: u64,
    pub files: usize,
    /// Weight-like safetensors files in the folder that are not read.
    pub left: Vec<String>,
    pub chat_template: bool,
    pub licence: Option<String>,
}

pub fn describe(files: &ModelFiles) -> anyhow::Result<ModelInfo> {
    match &files.kind {
        ModelKind::Gguf(parts) => describe_gguf(parts),
        ModelKind::Folder(dir) => describe_folder(dir),
    }
}

fn describe_gguf(parts: &[PathBuf]) -> anyhow::Result<ModelInfo> {
    let file = GgufFile::open(parts)?;
    let architecture = file.get::<&str>("general.architecture")?.map(str::to_string);
    let prefix = architecture.clone().unwrap_or_default();
    // Some architectures give one number per layer; take the largest.
    let number = |key: &str| {
        let value = file.value(&format!("{prefix}.{key}"))?;
        u64::from_value(value).or_else(|| Vec::<u64>::from_value(value)?.into_iter().max())
    };
    let hidden = number("embedding_length");
    let heads = number("attention.head_count");
    let mut dtypes = Vec::new();
    for info in file.tensors() {
        count(&mut dtypes, info.dtype.name(), info.elements() as u64);
    }
    let tokens = file.get::<&[String]>("tokenizer.ggml.tokens")?.map(|tokens| tokens.len() as u64);
    let scaling = file.get::<&str>(&format!("{prefix}.rope.scaling.type"))?.filter(|kind| *kind != "none");
    let factor = file.get::<f64>(&format!("{prefix}.rope.scaling.factor"))?;
    let original = number("rope.scaling.original_context_length");
    Ok(ModelInfo {
        parameters: dtypes.iter().map(|(_, _, elements)| elements).sum(),
        layers: number("block_count"),
        hidden,
        heads,
        kv_heads: number("attention.head_count_kv").or(heads),
        head_dim: number("attention.key_length").or_else(|| hidden?.checked_div(heads?)),
        vocab: tokens.or(number("vocab_size")),
        context: number("context_length"),
        window: number("attention.sliding_window"),
        rope_theta: file.get(&format!("{prefix}.rope.freq_base"))?,
        rope_scaling: scaling.map(|kind| scaling_text(kind, factor, original)),
        dtypes: most_first(dtypes),
        file_bytes: file.file_bytes(),
        files: parts.len(),
        left: Vec::new(),
        chat_template: file.value("tokenizer.chat_template").is_some(),
        licence: file.get::<&str>("general.license")?.map(str::to_string),
        architecture,
    })
}

fn describe_folder(dir: &Path) -> anyhow::Result<ModelInfo> {
    let config = read_json(&dir.join("config.json"))?;
    // Multimodal checkpoints nest the language model's config.
    let text = config.get("text_config").filter(|inner| inner.is_object()).unwrap_or(&config);
    let number = |key: &str| text.get(key).and_then(Json::as_u64);
    let hidden = number("hidden_size");
    let heads = number("num_attention_heads");
    let weights = SafetensorsFolder::open(dir)?;
    let mut dtypes = Vec::new();
    for name in weights.names() {
        if let (Some(shape), Some(dtype)) = (weights.shape(name), weights.dtype(name)) {
            count(&mut dtypes, &format!("{dtype:?}"), shape.iter().map(|&length| length as u64).product());
        }
    }
    // Newer configs use `rope_parameters`; the older field takes precedence.
    let older = text.get("rope_scaling").filter(|rope| rope.as_object().is_some_and(|all| !all.is_empty()));
    let rope = older.or_else(|| text.get("rope_parameters")).filter(|rope| rope.is_object());
    let in_rope = |key: &str| rope.and_then(|rope| rope.get(key));
    let scaling = in_rope("rope_type")
        .or_else(|| in_rope("type"))
        .and_then(Json::as_str)
        .filter(|kind| *kind != "default");
    // With YaRN the decoder uses its extended length, whatever else the file states.
    let original = in_rope("original_max_position_embeddings").and_then(Json::as_u64);
    let reach = scaling
        .filter(|kind| *kind == "yarn")
        .and_then(|_| Some((in_rope("factor").and_then(Json::as_f64)? * original? as f64).round() as u64));
    // LongRoPE is built up to its first context.
    let short = number("original_max_position_embeddings")
        .filter(|_| matches!(scaling, Some("longrope" | "su")))
        .unwrap_or(u64::MAX);
    let tokenizer_config = dir.join("tokenizer_config.json");
    let chat_template = dir.join("chat_template.jinja").is_file()
        || (tokenizer_config.is_file()
            && read_json(&tokenizer_config)?.get("chat_template").is_some_and(|t| !t.is_null()));
    Ok(ModelInfo {
        architecture: config.get("model_type").and_then(Json::as_str).map(str::to_string),
        parameters: dtypes.iter().map(|(_, _, elements)| elements).sum(),
        layers: number("num_hidden_layers"),
        hidden,
        heads,
        kv_heads: number("num_key_value_heads").or(heads),
        head_dim: number("head_dim").or_else(|| hidden?.checked_div(heads?)),
        vocab: number("vocab_size"),
        context: number("max_position_embeddings").map(|stated| stated.max(reach.unwrap_or(0)).min(short)),
        window: number("sliding_window")
            .filter(|_| text.get("use_sliding_window").and_then(Json::as_bool) != Some(false)),
        rope_theta: text.get("rope_theta").or_else(|| in_rope("rope_theta")).and_then(Json::as_f64),
        rope_scaling: scaling
            .map(|kind| scaling_text(kind, in_rope("factor").and_then(Json::as_f64), original)),
        dtypes: most_first(dtypes),
        file_bytes: weights.file_bytes(),
        files: weights.paths().count(),
        left: weights.left().collect(),
        chat_template,
        licence: None,
    })
}

fn read_json(path: &Path) -> anyhow::Result<Json> {
    let bytes = std::fs::read(path).with_context(cannot("read", path))?;
    let invalid = || format!("{} is not valid JSON; fetch it again", path.display());
    arch::parse(&bytes).with_context(invalid)
}

fn count(dtypes: &mut Vec<(String, usize, u64)>, name: &str, elements: u64) {
    let (_, tensors, sum) = entry(dtypes, |(known, ..)| known == name, || (name.to_string(), 0, 0));
    *tensors += 1;
    *sum = sum.saturating_add(elements);
}

fn most_first(mut dtypes: Vec<(String, usize, u64)>) -> Vec<(String, usize, u64)> {
    dtypes.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    dtypes
}

fn scaling_text(kind: &str, factor: Option<f64>, original: Option<u64>) -> String {
    let mut text = kind.to_string();
    if let Some(factor) = factor {
        text += &format!(", factor {factor}");
    }
    if let Some(original) = original {
        text += &format!(", over {} tokens", grouped(original));
    }
    text
}
