//! The entry of an architecture in the table.

use super::Config;
use crate::model::{DecoderSpec, LayerSpec, ModelError};

/// An architecture.
pub struct Architecture {
    /// `model_type` in config.json, also of multimodal checkpoints with a `text_config`.
    pub hf: &'static [&'static str],
    /// `general.architecture` in GGUF, if llama.cpp's converter supports it.
    pub gguf: Option<&'static str>,
    /// A released model, of `crates/core/configs`; the self-test narrows its shape.
    pub released: &'static str,
    /// Tensor names and orders.
    pub names: Names,
    /// Reads a config of either format.
    pub(super) spec: fn(&Config) -> Result<DecoderSpec, ModelError>,
}

/// Row (or column) permutation of a tensor in the file, if it differs: arguments are the part of the tensor's name, the layer and the
/// number of rows (or columns); entry i is the file's row for row i.
pub type Order = fn(&str, &LayerSpec, usize) -> Option<Vec<usize>>;

/// Where a canonical projection is part of a larger tensor in checkpoints: the tensor's part of the name, its number of rows, and the rows
/// of the projection.
pub type Parts = fn(&str, &LayerSpec) -> Option<(&'static str, usize, Rows)>;

/// Rows of a tensor; collected when it is known to have them.
pub type Rows = Box<dyn Iterator<Item = usize>>;

/// Differences from the canonical tensor names and orders (see [`crate::model::Loader`]).
#[derive(Debug)]
pub struct Names {
    /// Replacements from canonical to Hugging Face names, applied in order; one that begins with `^` holds for the start of a name.
    pub hf: &'static [(&'static str, &'static str)],
    /// Projections that are parts of larger tensors in Hugging Face checkpoints.
    pub hf_parts: Parts,
    /// llama.cpp's names for parts of canonical names, where they are not the usual ones.
    pub gguf: &'static [(&'static str, &'static str)],
    /// Projections that are parts of larger tensors in GGUF files.
    pub gguf_parts: Parts,
    /// Row order in GGUF files.
    pub gguf_rows: Order,
    /// Column order in GGUF files.
    pub gguf_columns: Order,
    /// Fused expert tensors are (experts, in, out) with interleaved gate and up columns.
    pub interleaved_experts: bool,
}

impl Names {
    /// No differences.
    pub const PLAIN: Names = Names {
        hf: &[],
        hf_parts: |_, _| None,
        gguf: &[],
        gguf_parts: |_, _| None,
        gguf_rows: |_, _, _| None,
        gguf_columns: |_, _, _| None,
        interleaved_experts: false,
    };
    /// The Hugging Face name of the canonical `name`, without the checkpoint's prefix.
    pub fn renamed(&self, name: &str) -> String {
        self.hf.iter().fold(name.to_owned(), |name, (ours, theirs)| match ours.strip_prefix('^') {
            None => name.replace(ours, theirs),
            Some(start) => match name.strip_prefix(start) {
                Some(rest) => format!("{theirs}{rest}"),
                None => name,
            },
        })
    }
}
