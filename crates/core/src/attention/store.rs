//! The attention store: one safetensors file per probe, written by the runner and read by the lens and external tools.
//!
//! Baselines, ratios, densities and groupings are computed from it later, so new definitions need no new run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ndarray::{Array, Array3, Array4, Dimension};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{DeltaMasses, KeptShares, Selected, Uniform};
use crate::span::Span;

/// Attention masses of one probe, from row spans to key spans.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionStore {
    /// f32 `[layers, heads, row spans, key spans]`: mean over the row span's tokens of the sum of post-softmax weights over the key span
    /// (STALE, appendix E.4). Key spans, overlays aside, tile the prompt, so a row's masses sum to 1 minus the sink weight.
    pub mass: Array4<f32>,
    /// f32 `[layers, heads, row spans]`: sink weight, for models with attention sinks.
    pub sink: Option<Array3<f32>>,
    /// Windows of `layers` and masses of uniform attention; density is mass / share. `None` in files of version 0.1.0, whose densities
    /// assume full causal attention over the spans' bounds.
    pub uniform: Option<Uniform>,
    /// Implicit attention of linear-attention layers, if any.
    pub delta: Option<DeltaMasses>,
    /// Shares of the spans' keys that were kept, if keys were evicted before the question.
    pub kept: Option<KeptShares>,
    /// Shares that the layers' choices of keys left to the rows, if they were measured.
    pub selected: Option<Selected>,
    /// Decoder layer per entry of the first axis of `mass`; empty for models without softmax attention.
    pub layers: Vec<usize>,
    /// Row spans, in the order of the third axis.
    pub rows: Vec<Span>,
    /// Key spans, in the order of the fourth axis.
    pub keys: Vec<Span>,
    /// Prompt tokens.
    pub tokens: Vec<u32>,
    /// Generated tokens, if `answer` is a row; else empty.
    pub generated: Vec<u32>,
    /// Case id.
    pub case: String,
    /// Probe id.
    pub probe: String,
    /// Condition name; empty for the plain one.
    pub condition: String,
    /// Model name.
    pub model: String,
    /// Model dtype.
    pub dtype: String,
}

impl AttentionStore {
    /// Reasoning tokens before the answer, with their markers, which are in no row; all generated tokens if no answer follows.
    pub fn thought(&self) -> usize {
        // The row of a generated token is the position that predicted it; for the first one, the prompt's last.
        let answer = self.rows.iter().find(|row| row.label == "answer");
        let first = answer.and_then(|row| (row.start + 1).checked_sub(self.tokens.len()));
        first.unwrap_or(self.generated.len()).min(self.generated.len())
    }
}

/// Format tag in the safetensors metadata.
const FORMAT: &str = "palimpsest attention store 2";

/// Version 0.1.0, which assigns a token across a span border to the span of its first byte ([`BorderRule`](crate::text::BorderRule)).
const FORMAT_1: &str = "palimpsest attention store 1";

/// An attention store could not be written or read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // printed by the messages
pub enum StoreError {
    #[error("attention store {path}: {source}{}", crate::files::io_remedy(source))]
    Io { path: PathBuf, source: std::io::Error },
    #[error("attention store {path}: {reason}; delete it and start the run again, which redoes this probe")]
    Broken { path: PathBuf, reason: String },
}

/// Elements of a tensor to write.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // said by the names
pub enum Values {
    F32(Vec<f32>),
    U32(Vec<u32>),
}

/// Name, row-major elements, shape.
pub type NamedTensor = (&'static str, Values, Vec<usize>);

/// Atomically writes named row-major tensors with shapes and metadata as one safetensors file.
pub fn write_tensors(
    path: &Path,
    tensors: &[(&str, Values, Vec<usize>)],
    metadata: &[(&str, String)],
) -> Result<(), StoreError> {
    let file = tensors_bytes(tensors, metadata)
        .map_err(|e| StoreError::Broken { path: path.to_owned(), reason: e.to_string() })?;
    crate::files::write_atomically(path, &file)
        .map_err(|source| StoreError::Io { path: path.to_owned(), source })
}

/// The file of [`write_tensors`]: [`tensors_file`] with metadata in a fixed order.
pub fn tensors_bytes(
    tensors: &[(&str, Values, Vec<usize>)],
    metadata: &[(&str, String)],
) -> Result<Vec<u8>, SafeTensorError> {
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let mut file = tensors_file(tensors, Some(metadata))?;
    sort_metadata(&mut file);
    Ok(file)
}

/// A safetensors file of named row-major tensors with shapes.
pub fn tensors_file(
    tensors: &[(&str, Values, Vec<usize>)],
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>, SafeTensorError> {
    let bytes = |values: &Values| match values {
        Values::F32(v) => (Dtype::F32, v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()),
        Values::U32(v) => (Dtype::U32, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
    };
    let bytes: Vec<_> = tensors.iter().map(|(_, values, _)| bytes(values)).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, _, shape), (dtype, bytes))| {
        Ok((*name, TensorView::new(*dtype, shape.clone(), bytes)?))
    });
    safetensors::serialize(views.collect::<Result<Vec<_>, SafeTensorError>>()?, metadata)
}

/// Sorts the metadata of a safetensors file, which the crate writes in random hash-map order, so that equal runs give equal files.
fn sort_metadata(file: &mut [u8]) {
    let Some((length, rest)) = file.split_first_chunk_mut::<8>() else { return };
    let Some(header) = usize::try_from(u64::from_le_bytes(*length)).ok().and_then(|n| rest.get_mut(..n))
    else {
        return;
    };
    let Ok(mut fields) = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(header) else {
        return;
    };
    if let Some(metadata) = fields.get_mut("__metadata__").and_then(serde_json::Value::as_object_mut) {
        metadata.sort_keys();
    }
    let Ok(sorted) = serde_json::to_vec(&fields) else { return };
    // The sorted fields have the same length; the rest is padding.
    if let Some(room) = header.get_mut(..sorted.len()) {
        room.copy_from_slice(&sorted);
    }
}

/// A named array for [`write_tensors`].
pub fn named_tensor<D: Dimension>(name: &'static str, values: &Array<f32, D>) -> NamedTensor {
    (name, Values::F32(values.iter().copied().collect()), values.shape().to_vec())
}

fn entry<'m>(metadata: &'m HashMap<String, String>, key: &str) -> Result<&'m String, String> {
    metadata.get(key).ok_or_else(|| format!("its metadata has no `{key}`"))
}

fn parsed<T: DeserializeOwned>(metadata: &HashMap<String, String>, key: &str) -> Result<T, String> {
    serde_json::from_str(entry(metadata, key)?)
        .map_err(|e| format!("its metadata `{key}` does not parse: {e}"))
}

fn ids(name: &'static str, tokens: &[u32]) -> NamedTensor {
    (name, Values::U32(tokens.to_vec()), vec![tokens.len()])
}

impl DeltaMasses {
    /// Named tensors for the file.
    pub fn tensors(&self) -> [NamedTensor; 2] {
        [named_tensor("delta_signed", &self.signed), named_tensor("delta_share", &self.share)]
    }

    /// Metadata entry for the file.
    pub fn metadata(&self) -> (&'static str, String) {
        ("delta_layers", json!(self.layers).to_string())
    }
}

impl Uniform {
    /// Named tensor for the file.
    pub fn tensor(&self) -> NamedTensor {
        named_tensor("share", &self.share)
    }

    /// Metadata entry: windows per layer, null for full causal attention.
    pub fn metadata(&self) -> (&'static str, String) {
        ("windows", json!(self.windows).to_string())
    }
}

impl KeptShares {
    /// Named tensor for the file.
    pub fn tensor(&self) -> NamedTensor {
        named_tensor("kept", &self.shares)
    }

    /// Metadata entry for the file.
    pub fn metadata(&self) -> (&'static str, String) {
        ("kept_layers", json!(self.layers).to_string())
    }
}

impl Selected {
    /// Named tensors for the file.
    pub fn tensors(&self) -> [NamedTensor; 2] {
        [named_tensor("selected", &self.selected), named_tensor("forgone", &self.forgone)]
    }
}

impl AttentionStore {
    /// Writes a temporary file and renames it, so readers never see a partial file.
    pub fn save(&self, path: &Path) -> Result<(), StoreError> {
        let file = self
            .to_bytes()
            .map_err(|e| StoreError::Broken { path: path.to_owned(), reason: e.to_string() })?;
        crate::files::write_atomically(path, &file)
            .map_err(|source| StoreError::Io { path: path.to_owned(), source })
    }

    /// The safetensors file of [`AttentionStore::save`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, SafeTensorError> {
        let mut tensors = vec![named_tensor("mass", &self.mass), ids("tokens", &self.tokens)];
        tensors.extend(self.sink.as_ref().map(|sink| named_tensor("sink", sink)));
        if !self.generated.is_empty() {
            tensors.push(ids("generated", &self.generated));
        }
        tensors.extend(self.uniform.as_ref().map(Uniform::tensor));
        tensors.extend(self.delta.iter().flat_map(DeltaMasses::tensors));
        tensors.extend(self.kept.as_ref().map(KeptShares::tensor));
        tensors.extend(self.selected.iter().flat_map(Selected::tensors));
        let mut metadata = vec![
            ("format", FORMAT.to_owned()),
            ("layers", json!(self.layers).to_string()),
            ("rows", json!(self.rows).to_string()),
            ("spans", json!(self.keys).to_string()),
            ("case", self.case.clone()),
            ("probe", self.probe.clone()),
            ("model", self.model.clone()),
            ("dtype", self.dtype.clone()),
        ];
        if !self.condition.is_empty() {
            metadata.push(("condition", self.condition.clone()));
        }
        metadata.extend(self.uniform.as_ref().map(Uniform::metadata));
        metadata.extend(self.delta.as_ref().map(DeltaMasses::metadata));
        metadata.extend(self.kept.as_ref().map(KeptShares::metadata));
        tensors_bytes(&tensors, &metadata)
    }

    /// Reads a store and validates its shapes and labels.
    pub fn load(path: &Path) -> Result<Self, StoreError> {
        let bytes = std::fs::read(path).map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes, path)
    }

    /// [`AttentionStore::load`] for the content of the file `path`.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self, StoreError> {
        Self::parse(bytes).map_err(|reason| StoreError::Broken { path: path.to_owned(), reason })
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let fault = |error: SafeTensorError| error.to_string();
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(fault)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let text = |key: &str| entry(&metadata, key).cloned();
        let format = text("format")?;
        if ![FORMAT, FORMAT_1].contains(&format.as_str()) {
            return Err(format!(
                "its format is `{format}`, and this version reads `{FORMAT}` and `{FORMAT_1}`"
            ));
        }
        let layers: Vec<usize> = parsed(&metadata, "layers")?;
        let rows: Vec<Span> = parsed(&metadata, "rows")?;
        let keys: Vec<Span> = parsed(&metadata, "spans")?;
        let file = SafeTensors::deserialize(bytes).map_err(fault)?;
        let has = |name: &str| file.names().contains(&name);
        let tensor = |name: &str, dtype: Dtype| -> Result<TensorView<'_>, String> {
            let view = file.tensor(name).map_err(|e| format!("tensor `{name}`: {e}"))?;
            match view.dtype() == dtype {
                true => Ok(view),
                false => Err(format!("tensor `{name}` is {:?}, not {dtype:?}", view.dtype())),
            }
        };
        let numbers = |view: &TensorView<'_>| -> Vec<f32> {
            view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        let masses = |name: &str, layers: &[usize]| -> Result<Array4<f32>, String> {
            let view = tensor(name, Dtype::F32)?;
            let shape = view.shape();
            let &[l, h, r, k] = shape else {
                return Err(format!("`{name}` has shape {shape:?}, not [layers, heads, rows, spans]"));
            };
            if (l, r, k) != (layers.len(), rows.len(), keys.len()) {
                return Err(format!(
                    "`{name}` has shape {shape:?} but its metadata names {} layers, {} rows and {} spans",
                    layers.len(),
                    rows.len(),
                    keys.len()
                ));
            }
            Array4::from_shape_vec((l, h, r, k), numbers(&view)).map_err(|e| e.to_string())
        };
        let array = |name: &str, shape: [usize; 3]| -> Result<Array3<f32>, String> {
            let view = tensor(name, Dtype::F32)?;
            if view.shape() != shape {
                return Err(format!("`{name}` has shape {:?} where {shape:?} is implied", view.shape()));
            }
            Array3::from_shape_vec(shape, numbers(&view)).map_err(|e| e.to_string())
        };
        let mass = masses("mass", &layers)?;
        let (l, h, r, _) = mass.dim();
        let sink = if has("sink") { Some(array("sink", [l, h, r])?) } else { None };
        let uniform = match metadata.contains_key("windows") {
            false if has("share") => {
                return Err("it has `share` but its metadata has no `windows`".to_owned());
            }
            false => None,
            true => {
                let windows: Vec<Option<usize>> = parsed(&metadata, "windows")?;
                if windows.len() != layers.len() || windows.contains(&Some(0)) {
                    return Err(format!(
                        "its metadata `windows` are {windows:?} for {} layers; each is null or at least 1",
                        layers.len()
                    ));
                }
                Some(Uniform { windows, share: array("share", [l, rows.len(), keys.len()])? })
            }
        };
        let delta = match (
            metadata.contains_key("delta_layers"),
            ["delta_signed", "delta_share"].into_iter().find(|name| has(name)),
        ) {
            (false, None) => None,
            (false, Some(name)) => {
                return Err(format!("it has `{name}` but its metadata has no `delta_layers`"));
            }
            (true, _) => {
                let layers: Vec<usize> = parsed(&metadata, "delta_layers")?;
                let (signed, share) = (masses("delta_signed", &layers)?, masses("delta_share", &layers)?);
                if signed.dim() != share.dim() {
                    return Err(format!(
                        "`delta_signed` has shape {:?} and `delta_share` {:?}: they must be the same",
                        signed.shape(),
                        share.shape()
                    ));
                }
                Some(DeltaMasses { layers, signed, share })
            }
        };
        let kept = match metadata.contains_key("kept_layers") {
            false if has("kept") => {
                return Err("it has `kept` but its metadata has no `kept_layers`".to_owned());
            }
            false => None,
            true => {
                let layers: Vec<usize> = parsed(&metadata, "kept_layers")?;
                let heads = tensor("kept", Dtype::F32)?.shape().get(1).copied().unwrap_or(0);
                Some(KeptShares { shares: array("kept", [layers.len(), heads, keys.len()])?, layers })
            }
        };
        let selected = match has("selected") || has("forgone") {
            false => None,
            true => {
                let by_span = |name: &str| array(name, [l, rows.len(), keys.len()]);
                Some(Selected { selected: by_span("selected")?, forgone: by_span("forgone")? })
            }
        };
        let ids = |name: &str| -> Result<Vec<u32>, String> {
            let view = tensor(name, Dtype::U32)?;
            match view.shape() {
                [_] => Ok(view.data().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()),
                shape => Err(format!("`{name}` has shape {shape:?}, not [tokens]")),
            }
        };
        let tokens = ids("tokens")?;
        let generated = if has("generated") { ids("generated")? } else { Vec::new() };
        let n = tokens.len();
        let outside = |span: &&Span, n: usize| span.start > span.end || span.end > n;
        // Rows may cover generated tokens, key spans may not.
        let bad_row = rows.iter().find(|span| outside(span, n + generated.len()));
        if let Some(Span { label, start, end, .. }) =
            bad_row.or_else(|| keys.iter().find(|span| outside(span, n)))
        {
            return Err(format!("span `{label}` [{start}, {end}) is not within its {n} tokens"));
        }
        Ok(AttentionStore {
            mass,
            sink,
            uniform,
            delta,
            kept,
            selected,
            layers,
            rows,
            keys,
            tokens,
            generated,
            case: text("case")?,
            probe: text("probe")?,
            condition: metadata.get("condition").cloned().unwrap_or_default(),
            model: text("model")?,
            dtype: text("dtype")?,
        })
    }
}
