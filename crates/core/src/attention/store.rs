//! The attention store: one safetensors file a probe, with everything a later analysis needs.
//!
//! Written by the runner, read by the lens and by anyone else's tools. Baselines, ratios, densities and groupings are
//! computed from it later, so that a new definition needs no new run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ndarray::{Array3, Array4};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::{DeltaMasses, Uniform};
use crate::span::Span;

/// Attention masses of one probe: what the rows of each row span pay to each key span.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionStore {
    /// f32 `[layers, heads, row spans, key spans]`: mean over the row span's tokens of the sum of post-softmax weights
    /// over the key span (STALE, appendix E.4). Key spans tile the prompt, but for those that are overlays, so the masses of a
    /// row over the others sum to 1, less the share of the sinks where a model has attention sinks.
    pub mass: Array4<f32>,
    /// f32 `[layers, heads, row spans]`: the sinks' share, for models with attention sinks.
    pub sink: Option<Array3<f32>>,
    /// The windows of `layers`, and the share that uniform attention would pay: density is mass over share. Files of
    /// version 0.1.0 have neither, and densities are computed from the spans' bounds as if every layer saw the whole prompt.
    pub uniform: Option<Uniform>,
    /// The implicit attention of linear-attention layers, for models that have any.
    pub delta: Option<DeltaMasses>,
    /// The decoder layer of each entry of the first axis of `mass`; none where a model has no softmax attention.
    pub layers: Vec<usize>,
    /// Row spans, in the order of the third axis.
    pub rows: Vec<Span>,
    /// Key spans, in the order of the fourth axis.
    pub keys: Vec<Span>,
    /// The prompt's tokens.
    pub tokens: Vec<u32>,
    /// The tokens that were generated after it, where a row `answer` is the mean over them; else none.
    pub generated: Vec<u32>,
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The condition's name; empty for the plain one.
    pub condition: String,
    /// The model's name.
    pub model: String,
    /// The dtype that the model ran in.
    pub dtype: String,
}

impl AttentionStore {
    /// Generated tokens before the answer: those of a thought with its markers, which are in no row. All of them where
    /// no answer follows.
    pub fn thought(&self) -> usize {
        // The row of a generated token is the position that predicted it: of the first one, the prompt's last.
        let answer = self.rows.iter().find(|row| row.label == "answer");
        let first = answer.and_then(|row| (row.start + 1).checked_sub(self.tokens.len()));
        first.unwrap_or(self.generated.len()).min(self.generated.len())
    }
}

/// The metadata that tells a store from other safetensors files.
const FORMAT: &str = "palimpsest attention store 2";

/// The same of version 0.1.0, whose spans have a token across a border where its first byte is ([`BorderRule`](crate::text::BorderRule)).
const FORMAT_1: &str = "palimpsest attention store 1";

/// Why an attention store could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("attention store {path}: {source}{}", crate::files::io_remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's message.
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

/// The elements of a tensor to write.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 32-bit unsigned integers.
    U32(Vec<u32>),
}

/// A tensor to write: its name, its elements row-major, its shape.
type NamedTensor = (&'static str, Values, Vec<usize>);

/// Writes named tensors (row-major, with their shapes) and metadata as one safetensors file, whole or not at all.
pub fn write_tensors(
    path: &Path,
    tensors: &[(&str, Values, Vec<usize>)],
    metadata: &[(&str, String)],
) -> Result<(), StoreError> {
    let broken =
        |e: safetensors::SafeTensorError| StoreError::Broken { path: path.to_owned(), reason: e.to_string() };
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
        .collect::<Result<Vec<_>, _>>()
        .map_err(broken)?;
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let mut file = safetensors::serialize(views, Some(metadata)).map_err(broken)?;
    sort_metadata(&mut file);
    crate::files::write_atomically(path, &file)
        .map_err(|source| StoreError::Io { path: path.to_owned(), source })
}

/// Puts the metadata of a safetensors file into alphabetical order. The crate writes it in a hash map's order, another one
/// each time; equal runs should give equal files.
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
    // The same fields in another order are as long; what is left is the padding.
    if let Some(room) = header.get_mut(..sorted.len()) {
        room.copy_from_slice(&sorted);
    }
}

impl DeltaMasses {
    /// The tensors of a file, by name.
    pub fn tensors(&self) -> [NamedTensor; 2] {
        [("delta_signed", &self.signed), ("delta_share", &self.share)]
            .map(|(name, x)| (name, Values::F32(x.iter().copied().collect()), x.shape().to_vec()))
    }

    /// Their entry in the metadata of a file.
    pub fn metadata(&self) -> (&'static str, String) {
        ("delta_layers", serde_json::json!(self.layers).to_string())
    }
}

impl Uniform {
    /// The tensor of a file, with its name.
    pub fn tensor(&self) -> NamedTensor {
        ("share", Values::F32(self.share.iter().copied().collect()), self.share.shape().to_vec())
    }

    /// Its entry in the metadata of a file: the layers' windows, null where a row sees all before it.
    pub fn metadata(&self) -> (&'static str, String) {
        ("windows", serde_json::json!(self.windows).to_string())
    }
}

impl AttentionStore {
    /// Writes the store beside its final place and renames it there, so that a reader never sees half a file.
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

    /// Reads a store and checks that its shapes and labels agree.
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
        // A row may be of generated tokens, a key span may not.
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
