//! A config of either format: one reader for each architecture.

use super::{Fields, Meta};
use crate::model::ModelError;

/// A setting's field in config.json, and its key in GGUF metadata below the architecture's name.
pub type Key = (&'static str, &'static str);

pub enum Config<'r, 'c> {
    Json(&'r Fields<'c>),
    Gguf(&'r Meta<'c>),
}

impl Config<'_, '_> {
    pub fn is_json(&self) -> bool {
        matches!(self, Config::Json(_))
    }

    pub fn refuse(&self, (field, key): Key, problem: impl Into<String>) -> ModelError {
        match self {
            Config::Json(fields) => fields.refuse(field, problem),
            Config::Gguf(meta) => meta.refuse(key, problem),
        }
    }

    pub fn optional_count(&self, (field, key): Key) -> Result<Option<usize>, ModelError> {
        match self {
            Config::Json(fields) => fields.optional_count(field),
            Config::Gguf(meta) => meta.optional_count(key),
        }
    }

    pub fn count(&self, (field, key): Key) -> Result<usize, ModelError> {
        match self {
            Config::Json(fields) => fields.count(field),
            Config::Gguf(meta) => meta.count(key),
        }
    }

    pub fn optional_positive(&self, (field, key): Key) -> Result<Option<f64>, ModelError> {
        match self {
            Config::Json(fields) => fields.optional_positive(field),
            Config::Gguf(meta) => meta.optional_positive(key),
        }
    }

    pub fn flag(&self, (field, key): Key, default: bool) -> Result<bool, ModelError> {
        match self {
            Config::Json(fields) => fields.flag(field, default),
            Config::Gguf(meta) => meta.flag(key, default),
        }
    }

    /// A flag of config.json that GGUF implies by a tensor.
    pub fn flag_or_tensor(&self, (field, tensor): (&str, &str), default: bool) -> Result<bool, ModelError> {
        match self {
            Config::Json(fields) => fields.flag(field, default),
            Config::Gguf(meta) => Ok(meta.has(tensor)),
        }
    }

    /// Rejects a config.json whose string field is none of `wanted`; it may be absent.
    pub fn expect_text(&self, field: &str, wanted: &[&str]) -> Result<(), ModelError> {
        match self {
            Config::Json(fields) => fields.expect_text(field, wanted),
            Config::Gguf(_) => Ok(()),
        }
    }

    /// Number of experts, under one of two names in config.json.
    pub fn experts(&self, field: &str, other: &str) -> Result<usize, ModelError> {
        match self {
            Config::Json(fields) => match fields.optional_count(field)? {
                Some(experts) => Ok(experts),
                None => fields.count(other),
            },
            Config::Gguf(meta) => meta.count("expert_count"),
        }
    }

    /// Rejects a GGUF file whose routing is not `expected` (llama.cpp: 1 softmax, 2 sigmoid, 3 softmax over the selected). A missing key is
    /// accepted.
    pub fn expect_routing(&self, expected: usize) -> Result<(), ModelError> {
        const KEY: &str = "expert_gating_func";
        let Config::Gguf(meta) = self else { return Ok(()) };
        match meta.optional_count(KEY)? {
            Some(n) if n != expected => {
                Err(meta.refuse(KEY, format!("is {n}; this architecture routes by {expected}")))
            }
            _ => Ok(()),
        }
    }

    /// Per layer: whether `layer_types` lists it as of this kind instead of `full_attention`; `None` without such a list.
    pub fn layers_of(&self, kind: &str, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
        const FIELD: &str = "layer_types";
        let Config::Json(fields) = self else { return Ok(None) };
        let Some(list) = fields.optional_list(FIELD)? else { return Ok(None) };
        if list.len() != layers {
            let problem = format!("lists {} layers where `num_hidden_layers` is {layers}", list.len());
            return Err(fields.refuse(FIELD, problem));
        }
        let is_kind = |value: &serde_json::Value| match value.as_str() {
            Some("full_attention") => Ok(false),
            Some(listed) if listed == kind => Ok(true),
            _ => {
                let problem = format!("holds {value}; this architecture has `full_attention` and `{kind}`");
                Err(fields.refuse(FIELD, problem))
            }
        };
        list.iter().map(is_kind).collect::<Result<_, _>>().map(Some)
    }
}
