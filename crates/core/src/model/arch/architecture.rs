//! The description of an architecture.

use super::fields::Fields;
use super::meta::Meta;
use crate::model::{DecoderSpec, LayerSpec, ModelError};

/// One architecture.
pub struct Architecture {
    /// `model_type` in config.json: of the language model, then of checkpoints that hold it under `text_config`.
    pub hf: &'static [&'static str],
    /// `general.architecture` in GGUF, where llama.cpp's converter has it.
    pub gguf: Option<&'static str>,
    /// The names and orders of its tensors.
    pub names: Names,
    /// Reads config.json.
    pub from_hf: fn(&Fields) -> Result<DecoderSpec, ModelError>,
    /// Reads GGUF metadata.
    pub from_gguf: fn(&Meta) -> Result<DecoderSpec, ModelError>,
}

/// For every row (or column) of a tensor the one in the file, if the orders differ: of the part of a layer's name, the
/// layer, and the number of rows (or columns).
pub type Order = fn(&str, &LayerSpec, usize) -> Option<Vec<usize>>;

/// The names and orders of an architecture's tensors: differences from the canonical ones (see [`crate::model::Loader`]).
#[derive(Debug)]
pub struct Names {
    /// Pieces of canonical names and what Hugging Face checkpoints have in their place, replaced one after the other.
    pub hf: &'static [(&'static str, &'static str)],
    /// Parts of canonical names and llama.cpp's names of them, where those are not the usual ones.
    pub gguf: &'static [(&'static str, &'static str)],
    /// The order of rows in GGUF files.
    pub gguf_rows: Order,
    /// The order of columns in GGUF files.
    pub gguf_columns: Order,
    /// Experts stored as one tensor are (experts, in, out) with the columns of gate and up in turn.
    pub interleaved_experts: bool,
}

impl Names {
    /// No difference.
    pub const PLAIN: Names = Names {
        hf: &[],
        gguf: &[],
        gguf_rows: |_, _, _| None,
        gguf_columns: |_, _, _| None,
        interleaved_experts: false,
    };
}
