//! Errors of safetensors folders.

use std::path::PathBuf;

use safetensors::tensor::Dtype;

use super::blocks::BlocksError;

/// An invalid safetensors folder, or a request for something that it does not hold.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // printed by the messages
pub enum SafetensorsError {
    #[error("cannot read {file}")]
    Io { file: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Invalid(String),
    /// Bytes and scales of a block-scaled weight do not match.
    #[error("{file}: tensor {tensor:?}")]
    Blocks { file: PathBuf, tensor: String, source: BlocksError },
    #[error("{file}: tensor {tensor:?} ({stored:?}) could not be put on the device")]
    Candle { file: PathBuf, tensor: String, stored: Dtype, source: Box<candle_core::Error> },
}
