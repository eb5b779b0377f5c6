//! Why a model could not be described, loaded or run.

use super::weights::{GgufError, SafetensorsError};

/// Why a model could not be described, loaded or run. Every text names the thing, the value and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The checkpoint's architecture is not in the table.
    #[error(
        "unknown architecture `{found}`; this build knows {known}. See CONTRIBUTING.md for how to add one"
    )]
    UnknownArchitecture {
        /// The config's value.
        found: String,
        /// The known ones, comma-separated.
        known: String,
    },
    /// A config field is missing, has the wrong type, or asks for maths that this build does not do.
    #[error("{place}: `{field}` {problem}")]
    Config {
        /// The file.
        place: String,
        /// The field.
        field: String,
        /// The fault.
        problem: String,
    },
    /// The config contradicts itself.
    #[error("{place} describes no model: {fault}; the file is damaged or was edited wrongly")]
    Contradiction {
        /// The file.
        place: String,
        /// The contradiction.
        fault: String,
    },
    /// A dtype of the cache that the device does not keep.
    #[error(transparent)]
    CacheFormat(#[from] super::CacheFormat),
    /// A tensor that the architecture needs is not in the checkpoint.
    #[error(
        "{place}: tensor `{name}` is missing; the checkpoint is incomplete or of another architecture than its config says"
    )]
    MissingTensor {
        /// The file or folder.
        place: String,
        /// The tensor, by the file's naming.
        name: String,
    },
    /// A tensor has another shape than the config implies.
    #[error("{place}: tensor `{name}` has shape {found:?} where the config implies {expected:?}")]
    Shape {
        /// The file or folder.
        place: String,
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape by the config.
        expected: Vec<usize>,
    },
    /// The checkpoint has tensors that the architecture does not use: running without them would be another model.
    #[error(
        "{place}: tensors that this architecture does not use: {names}; the config does not describe this checkpoint"
    )]
    LeftOver {
        /// The file or folder.
        place: String,
        /// The first few, comma-separated.
        names: String,
    },
    /// Quantised blocks of a tensor are broken.
    #[error("{place}: {source}; fetch the model again")]
    Blocks {
        /// The file.
        place: String,
        /// The fault.
        source: super::weights::BlocksError,
    },
    /// There is nothing to put the layers on.
    #[error("a model needs at least one layer and a device for each; none was given")]
    NoDevice,
    /// No path was given.
    #[error("no model file was given; name a model, a folder or a .gguf file")]
    NoFile,
    /// A file could not be read.
    #[error("cannot read {place}")]
    Io {
        /// The file.
        place: String,
        /// The system's message.
        source: std::io::Error,
    },
    /// A GGUF file is broken.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A safetensors folder is broken.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// A JSON file is broken.
    #[error("{place} is not valid JSON; fetch the model again")]
    Json {
        /// The file.
        place: String,
        /// Where it breaks.
        source: serde_json::Error,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}
