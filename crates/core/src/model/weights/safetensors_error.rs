//! Errors of safetensors folders.

use std::path::PathBuf;

use safetensors::tensor::Dtype;

use super::blocks::BlocksError;

/// An invalid safetensors folder. Messages name the file, the thing and the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // printed by the messages
pub enum SafetensorsError {
    /// I/O error.
    #[error("cannot read {file}")]
    Io { file: PathBuf, source: std::io::Error },
    /// The folder has no weights.
    #[error(
        "{dir} holds no *.safetensors; is it a model folder in Hugging Face layout? (weights in *.bin are not read)"
    )]
    NoWeights { dir: PathBuf },
    /// Invalid safetensors file.
    #[error("{file} is not a complete safetensors file: {fault}; fetch it again")]
    Invalid { file: PathBuf, fault: String },
    /// Invalid index.
    #[error("{file} is no index of safetensors shards: {fault}")]
    Index { file: PathBuf, fault: String },
    /// The index names a missing shard.
    #[error(
        "{index} names the shard {shard:?} (for the tensor {tensor:?}), which is not in the folder; fetch it"
    )]
    MissingShard { index: PathBuf, shard: String, tensor: String },
    /// A shard lacks a tensor that the index places there.
    #[error(
        "{index} places the tensor {tensor:?} in {shard:?}, which does not hold it; index and shards are of different models"
    )]
    Misplaced { index: PathBuf, shard: String, tensor: String },
    /// Two shards hold the same tensor.
    #[error(
        "the tensor {tensor:?} is in {first} and in {second}; remove the file that does not belong to the model"
    )]
    Duplicate { tensor: String, first: PathBuf, second: PathBuf },
    /// Two sets of different weights, and programs disagree on which to load.
    #[error(
        "{dir} holds two sets of weights: {first} and {second} differ in the tensor {tensor:?}, and programs disagree on which is the \
         model; move one of them away"
    )]
    TwoSets { dir: PathBuf, first: PathBuf, second: PathBuf, tensor: String },
    /// A requested tensor is missing.
    #[error("{dir} has no tensor {tensor:?}; is it the architecture that config.json names?")]
    MissingTensor { dir: PathBuf, tensor: String },
    /// A requested entry of a stacked tensor is out of range.
    #[error(
        "{file}: tensor {tensor:?} of shape {shape:?} has no entry {index} along its first dimension; do the experts in config.json agree with the tensors?"
    )]
    MissingEntry { file: PathBuf, tensor: String, shape: Vec<usize>, index: usize },
    /// Unexpected type or shape of a block-scaled weight's part.
    #[error(
        "{file}: tensor {tensor:?} is stored as {stored:?} of shape {shape:?} where {wanted} was expected"
    )]
    Layout { file: PathBuf, tensor: String, stored: Dtype, shape: Vec<usize>, wanted: String },
    /// Bytes and scales of a block-scaled weight do not match.
    #[error("{file}: tensor {tensor:?}")]
    Blocks { file: PathBuf, tensor: String, source: BlocksError },
    /// Candle error.
    #[error("{file}: tensor {tensor:?} ({stored:?}) could not be put on the device")]
    Candle { file: PathBuf, tensor: String, stored: Dtype, source: Box<candle_core::Error> },
}
