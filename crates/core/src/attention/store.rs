//! The attention store: one safetensors file per probe, written by the runner and read by the lens and external tools.
//!
//! Baselines, ratios, densities and groupings are computed from it later, so new definitions need no new run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ndarray::{Array3, Array4};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::{DeltaMasses, Uniform};
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
pub enum StoreError {
    /// I/O error.
    #[error("attention store {path}: {source}{}", crate::files::io_remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is not an attention store.
    #[error("attention store {path}: {reason}; delete it and start the run again, which redoes this probe")]
    Broken {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
}

/// Elements of a tensor to write.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 32-bit unsigned integers.
    U32(Vec<u32>),
}

/// Name, row-major elements, shape.
type NamedTensor = (&'static str, Values, Vec<usize>);

/// Atomically writes named row-major tensors with shapes and metadata as one safetensors file.
pub fn write_tensors(
    path: &Path,
    tensors: &[(&str, Values, Vec<usize>)],
    metadata: &[(&str, String)],
) -> Result<(), StoreError> {
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let mut file = tensors_file(tensors, Some(metadata))
        .map_err(|error| StoreError::Broken { path: path.to_owned(), reason: error.to_string() })?;
    sort_metadata(&mut file);
    crate::files::write_atomically(path, &file)
        .map_err(|source| StoreError::Io { path: path.to_owned(), source })
}

/// A safetensors file of named row-major tensors with shapes.
pub fn tensors_file(
    tensors: &[(&str, Values, Vec<usize>)],
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let bytes: Vec<(Dtype, Vec<u8>)> = tensors
        .iter()
        .map(|(_, values, _)| match values {
            Values::F32(v) => (Dtype::F32, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Values::U32(v) => (Dtype::U32, v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        })
        .collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, _, shape), (dtype, bytes))| Ok((*name, TensorView::new(*dtype, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    safetensors::serialize(views, metadata)
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

impl DeltaMasses {
    /// Named tensors for the file.
    pub fn tensors(&self) -> [NamedTensor; 2] {
        [("delta_signed", &self.signed), ("delta_share", &self.share)]
            .map(|(name, x)| (name, Values::F32(x.iter().copied().collect()), x.shape().to_vec()))
    }

    /// Metadata entry for the file.
    pub fn metadata(&self) -> (&'static str, String) {
        ("delta_layers", serde_json::json!(self.layers).to_string())
    }
}

impl Uniform {
    /// Named tensor for the file.
    pub fn tensor(&self) -> NamedTensor {
        ("share", Values::F32(self.share.iter().copied().collect()), self.share.shape().to_vec())
    }

    /// Metadata entry: windows per layer, null for full causal attention.
    pub fn metadata(&self) -> (&'static str, String) {
        ("windows", serde_json::json!(self.windows).to_string())
    }
}

impl AttentionStore {
    /// Writes a temporary file and renames it, so readers never see a partial file.
    pub fn save(&self, path: &Path) -> Result<(), StoreError> {
        let json = |value: serde_json::Value| value.to_string();
        let mut tensors = vec![
            ("mass", Values::F32(self.mass.iter().copied().collect()), self.mass.shape().to_vec()),
            ("tokens", Values::U32(self.tokens.clone()), vec![self.tokens.len()]),
        ];
        if let Some(sink) = &self.sink {
            tensors.push(("sink", Values::F32(sink.iter().copied().collect()), sink.shape().to_vec()));
        }
        if !self.generated.is_empty() {
            let generated = Values::U32(self.generated.clone());
            tensors.push(("generated", generated, vec![self.generated.len()]));
        }
        if let Some(uniform) = &self.uniform {
            tensors.push(uniform.tensor());
        }
        if let Some(delta) = &self.delta {
            tensors.extend(delta.tensors());
        }
        let mut metadata = vec![
            ("format", FORMAT.to_owned()),
            ("layers", json(serde_json::json!(self.layers))),
            ("rows", json(serde_json::json!(self.rows))),
            ("spans", json(serde_json::json!(self.keys))),
            ("case", self.case.clone()),
            ("probe", self.probe.clone()),
            ("model", self.model.clone()),
            ("dtype", self.dtype.clone()),
        ];
        if !self.condition.is_empty() {
            metadata.push(("condition", self.condition.clone()));
        }
        if let Some(uniform) = &self.uniform {
            metadata.push(uniform.metadata());
        }
        if let Some(delta) = &self.delta {
            metadata.push(delta.metadata());
        }
        write_tensors(path, &tensors, &metadata)
    }

    /// Reads a store and validates its shapes and labels.
    pub fn load(path: &Path) -> Result<Self, StoreError> {
        let broken = |reason: String| StoreError::Broken { path: path.to_owned(), reason };
        let bytes = std::fs::read(path).map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| broken(e.to_string()))?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let text = |key: &str| {
            metadata.get(key).cloned().ok_or_else(|| broken(format!("its metadata has no `{key}`")))
        };
        fn parse<T: serde::de::DeserializeOwned>(key: &str, text: &str) -> Result<T, String> {
            serde_json::from_str(text).map_err(|e| format!("its metadata `{key}` does not parse: {e}"))
        }
        let format = text("format")?;
        if ![FORMAT, FORMAT_1].contains(&format.as_str()) {
            return Err(broken(format!(
                "its format is `{format}`, and this version reads `{FORMAT}` and `{FORMAT_1}`"
            )));
        }
        let layers: Vec<usize> = parse("layers", &text("layers")?).map_err(broken)?;
        let rows: Vec<Span> = parse("rows", &text("rows")?).map_err(broken)?;
        let keys: Vec<Span> = parse("spans", &text("spans")?).map_err(broken)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| broken(e.to_string()))?;
        let tensor = |name: &str, dtype: Dtype| -> Result<TensorView<'_>, StoreError> {
            let view = file.tensor(name).map_err(|e| broken(format!("tensor `{name}`: {e}")))?;
            if view.dtype() == dtype {
                Ok(view)
            } else {
                Err(broken(format!("tensor `{name}` is {:?}, not {dtype:?}", view.dtype())))
            }
        };
        let floats = |view: &TensorView<'_>| -> Vec<f32> {
            view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        let masses = |name: &str, layers: &[usize]| -> Result<Array4<f32>, StoreError> {
            let view = tensor(name, Dtype::F32)?;
            let &[l, h, r, k] = view.shape() else {
                let shape = view.shape();
                return Err(broken(format!(
                    "`{name}` has shape {shape:?}, not [layers, heads, rows, spans]"
                )));
            };
            if (l, r, k) != (layers.len(), rows.len(), keys.len()) {
                return Err(broken(format!(
                    "`{name}` has shape {:?} but its metadata names {} layers, {} rows and {} spans",
                    view.shape(),
                    layers.len(),
                    rows.len(),
                    keys.len()
                )));
            }
            Array4::from_shape_vec((l, h, r, k), floats(&view)).map_err(|e| broken(e.to_string()))
        };
        let mass = masses("mass", &layers)?;
        let (l, h, r, _) = mass.dim();
        let sink = match file.names().contains(&"sink") {
            false => None,
            true => {
                let view = tensor("sink", Dtype::F32)?;
                if view.shape() != [l, h, r] {
                    return Err(broken(format!(
                        "`sink` has shape {:?} where that of `mass` implies [{l}, {h}, {r}]",
                        view.shape()
                    )));
                }
                Some(Array3::from_shape_vec((l, h, r), floats(&view)).map_err(|e| broken(e.to_string()))?)
            }
        };
        let uniform = match (metadata.get("windows"), file.names().contains(&"share")) {
            (None, false) => None,
            (None, true) => {
                return Err(broken("it has `share` but its metadata has no `windows`".to_owned()));
            }
            (Some(windows), _) => {
                let windows: Vec<Option<usize>> = parse("windows", windows).map_err(broken)?;
                if windows.len() != layers.len() || windows.contains(&Some(0)) {
                    return Err(broken(format!(
                        "its metadata `windows` are {windows:?} for {} layers; each is null or at least 1",
                        layers.len()
                    )));
                }
                let view = tensor("share", Dtype::F32)?;
                let shape = (layers.len(), rows.len(), keys.len());
                if view.shape() != [shape.0, shape.1, shape.2] {
                    return Err(broken(format!(
                        "`share` has shape {:?} where its metadata implies {shape:?}",
                        view.shape()
                    )));
                }
                let share =
                    Array3::from_shape_vec(shape, floats(&view)).map_err(|e| broken(e.to_string()))?;
                Some(Uniform { windows, share })
            }
        };
        let delta = match metadata.contains_key("delta_layers") {
            false => match file.names().iter().find(|name| name.starts_with("delta_")) {
                None => None,
                Some(name) => {
                    return Err(broken(format!("it has `{name}` but its metadata has no `delta_layers`")));
                }
            },
            true => {
                let layers: Vec<usize> = parse("delta_layers", &text("delta_layers")?).map_err(broken)?;
                let signed = masses("delta_signed", &layers)?;
                let share = masses("delta_share", &layers)?;
                if signed.dim() != share.dim() {
                    return Err(broken(format!(
                        "`delta_signed` has shape {:?} and `delta_share` {:?}: they must be the same",
                        signed.shape(),
                        share.shape()
                    )));
                }
                Some(DeltaMasses { layers, signed, share })
            }
        };
        let ids = |name: &str| -> Result<Vec<u32>, StoreError> {
            let view = tensor(name, Dtype::U32)?;
            if view.shape().len() != 1 {
                return Err(broken(format!("`{name}` has shape {:?}, not [tokens]", view.shape())));
            }
            Ok(view.data().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect())
        };
        let tokens = ids("tokens")?;
        let generated = if file.names().contains(&"generated") { ids("generated")? } else { Vec::new() };
        let n = tokens.len();
        let outside = |span: &&Span, n: usize| span.start > span.end || span.end > n;
        // Rows may cover generated tokens, key spans may not.
        let bad_row = rows.iter().find(|span| outside(span, n + generated.len()));
        if let Some(Span { label, start, end, .. }) =
            bad_row.or_else(|| keys.iter().find(|span| outside(span, n)))
        {
            return Err(broken(format!("span `{label}` [{start}, {end}) is not within its {n} tokens")));
        }
        Ok(AttentionStore {
            mass,
            sink,
            uniform,
            delta,
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
