//! Head selection: `heads` of the extension and of its score.

use serde_json::{Value, json};

use super::error::ApiError;
use super::json::{found, read_at};
use super::model::{Pairs, ServedModel};
use palimpsest_core::model::DecoderSpec;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Heads {
    /// Mean over each layer's heads.
    #[default]
    Mean,
    All,
    These {
        pairs: Pairs,
        /// Requested as `retrieval`.
        retrieval: bool,
    },
}

impl Heads {
    /// Of `mean`, `all`, `retrieval` or pairs [layer, head]. Refuses unknown heads, and `retrieval` if the model's are unknown.
    pub fn of(field: &Value, name: &str, model: &ServedModel) -> Result<Self, ApiError> {
        match field.as_str() {
            Some("mean") => Ok(Heads::Mean),
            Some("all") => Ok(Heads::All),
            Some("retrieval") => Heads::retrieval(model).ok_or_else(|| {
                let reason = format!(
                    "is \"retrieval\", and this server does not know which heads of {} retrieve; give \"all\" or pairs [layer, head], \
                     or ask whoever runs the server to find them (docs/serve.md)",
                    model.name()
                );
                ApiError::at(name, reason).with_code("no_retrieval_heads")
            }),
            None if field.is_array() => {
                let pairs: Vec<(usize, usize)> = read_at(name, field)?;
                check_pairs(&pairs, name, model)?;
                Ok(Heads::These { pairs: pairs.into(), retrieval: false })
            }
            _ => {
                let wanted = "\"mean\", \"all\", \"retrieval\" or an array of pairs [layer, head]";
                Err(ApiError::wrong(name, found(field), wanted))
            }
        }
    }

    pub fn retrieval(model: &ServedModel) -> Option<Self> {
        let pairs = model.retrieval.clone()?;
        Some(Heads::These { pairs, retrieval: true })
    }

    pub fn json(&self) -> Value {
        match self {
            Heads::Mean => "mean".into(),
            Heads::All => "all".into(),
            Heads::These { retrieval: true, .. } => "retrieval".into(),
            Heads::These { pairs, .. } => json!(pairs[..]),
        }
    }
}

/// Heads of softmax and of linear attention in all layers.
pub fn count(spec: &DecoderSpec) -> (usize, usize) {
    let softmax = spec.layers.iter().filter_map(|layer| layer.attention()).map(|spec| spec.heads).sum();
    let linear = spec.layers.iter().filter_map(|layer| layer.delta_net()).map(|spec| spec.value_heads).sum();
    (softmax, linear)
}

fn check_pairs(pairs: &[(usize, usize)], name: &str, model: &ServedModel) -> Result<(), ApiError> {
    let (layers, (all, _)) = (&model.spec.layers, count(&model.spec));
    if pairs.is_empty() || pairs.len() > all {
        let reason = format!("has {} pairs; give 1 to {all}, which is every head once", pairs.len());
        return Err(ApiError::at(name, reason));
    }
    for (i, &(layer, head)) in pairs.iter().enumerate() {
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
            Some(Some(_)) if pairs[..i].contains(&(layer, head)) => {
                format!("names head {head} of layer {layer} again; name it once")
            }
            Some(Some(_)) => continue,
        };
        return Err(ApiError::at(format!("{name}[{i}]"), wrong));
    }
    Ok(())
}
