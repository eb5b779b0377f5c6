//! Why a model could not be described, loaded or run.

use super::weights::{GgufError, SafetensorsError};

/// Why a model could not be described, loaded or run. Every text names the thing, the value and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The checkpoint's architecture is not in the table.
    #[error(
        "unknown architecture `{found}`; this build knows {known}. See CONTRIBUTING.md for how to add one"
    )]
    UnknownArchitecture { found: String, known: String },
    /// A config field is missing, has the wrong type, or asks for maths that this build does not do.
    #[error("{place}: `{field}` {problem}")]
    Config { place: String, field: String, problem: String },
    /// The config contradicts itself.
    #[error("{place} describes no model: {fault}; the file is damaged or was edited wrongly")]
    Contradiction { place: String, fault: String },
    /// A dtype of the cache that the device does not keep.
    #[error(transparent)]
    CacheFormat(#[from] super::CacheFormat),
    /// A tensor that the architecture needs is not in the checkpoint.
    #[error(
        "{place}: tensor `{name}` is missing; the checkpoint is incomplete or of another architecture than its config says"
    )]
    MissingTensor { place: String, name: String },
    /// A tensor has another shape than the config implies.
    #[error("{place}: tensor `{name}` has shape {found:?} where the config implies {expected:?}")]
    Shape {
        place: String,
        name: String,
        found: Vec<usize>,
        /// The shape by the config.
        expected: Vec<usize>,
    },
    /// The checkpoint has tensors that the architecture does not use: running without them would be another model.
    #[error(
        "{place}: tensors that this architecture does not use: {names}; the config does not describe this checkpoint"
    )]
    LeftOver { place: String, names: String },
    /// Quantised blocks of a tensor are broken.
    #[error("{place}: {source}; fetch the model again")]
    Blocks { place: String, source: super::weights::BlocksError },
    /// There is nothing to put the layers on.
    #[error("a model needs at least one layer and a device for each; none was given")]
    NoDevice,
    /// No path was given.
    #[error("no model file was given; name a model, a folder or a .gguf file")]
    NoFile,
    /// A file could not be read.
    #[error("cannot read {place}")]
    Io { place: String, source: std::io::Error },
    /// A GGUF file is broken.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A safetensors folder is broken.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// A JSON file is broken.
    #[error("{place} is not valid JSON; fetch the model again")]
    Json { place: String, source: serde_json::Error },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}
