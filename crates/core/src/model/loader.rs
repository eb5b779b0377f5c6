//! Loads tensors by canonical name from a Hugging Face folder, a GGUF file, or synthetic weights.
//!
//! Canonical names are transformers' Llama names below `model.` (`layers.3.self_attn.q_proj`), and for other parts the names of the first
//! supported class (`linear_attn.in_proj_qkv`, `mlp.experts.7.gate_proj`). [`Names`] holds an architecture's differences. The loader
//! validates shapes and rejects checkpoints with unused tensors.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::Dtype;

use super::arch::{Names, Rows};
use super::layers::{Embedding, HalfWeight, Mlp, PackedWeight, Projection};
use super::tensor_names::{GGUF_NAMES, PREDICTION, PREFIXES, SKIPPED, UNSHARED, is_derived};
use super::weightless::Weightless;
use super::weights::{BlockType, GgufFile, SafetensorsFolder, gguf};
use super::{DecoderSpec, Formats, KeyValues, MlpSpec, ModelError};
use crate::transfer;

mod experts;
mod nvfp4;

/// Source of a model's tensors.
#[derive(Debug)]
pub enum Checkpoint {
    /// One GGUF file, or all parts of a split one.
    Gguf(GgufFile),
    /// A folder with safetensors.
    Safetensors {
        folder: SafetensorsFolder,
        /// Rows and columns per scale of FP8 weights.
        fp8_block: (usize, usize),
    },
    /// Synthetic weights, without files.
    Weightless(Weightless),
}

/// Dequantised copies of quantised weights, kept on the CPU in f32 or bf16 beside the packed weights for decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kept {
    /// Dequantised once, in the model's dtype; faster.
    #[default]
    Dense,
    /// Packed only: each projection is dequantised for every prefill chunk. Same numbers, less memory.
    Quantised,
}

/// Loads the tensors of a checkpoint to a device in a dtype.
#[derive(Debug)]
pub struct Loader {
    checkpoint: Checkpoint,
    place: String,
    formats: Formats,
    device: Device,
    kept: Kept,
    names: &'static Names,
    /// Prefix of `embed_tokens` in a Hugging Face checkpoint.
    prefix: &'static str,
    spec: DecoderSpec,
    used: HashSet<String>,
}

impl Loader {
    /// `place` names the checkpoint in errors; `names`: its naming differences.
    pub(super) fn new(
        checkpoint: Checkpoint,
        place: String,
        names: &'static Names,
        spec: DecoderSpec,
        formats: Formats,
        kept: Kept,
    ) -> Self {
        let prefix = match &checkpoint {
            Checkpoint::Safetensors { folder, .. } => {
                let held = |p: &str, tensor| folder.contains(&format!("{p}{}", names.renamed(tensor)));
                let of = |tensor| PREFIXES.into_iter().find(|p| held(p, tensor));
                of("embed_tokens.weight").or_else(|| of("norm.weight")).unwrap_or(PREFIXES[0])
            }
            Checkpoint::Gguf(_) | Checkpoint::Weightless(_) => "",
        };
        let device = Device::Cpu;
        Loader { checkpoint, place, formats, device, kept, names, prefix, spec, used: HashSet::new() }
    }

    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    pub fn formats(&self) -> Formats {
        self.formats
    }

    /// Where tensors are loaded to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Loads subsequent tensors to `device`.
    pub fn put_on(&mut self, device: &Device) {
        self.device = device.clone();
    }

    /// A dense tensor of the given shape, in the activations' dtype.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        self.tensor_in(name, shape, self.formats.activations)
    }

    /// In the weights' dtype.
    pub(super) fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        self.tensor_in(name, shape, self.formats.dtype)
    }

    /// [`Loader::tensor`] in f32.
    pub fn tensor_f32(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        self.tensor_in(name, shape, DType::F32)
    }

    fn tensor_in(&mut self, name: &str, shape: &[usize], dtype: DType) -> Result<Tensor, ModelError> {
        let stored = self.stored_name(name);
        self.expect_shape(&stored, shape)?;
        let tensor = match &self.checkpoint {
            Checkpoint::Weightless(made) => made.tensor(name, shape, dtype, &self.device, &self.spec)?,
            Checkpoint::Safetensors { folder, .. } => folder.tensor(&stored, &self.device, dtype)?,
            Checkpoint::Gguf(file) => match self.row_order(name, shape[0]) {
                None => file.tensor(&stored, &self.device, dtype)?,
                Some(order) => {
                    let tensor = file.tensor(&stored, &Device::Cpu, dtype)?;
                    tensor.index_select(&indices(&order)?, 0)?.to_device(&self.device)?
                }
            },
        };
        self.used.insert(stored);
        Ok(tensor)
    }

    /// The only row of a projection, as f32 (width, 1). GGUF writers drop the axis of 1.
    pub(super) fn row_f32(&mut self, name: &str, width: usize) -> Result<Tensor, ModelError> {
        let stored = self.stored_name(name);
        let flat = match &self.checkpoint {
            Checkpoint::Gguf(file) => file.tensor_info(&stored).is_some_and(|info| info.shape.len() == 1),
            Checkpoint::Safetensors { .. } | Checkpoint::Weightless(_) => false,
        };
        let row = if flat { self.tensor_f32(name, &[width])? } else { self.tensor_f32(name, &[1, width])? };
        Ok(row.reshape((width, 1))?)
    }

    /// An f32 vector, which GGUF files may store with more axes.
    pub(super) fn vector_f32(&mut self, name: &str, width: usize) -> Result<Tensor, ModelError> {
        let stored = self.stored_name(name);
        let shape = match &self.checkpoint {
            Checkpoint::Gguf(file) => file.tensor_info(&stored).map(|info| info.shape.clone()),
            Checkpoint::Safetensors { .. } | Checkpoint::Weightless(_) => None,
        };
        let shape = shape.filter(|shape| shape.iter().product::<usize>() == width);
        Ok(self.tensor_f32(name, &shape.unwrap_or_else(|| vec![width]))?.reshape(width)?)
    }

    /// f32 decay rates exp(A_log) of a linear-attention layer's heads. GGUF stores -exp(A_log).
    pub(super) fn decay(&mut self, name: &str, heads: usize) -> Result<Tensor, ModelError> {
        let stored = self.vector_f32(name, heads)?;
        Ok(match self.checkpoint {
            Checkpoint::Gguf(_) => stored.neg()?,
            Checkpoint::Safetensors { .. } | Checkpoint::Weightless(_) => stored.exp()?,
        })
    }

    /// Taps of a depthwise convolution, f32 (channels, taps).
    pub(super) fn taps(&mut self, name: &str, channels: usize, taps: usize) -> Result<Tensor, ModelError> {
        match self.checkpoint {
            Checkpoint::Gguf(_) | Checkpoint::Weightless(_) => self.tensor_f32(name, &[channels, taps]),
            Checkpoint::Safetensors { .. } => {
                Ok(self.tensor_f32(name, &[channels, 1, taps])?.reshape((channels, taps))?)
            }
        }
    }

    pub(super) fn linear(
        &mut self,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
    ) -> Result<Projection, ModelError> {
        self.linear_with(name, outputs, inputs, bias, None)
    }

    /// `weight`: (out, in), of any dtype; `bias`: (out).
    pub(super) fn dense(&self, weight: &Tensor, bias: Option<Tensor>) -> candle_core::Result<Projection> {
        let weight = &weight.to_dtype(self.formats.dtype)?;
        match self.formats.half_products() {
            true => Ok(Projection::half(Arc::new(HalfWeight::new(weight)?), bias)),
            false => Projection::dense(weight, bias),
        }
    }

    /// [`Loader::linear`] with a known dequantised weight (the tied output head).
    pub(super) fn linear_with(
        &mut self,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
        shared: Option<Embedding>,
    ) -> Result<Projection, ModelError> {
        let bias = bias.then(|| self.tensor(&format!("{name}.bias"), &[outputs])).transpose()?;
        let weight = format!("{name}.weight");
        let (stored, all, part) = match self.part_of(&weight) {
            Some((larger, all, rows)) => (self.stored_name(&larger), all, Some(rows)),
            None => (self.stored_name(&weight), outputs, None),
        };
        let nvfp4 = self.nvfp4(&stored, [all, inputs])?;
        if nvfp4.is_none() {
            self.expect_shape(&stored, &[all, inputs])?;
        }
        let linear = match &self.checkpoint {
            Checkpoint::Weightless(made) => match &shared {
                Some(shared) => shared.head(bias)?,
                None => {
                    let shape = [outputs, inputs];
                    let made = made.tensor(&weight, &shape, self.formats.dtype, &self.device, &self.spec)?;
                    self.dense(&made, bias)?
                }
            },
            Checkpoint::Safetensors { folder, fp8_block } => {
                let tensor = match (nvfp4, folder.dtype(&stored)) {
                    (Some(tensor), _) => tensor,
                    (None, Some(Dtype::F8_E4M3)) => {
                        let scales = format!("{stored}_scale_inv");
                        self.used.insert(scales.clone());
                        folder.fp8_tensor(&stored, &scales, *fp8_block, &self.device, self.formats.dtype)?
                    }
                    _ => folder.tensor(&stored, &self.device, self.formats.dtype)?,
                };
                let tensor = match part {
                    Some(rows) => {
                        let rows = indices(&rows.collect::<Vec<_>>())?.to_device(&self.device)?;
                        tensor.index_select(&rows, 0)?
                    }
                    None => tensor,
                };
                match &shared {
                    Some(shared) => shared.head(bias)?,
                    None => self.dense(&tensor, bias)?,
                }
            }
            Checkpoint::Gguf(file) => {
                let (bytes, dtype) = file.blocks(&stored, None)?;
                self.used.extend(file.scale_of(&stored));
                let order = part.map(Iterator::collect).or_else(|| self.row_order(&weight, outputs));
                let columns = self.column_order(&weight, inputs);
                self.blocks(&bytes, dtype, [outputs, inputs], (order, columns), shared.as_ref(), bias)?
            }
        };
        self.used.insert(stored);
        Ok(linear)
    }

    pub(super) fn mlp(&mut self, name: &str, hidden: usize, spec: &MlpSpec) -> Result<Mlp, ModelError> {
        let gate = spec.activation.is_gated();
        let gate =
            gate.then(|| self.linear(&format!("{name}.gate_proj"), spec.intermediate, hidden, spec.bias));
        let gate = gate.transpose()?;
        let up = self.linear(&format!("{name}.up_proj"), spec.intermediate, hidden, spec.bias)?;
        let down = self.linear(&format!("{name}.down_proj"), hidden, spec.intermediate, spec.bias)?;
        Ok(Mlp::new(gate, up, down, spec.activation)?)
    }

    /// A projection from GGUF blocks: packed on the CPU in f32 or bf16, else dense. `order`: the file's row and column for each canonical
    /// one. `shared`: known dequantised values.
    fn blocks(
        &self,
        bytes: &[u8],
        dtype: BlockType,
        [outputs, inputs]: [usize; 2],
        order: (Option<Vec<usize>>, Option<Vec<usize>>),
        shared: Option<&Embedding>,
        bias: Option<Tensor>,
    ) -> Result<Projection, ModelError> {
        let (rows, columns) = order;
        let bytes = match rows {
            None => Cow::Borrowed(bytes),
            Some(order) => {
                // Rows are whole blocks, so they can be picked as bytes.
                let width = inputs / dtype.columns() * dtype.bytes();
                Cow::Owned(
                    order.iter().flat_map(|&row| &bytes[row * width..(row + 1) * width]).copied().collect(),
                )
            }
        };
        // Permuted columns do not form blocks.
        let pack = self.device.is_cpu() && self.formats.activations == DType::F32 && columns.is_none();
        let packed = match pack {
            true => PackedWeight::from_blocks(dtype, &bytes, outputs, inputs),
            false => None,
        };
        Ok(match (packed, shared, columns) {
            (Some(packed), Some(shared), _) => shared.head(bias)?.decoding_with(packed),
            (Some(packed), None, _) => {
                let half = self.formats.half_products();
                Projection::quantised(packed, bias, self.kept == Kept::Dense, half)?
            }
            (None, Some(shared), None) => shared.head(bias)?,
            (None, _, columns) => {
                // Columns are permuted on the CPU, before the upload.
                let (device, to) = match columns {
                    Some(_) => (&Device::Cpu, DType::F32),
                    None => (&self.device, self.formats.dtype),
                };
                let mut matrix = gguf::values_on(dtype, &bytes, &[outputs, inputs], device, to)
                    .map_err(|e| ModelError::Blocks { place: self.place.clone(), source: e })??;
                if let Some(order) = columns {
                    matrix = matrix.index_select(&indices(&order)?, 1)?;
                }
                self.dense(&matrix.to_dtype(self.formats.dtype)?.to_device(&self.device)?, bias)?
            }
        })
    }

    /// The tensor that holds the canonical projection `name`, the number of its rows, and those of the projection.
    fn part_of(&self, name: &str) -> Option<(String, usize, Rows)> {
        let parts = match self.checkpoint {
            Checkpoint::Safetensors { .. } => self.names.hf_parts,
            Checkpoint::Gguf(_) => self.names.gguf_parts,
            Checkpoint::Weightless(_) => return None,
        };
        let (layer, part) = self.split(name)?;
        let (larger, all, rows) = parts(part, self.spec.layers.get(layer)?)?;
        Some((format!("layers.{layer}.{larger}.weight"), all, rows))
    }

    /// The file's row for each row of the canonical tensor `name`, if the orders differ.
    fn row_order(&self, name: &str, rows: usize) -> Option<Vec<usize>> {
        let (layer, part) = self.split(name)?;
        (self.names.gguf_rows)(part, self.spec.layers.get(layer)?, rows)
    }

    /// The file's column for each column of the canonical tensor `name`, if the orders differ.
    fn column_order(&self, name: &str, columns: usize) -> Option<Vec<usize>> {
        let (layer, part) = self.split(name)?;
        (self.names.gguf_columns)(part, self.spec.layers.get(layer)?, columns)
    }

    /// Layer and part of a canonical tensor name, without `.weight` or `.bias`.
    fn split<'a>(&self, name: &'a str) -> Option<(usize, &'a str)> {
        let (layer, part) = name.strip_prefix("layers.")?.split_once('.')?;
        let part = part.strip_suffix(".weight").or_else(|| part.strip_suffix(".bias")).unwrap_or(part);
        Some((layer.parse().ok()?, part))
    }

    /// Marks `name` as used if its values equal those of `same`; otherwise it stays unused.
    pub(super) fn accept_copy(&mut self, name: &str, same: &Tensor) -> Result<(), ModelError> {
        let stored = self.stored_name(name);
        let made_up = matches!(self.checkpoint, Checkpoint::Weightless(_));
        if made_up || self.expect_shape(&stored, same.dims()).is_err() || self.used.contains(&stored) {
            return Ok(());
        }
        let copy = transfer::moved(&self.weight(name, same.dims())?, same.device())?;
        if copy.ne(same)?.max_all()?.to_scalar::<u8>()? != 0 {
            self.used.remove(&stored);
        }
        Ok(())
    }

    /// Returns an error if tensors of the checkpoint were not used.
    pub fn finish(self) -> Result<(), ModelError> {
        let names: Vec<&str> = match &self.checkpoint {
            Checkpoint::Gguf(file) => file.tensors().map(|info| info.name.as_str()).collect(),
            Checkpoint::Safetensors { folder, .. } => folder.names().collect(),
            Checkpoint::Weightless(_) => Vec::new(),
        };
        let skipped = self.skipped(&names);
        let left: Vec<&str> = names
            .into_iter()
            .filter(|n| !self.used.contains(*n) && !is_derived(n) && !skipped.contains(*n))
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        let mut names = left.iter().take(5).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
        if left.len() > 5 {
            names += &format!(" and {} more", left.len() - 5);
        }
        Err(ModelError::LeftOver { place: self.place, names })
    }

    fn layer_of(&self, stored: &str) -> Option<usize> {
        let layers = match &self.checkpoint {
            Checkpoint::Gguf(_) => "blk.".to_owned(),
            Checkpoint::Safetensors { .. } | Checkpoint::Weightless(_) => format!("{}layers.", self.prefix),
        };
        stored.strip_prefix(&layers)?.split_once('.')?.0.parse().ok()
    }

    /// Unused tensors among `names` that do not affect text: vision, keys and values of layers that share others, and multi-token prediction
    /// layers after the last layer, recognised by their specific tensors. Any other unused layer means a wrong config.
    fn skipped(&self, names: &[&str]) -> HashSet<String> {
        let after_last = |name: &str| self.layer_of(name).filter(|&layer| layer >= self.spec.layers.len());
        let predicting: HashSet<usize> = names
            .iter()
            .filter(|name| PREDICTION.iter().any(|part| name.contains(part)))
            .filter_map(|name| after_last(name))
            .collect();
        let shares = |layer: usize| {
            let layer = self.spec.layers.get(layer).and_then(|layer| layer.attention());
            layer.is_some_and(|attention| matches!(attention.key_values, KeyValues::Of(_)))
        };
        let shared = |name: &str| {
            UNSHARED.iter().any(|part| name.contains(part)) && self.layer_of(name).is_some_and(shares)
        };
        let skipped = |name: &&&str| {
            SKIPPED.iter().any(|prefix| name.starts_with(prefix))
                || shared(name)
                || after_last(name).is_some_and(|layer| predicting.contains(&layer))
        };
        names.iter().filter(skipped).map(|name| (*name).to_owned()).collect()
    }

    /// The checkpoint's name for a canonical name.
    fn stored_name(&self, name: &str) -> String {
        match &self.checkpoint {
            Checkpoint::Weightless(_) => name.to_owned(),
            Checkpoint::Safetensors { folder, .. } => {
                let head = |name: &str| {
                    let nested = format!("language_model.{name}");
                    if folder.contains(&nested) { nested } else { name.to_owned() }
                };
                if name.starts_with("lm_head") {
                    return head(name);
                }
                let stored = format!("{}{}", self.prefix, self.names.renamed(name));
                // Writers that drop shared tensors keep one of two tied matrices, under either name.
                let other = (self.spec.tied && name == "embed_tokens.weight" && !folder.contains(&stored))
                    .then(|| head("lm_head.weight"))
                    .filter(|other| folder.contains(other));
                other.unwrap_or(stored)
            }
            Checkpoint::Gguf(_) => {
                let (prefix, part) = match name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'))
                {
                    Some((layer, part)) => (format!("blk.{layer}."), part),
                    None => (String::new(), name),
                };
                let renamed = |part: &str| {
                    let names = self.names.gguf.iter().chain(&GGUF_NAMES);
                    names.into_iter().find(|(ours, _)| *ours == part).map(|(_, theirs)| *theirs)
                };
                let stored = match (renamed(part), part.rsplit_once('.')) {
                    (Some(whole), _) => whole.to_owned(),
                    (None, Some((stem, suffix))) => format!("{}.{suffix}", renamed(stem).unwrap_or(stem)),
                    (None, None) => part.to_owned(),
                };
                format!("{prefix}{stored}")
            }
        }
    }

    /// True if the checkpoint has the canonical tensor `name`; synthetic ones have all by their first names.
    pub(super) fn has(&self, name: &str) -> bool {
        let stored = self.stored_name(name);
        match &self.checkpoint {
            Checkpoint::Gguf(file) => file.contains(&stored),
            Checkpoint::Safetensors { folder, .. } => folder.contains(&stored),
            Checkpoint::Weightless(_) => false,
        }
    }

    fn missing(&self, stored: &str) -> ModelError {
        ModelError::MissingTensor { place: self.place.clone(), name: stored.to_owned() }
    }

    fn expect_shape(&self, stored: &str, expected: &[usize]) -> Result<(), ModelError> {
        let found = match &self.checkpoint {
            Checkpoint::Gguf(file) => file.tensor_info(stored).map(|info| info.shape.as_slice()),
            Checkpoint::Safetensors { folder, .. } => folder.shape(stored),
            Checkpoint::Weightless(_) => Some(expected),
        };
        match found {
            None => Err(self.missing(stored)),
            Some(found) if found != expected => Err(self.wrong_shape(stored, found, expected)),
            Some(_) => Ok(()),
        }
    }

    fn wrong_shape(&self, stored: &str, found: &[usize], expected: &[usize]) -> ModelError {
        let (place, name) = (self.place.clone(), stored.to_owned());
        ModelError::Shape { place, name, found: found.to_vec(), expected: expected.to_vec() }
    }
}

fn indices(order: &[usize]) -> candle_core::Result<Tensor> {
    Tensor::from_iter(order.iter().map(|&index| index as u32), &Device::Cpu)
}
