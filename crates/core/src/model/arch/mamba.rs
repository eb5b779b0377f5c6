//! Mamba-2 layers in configs: their sizes, and which layers they are.

use serde_json::Value;

use super::config::{Config, Key};
use super::fields::Fields;
use crate::model::{DeltaNetSpec, ModelError};

/// Kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

/// Where a config states the sizes; in GGUF files always at the same place.
pub struct Keys {
    pub heads: &'static str,
    pub head_dim: &'static str,
    pub groups: &'static str,
    pub state: &'static str,
    pub taps: &'static str,
}

pub fn heads(config: &Config, keys: &Keys) -> Result<DeltaNetSpec, ModelError> {
    const INNER: &str = "ssm.inner_size";
    let (groups, taps): (Key, Key) = ((keys.groups, "ssm.group_count"), (keys.taps, "ssm.conv_kernel"));
    let value_heads = config.count((keys.heads, "ssm.time_step_rank"))?;
    let key_heads = config.count(groups)?;
    let value_dim = match config {
        Config::Json(fields) => fields.count(keys.head_dim)?,
        Config::Gguf(meta) => {
            let inner = meta.count(INNER)?;
            if !inner.is_multiple_of(value_heads) {
                return Err(meta.refuse(INNER, format!("is {inner}, no multiple of the {value_heads} heads")));
            }
            inner / value_heads
        }
    };
    if !value_heads.is_multiple_of(key_heads) {
        let problem = format!("is {key_heads}, which does not divide the {value_heads} heads");
        return Err(config.refuse(groups, problem));
    }
    let conv = config.count(taps)?;
    if conv < 2 {
        let problem = "is 1, a convolution that sees no earlier token; the layers here have 2 taps and more";
        return Err(config.refuse(taps, problem));
    }
    let key_dim = config.count((keys.state, "ssm.state_size"))?;
    Ok(DeltaNetSpec { key_heads, value_heads, key_dim, value_dim, conv })
}

/// Kind of each of `layers` layers: by a list under one of transformers' names, or by its older pattern of letters; in GGUF files by the
/// tensors.
pub fn kinds(config: &Config, layers: usize) -> Result<Vec<Kind>, ModelError> {
    let fields = match config {
        Config::Json(fields) => fields,
        Config::Gguf(meta) => {
            let has = |i: usize, part: &str| meta.has(&format!("blk.{i}.{part}.weight"));
            let kind = |i: usize| match () {
                () if has(i, "ssm_in") => Kind::Mamba,
                () if has(i, "attn_q") => Kind::Attention,
                () if has(i, "ffn_gate_inp") => Kind::Experts,
                () => Kind::Mlp,
            };
            return Ok((0..layers).map(kind).collect());
        }
    };
    let (field, names) = names(fields)?;
    if names.len() != layers {
        let problem = format!("lists {} layers where `num_hidden_layers` is {layers}", names.len());
        return Err(fields.refuse(field, problem));
    }
    let kind = |name: &String| match name.as_str() {
        "mamba" | "linear_attention" | "M" => Ok(Kind::Mamba),
        "attention" | "full_attention" | "*" => Ok(Kind::Attention),
        "mlp" | "-" => Ok(Kind::Mlp),
        "moe" | "E" => Ok(Kind::Experts),
        other => {
            Err(fields.refuse(field, format!("holds `{other}`, a kind of layer that is not known here")))
        }
    };
    names.iter().map(kind).collect()
}

/// The field that lists the layers, and their names.
fn names(fields: &Fields) -> Result<(&'static str, Vec<String>), ModelError> {
    const PATTERN: &str = "hybrid_override_pattern";
    let pattern = fields.optional_text(PATTERN)?;
    for field in ["layers_block_type", "layer_types"] {
        if let Some(list) = fields.optional_list(field)? {
            let name = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            return Ok((field, list.iter().map(name).collect()));
        }
    }
    match pattern {
        Some(pattern) => Ok((PATTERN, pattern.chars().map(String::from).collect())),
        None => Err(fields.refuse("layers_block_type", "is missing")),
    }
}

/// The least time step of `time_step_limit`; an upper limit is refused.
pub fn least_step(fields: &Fields) -> Result<f64, ModelError> {
    const FIELD: &str = "time_step_limit";
    // Python writes infinity in ways that are no numbers.
    match fields.optional_list(FIELD)?.map(Vec::as_slice) {
        None => Ok(0.0),
        Some([least, most]) if !most.is_number() => Ok(least.as_f64().unwrap_or(0.0)),
        Some(other) => Err(fields.refuse(FIELD, format!("is {other:?}; only a lower limit is built"))),
    }
}
