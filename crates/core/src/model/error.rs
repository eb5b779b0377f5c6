//! Errors of describing, loading and running models.

use super::weights::{BlocksError, GgufError, SafetensorsError};

/// A model could not be described, loaded or run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // printed by the messages
pub enum ModelError {
    #[error(
        "unknown architecture `{found}`; this build knows {known}. See CONTRIBUTING.md for how to add one"
    )]
    UnknownArchitecture { found: String, known: String },
    #[error("{place}: `{field}` {problem}")]
    Config { place: String, field: String, problem: String },
    #[error("{place} describes no model: {fault}; the file is damaged or was edited wrongly")]
    Contradiction { place: String, fault: String },
    #[error(transparent)]
    CacheFormat(#[from] super::CacheFormat),
    #[error(
        "{place}: tensor `{name}` is missing; the checkpoint is incomplete or of another architecture than its config says"
    )]
    MissingTensor { place: String, name: String },
    #[error("{place}: tensor `{name}` has shape {found:?} where the config implies {expected:?}")]
    Shape { place: String, name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error(
        "{place}: tensors that this architecture does not use: {names}; the config does not describe this checkpoint"
    )]
    LeftOver { place: String, names: String },
    #[error("{place}: {source}; fetch the model again")]
    Blocks { place: String, source: BlocksError },
    #[error("a model needs at least one layer and a device for each; none was given")]
    NoDevice,
    #[error("no model file was given; name a model, a folder or a .gguf file")]
    NoFile,
    #[error("cannot read {place}")]
    Io { place: String, source: std::io::Error },
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    #[error("{place} is not valid JSON; fetch the model again")]
    Json { place: String, source: serde_json::Error },
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}
