//! Tensors by canonical name, from a Hugging Face folder or a GGUF file.
//!
//! Canonical names are Hugging Face's below `model.` (`layers.3.self_attn.q_proj`). The loader checks shapes, remembers
//! what was used, and reports what was left over: a checkpoint with tensors that the decoder does not know is another
//! model.

use std::collections::HashSet;

use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{DType, Device, Tensor};

use super::ModelError;
use super::layers::{GroupedInt8, Linear, Quantised};
use super::weights::{BlockType, GgufFile, SafetensorsFolder};

/// Where a model's tensors come from.
#[derive(Debug)]
pub enum Checkpoint {
    /// One GGUF file, or all parts of a split one.
    Gguf(GgufFile),
    /// A folder with safetensors.
    Safetensors(SafetensorsFolder),
}

/// Hands out the tensors of a checkpoint on a device in a dtype.
#[derive(Debug)]
pub struct Loader {
    checkpoint: Checkpoint,
    place: String,
    dtype: DType,
    device: Device,
    /// Query and key rows (of weights and biases) of GGUF files are interleaved for some architectures: (heads, kv_heads) to undo it.
    interleaved: Option<(usize, usize)>,
    used: HashSet<String>,
}

/// llama.cpp's names for the parts of a layer and of the whole.
const GGUF_NAMES: [(&str, &str); 12] = [
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
    ("lm_head", "output"),
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Tensors that hold no weights of their own: tables that the config implies, or that the description reads itself.
fn is_derived(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq") || name == "rope_freqs.weight"
}

impl Loader {
    /// A loader of `checkpoint`, called `place` in errors. `interleaved`: (heads, kv_heads) where the file's query and key
    /// rows are in llama.cpp's interleaved order.
    pub fn new(
        checkpoint: Checkpoint,
        place: String,
        dtype: DType,
        device: Device,
        interleaved: Option<(usize, usize)>,
    ) -> Self {
        Loader { checkpoint, place, dtype, device, interleaved, used: HashSet::new() }
    }

    /// The dtype that tensors are handed out in.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that tensors are put on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A dense tensor of the shape given.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let stored = self.stored_name(name);
        self.expect_shape(&stored, shape)?;
        let tensor = match &self.checkpoint {
            Checkpoint::Safetensors(folder) => folder.tensor(&stored, &self.device, self.dtype)?,
            Checkpoint::Gguf(file) => file.tensor(&stored, &self.device, self.dtype)?,
        };
        self.used.insert(stored);
        Ok(tensor)
    }

    /// The linear map `name` from `inputs` to `outputs`.
    pub(super) fn linear(
        &mut self,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
    ) -> Result<Linear, ModelError> {
        self.linear_with(name, outputs, inputs, bias, None)
    }

    /// [`Loader::linear`] with the dequantised weight already at hand (the tied output head).
    pub(super) fn linear_with(
        &mut self,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
        dense: Option<Tensor>,
    ) -> Result<Linear, ModelError> {
        let weight = format!("{name}.weight");
        let bias = match (bias, self.interleaved_heads(name)) {
            (false, _) => None,
            (true, None) => Some(self.tensor(&format!("{name}.bias"), &[outputs])?),
            (true, Some(heads)) => {
                let stored = self.tensor(&format!("{name}.bias"), &[outputs])?;
                // As in `half_rotation_rows`: (heads, head_dim / 2, 2) -> (heads, 2, head_dim / 2).
                let halves = stored.reshape((heads, outputs / heads / 2, 2))?.transpose(1, 2)?;
                Some(halves.contiguous()?.reshape(outputs)?)
            }
        };
        let quantised = self.quantised(&weight, &[outputs, inputs])?;
        let dense = match (dense, &quantised) {
            (Some(dense), _) => dense,
            (None, Some((_, quantised))) => quantised.dequantize(&self.device)?.to_dtype(self.dtype)?,
            (None, None) => self.tensor(&weight, &[outputs, inputs])?,
        };
        // The quantised products are of f32 activations on the CPU; elsewhere the dense weight serves decoding too.
        let for_decode = match quantised {
            Some((dtype, quantised)) if self.device.is_cpu() && self.dtype == DType::F32 => {
                let grouped = GroupedInt8::from_blocks(dtype, &quantised.data()?, outputs, inputs);
                Some(match grouped {
                    Some(grouped) => Quantised::Grouped(grouped),
                    None => Quantised::Candle(QMatMul::from_qtensor(quantised)?),
                })
            }
            _ => None,
        };
        Ok(Linear::new(dense, for_decode, bias))
    }

    /// The quantised tensor `name`, if the checkpoint holds it quantised.
    fn quantised(&mut self, name: &str, shape: &[usize]) -> Result<Option<(BlockType, QTensor)>, ModelError> {
        let stored = self.stored_name(name);
        let Checkpoint::Gguf(file) = &self.checkpoint else { return Ok(None) };
        self.expect_shape(&stored, shape)?;
        let interleaved = self.interleaved_heads(name.trim_end_matches(".weight"));
        let Some(info) = file.tensor_info(&stored) else { return Ok(None) };
        let dtype = info.dtype;
        let tensor = match (interleaved, dtype.candle()) {
            (Some(heads), Some(candle)) => {
                let bytes = file.tensor_bytes(&stored)?;
                let rows = half_rotation_rows(bytes, shape[0], heads);
                let start = rows.as_ptr().align_offset(8);
                qtensor_from_ggml(candle, &rows[start..start + bytes.len()], shape.to_vec(), &self.device)?
            }
            _ => file.qtensor(&stored, &self.device)?,
        };
        self.used.insert(stored);
        // Stored dense but permuted: the caller's dense path would read the rows in the file's order.
        if dtype.is_dense() && interleaved.is_none() { Ok(None) } else { Ok(Some((dtype, tensor))) }
    }

    /// The heads of the linear map `name` if its rows are stored interleaved.
    fn interleaved_heads(&self, name: &str) -> Option<usize> {
        let (heads, kv_heads) = self.interleaved?;
        if name.ends_with("q_proj") {
            Some(heads)
        } else if name.ends_with("k_proj") {
            Some(kv_heads)
        } else {
            None
        }
    }

    /// Counts `name` as used if the checkpoint stores it with the very values of `same`; other values stay left over.
    pub(super) fn accept_copy(&mut self, name: &str, same: &Tensor) -> Result<(), ModelError> {
        let stored = self.stored_name(name);
        if self.expect_shape(&stored, same.dims()).is_err() || self.used.contains(&stored) {
            return Ok(());
        }
        let copy = self.tensor(name, same.dims())?;
        if copy.ne(same)?.max_all()?.to_scalar::<u8>()? != 0 {
            self.used.remove(&stored);
        }
        Ok(())
    }

    /// Checks that every tensor of the checkpoint was used.
    pub fn finish(self) -> Result<(), ModelError> {
        let names: Vec<&str> = match &self.checkpoint {
            Checkpoint::Gguf(file) => file.tensors().map(|info| info.name.as_str()).collect(),
            Checkpoint::Safetensors(folder) => folder.names().collect(),
        };
        let left: Vec<&str> =
            names.into_iter().filter(|n| !self.used.contains(*n) && !is_derived(n)).collect();
        if left.is_empty() {
            return Ok(());
        }
        let mut names = left.iter().take(5).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
        if left.len() > 5 {
            names += &format!(" and {} more", left.len() - 5);
        }
        Err(ModelError::LeftOver { place: self.place, names })
    }

    /// The name that the checkpoint stores a canonical name under.
    fn stored_name(&self, name: &str) -> String {
        match &self.checkpoint {
            Checkpoint::Safetensors(folder) => {
                let nested = format!("model.{name}");
                if name.starts_with("lm_head") || (!folder.contains(&nested) && folder.contains(name)) {
                    name.to_owned()
                } else {
                    nested
                }
            }
            Checkpoint::Gguf(_) => {
                let (stem, suffix) = name.rsplit_once('.').unwrap_or((name, ""));
                let (prefix, part) = match stem.strip_prefix("layers.").and_then(|rest| rest.split_once('.'))
                {
                    Some((layer, part)) => (format!("blk.{layer}."), part),
                    None => (String::new(), stem),
                };
                let part =
                    GGUF_NAMES.iter().find(|(ours, _)| *ours == part).map_or(part, |(_, theirs)| theirs);
                format!("{prefix}{part}.{suffix}")
            }
        }
    }

    fn expect_shape(&self, stored: &str, expected: &[usize]) -> Result<(), ModelError> {
        let found = match &self.checkpoint {
            Checkpoint::Gguf(file) => file.tensor_info(stored).map(|info| info.shape.as_slice()),
            Checkpoint::Safetensors(folder) => folder.shape(stored),
        };
        match found {
            None => Err(ModelError::MissingTensor { place: self.place.clone(), name: stored.to_owned() }),
            Some(found) if found != expected => Err(ModelError::Shape {
                place: self.place.clone(),
                name: stored.to_owned(),
                found: found.to_vec(),
                expected: expected.to_vec(),
            }),
            Some(_) => Ok(()),
        }
    }
}

/// The rows of a query or key weight in half-rotation order: llama.cpp's converter interleaves the two halves of every
/// head (its row 2i + j is Hugging Face's row j * head_dim / 2 + i). Rows are whole runs of blocks, so that moving their
/// bytes is exact. The result begins at the first 8-byte border of the returned buffer.
fn half_rotation_rows(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let mut out = vec![0u8; bytes.len() + 8];
    let start = out.as_ptr().align_offset(8);
    let width = bytes.len() / rows.max(1);
    let head_dim = rows / heads.max(1);
    let half = head_dim / 2;
    for (row, target) in out[start..start + bytes.len()].chunks_exact_mut(width.max(1)).enumerate() {
        let (head, within) = (row / head_dim, row % head_dim);
        let source = head * head_dim + 2 * (within % half) + within / half;
        target.copy_from_slice(&bytes[source * width..(source + 1) * width]);
    }
    out
}
