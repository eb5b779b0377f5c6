//! Which heads a request asks about: `heads` of the extension, and of its score.

use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::wrong;
use super::model::{Pairs, ServedModel};

/// Heads as masses are told of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heads {
    /// The mean over each layer's.
    Mean,
    /// Every one, by layer.
    All,
    /// These, in this order; `named` where they are the model's retrieval heads.
    These {
        /// Which.
        pairs: Pairs,
        /// Whether a request called them `retrieval`.
        retrieval: bool,
    },
}

impl Heads {
    /// The value of the field `name`. `"mean"` is one where `mean` is set.
    ///
    /// # Errors
    /// What is no such choice, or a head that the model has not.
    pub fn read(value: &Value, name: &str, mean: bool, model: &ServedModel) -> Result<Self, ApiError> {
        match value {
            Value::String(word) if word == "mean" && mean => Ok(Heads::Mean),
            Value::String(word) if word == "all" => Ok(Heads::All),
            Value::String(word) if word == "retrieval" => Heads::retrieval(model).ok_or_else(|| {
                let message = format!(
                    "`{name}` is \"retrieval\", and this server does not know which heads of {} retrieve; give \"all\" or pairs \
                     [layer, head], or ask whoever runs the server to find them (docs/serve.md)",
                    model.name()
                );
                ApiError { code: Some("no_retrieval_heads"), ..ApiError::field(name, message) }
            }),
            Value::String(word) => {
                let word: String = word.chars().take(40).collect();
                let mean = if mean { "\"mean\", " } else { "" };
                let message =
                    format!("`{name}` is {word:?}; give {mean}\"all\", \"retrieval\" or pairs [layer, head]");
                Err(ApiError::field(name, message))
            }
            Value::Array(pairs) => {
                Ok(Heads::These { pairs: read_pairs(pairs, name, model)?, retrieval: false })
            }
            value => Err(wrong(name, value, "a word or an array of pairs [layer, head]")),
        }
    }

    /// The model's retrieval heads, where they are known.
    pub fn retrieval(model: &ServedModel) -> Option<Self> {
        let pairs = model.retrieval.clone()?;
        Some(Heads::These { pairs, retrieval: true })
    }

    /// As a reply names them.
    pub fn json(&self) -> Value {
        match self {
            Heads::Mean => "mean".into(),
            Heads::All => "all".into(),
            Heads::These { retrieval: true, .. } => "retrieval".into(),
            Heads::These { pairs, .. } => json!(pairs[..]),
        }
    }
}

fn read_pairs(values: &[Value], name: &str, model: &ServedModel) -> Result<Pairs, ApiError> {
    let layers = &model.spec.layers;
    let all: usize = layers.iter().filter_map(|layer| layer.attention()).map(|spec| spec.heads).sum();
    if values.is_empty() || values.len() > all {
        let message =
            format!("`{name}` has {} pairs; give 1 to {all}, which is every head once", values.len());
        return Err(ApiError::field(name, message));
    }
    let mut pairs = Vec::with_capacity(values.len());
    for (i, value) in values.iter().enumerate() {
        let name = format!("{name}[{i}]");
        let number = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        let pair = match value.as_array().map(Vec::as_slice) {
            Some([layer, head]) => number(layer).zip(number(head)),
            _ => None,
        };
        let Some((layer, head)) = pair else {
            return Err(wrong(&name, value, "a pair of whole numbers, [layer, head]"));
        };
        let Some(of_layer) = layers.get(layer) else {
            let last = layers.len().saturating_sub(1);
            let message = format!("`{name}` is of layer {layer}; the model's layers are 0 to {last}");
            return Err(ApiError::field(name, message));
        };
        let Some(spec) = of_layer.attention() else {
            let message = format!(
                "`{name}` is of layer {layer}, which has linear attention and no weights of single keys; name others"
            );
            return Err(ApiError::field(name, message));
        };
        if head >= spec.heads {
            let last = spec.heads.saturating_sub(1);
            let message = format!("`{name}` is head {head}; the heads of layer {layer} are 0 to {last}");
            return Err(ApiError::field(name, message));
        }
        if pairs.contains(&(layer, head)) {
            let message = format!("`{name}` names head {head} of layer {layer} again; name it once");
            return Err(ApiError::field(name, message));
        }
        pairs.push((layer, head));
    }
    Ok(pairs.into())
}
