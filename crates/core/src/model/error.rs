//! Errors of describing, loading and running models.

use super::weights::{GgufError, SafetensorsError};

/// A model could not be described, loaded or run. Messages name the thing, the value and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Unknown architecture.
    #[error(
        "unknown architecture `{found}`; this build knows {known}. See CONTRIBUTING.md for how to add one"
    )]
    UnknownArchitecture {
        /// The config's value.
        found: String,
        /// Supported values, comma-separated.
        known: String,
    },
    /// A config field is missing, has the wrong type or an unsupported value.
    #[error("{place}: `{field}` {problem}")]
    Config {
        /// The file.
        place: String,
        /// The field.
        field: String,
        /// The fault.
        problem: String,
    },
    /// The config is inconsistent.
    #[error("{place} describes no model: {fault}; the file is damaged or was edited wrongly")]
    Contradiction {
        /// The file.
        place: String,
        /// The inconsistency.
        fault: String,
    },
    /// The device does not support the cache dtype.
    #[error(transparent)]
    CacheFormat(#[from] super::CacheFormat),
    /// A required tensor is missing.
    #[error(
        "{place}: tensor `{name}` is missing; the checkpoint is incomplete or of another architecture than its config says"
    )]
    MissingTensor {
        /// The file or folder.
        place: String,
        /// The tensor, by its name in the file.
        name: String,
    },
    /// A tensor's shape differs from the config.
    #[error("{place}: tensor `{name}` has shape {found:?} where the config implies {expected:?}")]
    Shape {
        /// The file or folder.
        place: String,
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The expected shape.
        expected: Vec<usize>,
    },
    /// Unused tensors: ignoring them would change the model.
    #[error(
        "{place}: tensors that this architecture does not use: {names}; the config does not describe this checkpoint"
    )]
    LeftOver {
        /// The file or folder.
        place: String,
        /// The first few names, comma-separated.
        names: String,
    },
    /// Invalid quantised blocks.
    #[error("{place}: {source}; fetch the model again")]
    Blocks {
        /// The file.
        place: String,
        /// The fault.
        source: super::weights::BlocksError,
    },
    /// No layers or devices were given.
    #[error("a model needs at least one layer and a device for each; none was given")]
    NoDevice,
    /// No path was given.
    #[error("no model file was given; name a model, a folder or a .gguf file")]
    NoFile,
    /// I/O error.
    #[error("cannot read {place}")]
    Io {
        /// The file.
        place: String,
        /// The I/O error.
        source: std::io::Error,
    },
    /// Invalid GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Invalid safetensors folder.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// Invalid JSON.
    #[error("{place} is not valid JSON; fetch the model again")]
    Json {
        /// The file.
        place: String,
        /// The parse error.
        source: serde_json::Error,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}
