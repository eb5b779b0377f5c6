//! Which heads a request asks about: `heads` of the extension, and of its score.

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::error::ApiError;
use super::json::wrong;
use super::model::{Pairs, ServedModel};

/// Heads as masses are told of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heads {
    /// The mean over each layer's.
    Mean,
    All,
    /// These, in this order; `named` where they are the model's retrieval heads.
    These {
        pairs: Pairs,
        /// True if a request called them `retrieval`.
        retrieval: bool,
    },
}

/// The field `heads`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadsField {
    /// Of `palimpsest` alone: a score has no mean.
    #[default]
    Mean,
    All,
    Retrieval,
    #[serde(rename = "an array of pairs [layer, head]")]
    These(Vec<Pair>),
}

/// A layer and a head of it.
#[derive(Debug)]
pub struct Pair(usize, usize);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let pair = serde_json::from_value(Value::deserialize(from)?);
        pair.map(|(layer, head)| Pair(layer, head))
            .map_err(|_| wrong("a pair of whole numbers, [layer, head]"))
    }
}

impl HeadsField {
    /// Which heads of the model a field of this name means; refuses one that the model has not, and retrieval heads that nobody knows.
    pub fn of(&self, name: &str, model: &ServedModel) -> Result<Heads, ApiError> {
        match self {
            HeadsField::Mean => Ok(Heads::Mean),
            HeadsField::All => Ok(Heads::All),
            HeadsField::These(pairs) => {
                Ok(Heads::These { pairs: check_pairs(pairs, name, model)?, retrieval: false })
            }
            HeadsField::Retrieval => Heads::retrieval(model).ok_or_else(|| {
                let reason = format!(
                    "is \"retrieval\", and this server does not know which heads of {} retrieve; give \"all\" or pairs [layer, head], \
                     or ask whoever runs the server to find them (docs/serve.md)",
                    model.name()
                );
                ApiError::at(name, reason).with_code("no_retrieval_heads")
            }),
        }
    }
}

impl Heads {
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

fn check_pairs(pairs: &[Pair], name: &str, model: &ServedModel) -> Result<Pairs, ApiError> {
    let layers = &model.spec.layers;
    let all: usize = layers.iter().filter_map(|layer| layer.attention()).map(|spec| spec.heads).sum();
    if pairs.is_empty() || pairs.len() > all {
        let reason = format!("has {} pairs; give 1 to {all}, which is every head once", pairs.len());
        return Err(ApiError::at(name, reason));
    }
    let mut known = Vec::with_capacity(pairs.len());
    for (i, &Pair(layer, head)) in pairs.iter().enumerate() {
        let wrong = match layers.get(layer).map(|layer| layer.attention()) {
            None => {
                let last = layers.len().saturating_sub(1);
                format!("is of layer {layer}; the model's layers are 0 to {last}")
            }
            Some(None) => format!(
                "is of layer {layer}, which has linear attention and no weights of single keys; name others"
            ),
            Some(Some(spec)) if head >= spec.heads => {
                let last = spec.heads.saturating_sub(1);
                format!("is head {head}; the heads of layer {layer} are 0 to {last}")
            }
            Some(Some(_)) if known.contains(&(layer, head)) => {
                format!("names head {head} of layer {layer} again; name it once")
            }
            Some(Some(_)) => {
                known.push((layer, head));
                continue;
            }
        };
        return Err(ApiError::at(format!("{name}[{i}]"), wrong));
    }
    Ok(known.into())
}
