//! Faults of folders of safetensors.

use std::path::PathBuf;

use safetensors::tensor::Dtype;

use super::blocks::BlocksError;

/// A fault of a folder of safetensors. Every message names the file, the thing and the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages print
pub enum SafetensorsError {
    /// A file or folder could not be read or mapped.
    #[error("cannot read {file}")]
    Io { file: PathBuf, source: std::io::Error },
    /// The folder has no weights.
    #[error(
        "{dir} holds no *.safetensors; is it a model folder in Hugging Face layout? (weights in *.bin are not read)"
    )]
    NoWeights { dir: PathBuf },
    /// The file is not valid safetensors.
    #[error("{file} is not a complete safetensors file: {fault}; fetch it again")]
    Invalid { file: PathBuf, fault: String },
    /// The index is not valid.
    #[error("{file} is no index of safetensors shards: {fault}")]
    Index { file: PathBuf, fault: String },
    /// The index names a shard that is not there.
    #[error(
        "{index} names the shard {shard:?} (for the tensor {tensor:?}), which is not in the folder; fetch it"
    )]
    MissingShard { index: PathBuf, shard: String, tensor: String },
    /// The index says that a shard holds a tensor, and it does not.
    #[error(
        "{index} places the tensor {tensor:?} in {shard:?}, which does not hold it; index and shards are of different models"
    )]
    Misplaced { index: PathBuf, shard: String, tensor: String },
    /// Two shards hold the same tensor.
    #[error(
        "the tensor {tensor:?} is in {first} and in {second}; remove the file that does not belong to the model"
    )]
    Duplicate { tensor: String, first: PathBuf, second: PathBuf },
    /// Two files, each of which other programs take for the model, with different weights.
    #[error(
        "{dir} holds two sets of weights: {first} and {second} differ in the tensor {tensor:?}, and programs disagree on which is the \
         model; move one of them away"
    )]
    TwoSets { dir: PathBuf, first: PathBuf, second: PathBuf, tensor: String },
    /// A tensor that the caller asked for and the folder has not.
    #[error("{dir} has no tensor {tensor:?}; is it the architecture that config.json names?")]
    MissingTensor { dir: PathBuf, tensor: String },
    /// An entry of a stack of tensors that the caller asked for and the tensor has not.
    #[error(
        "{file}: tensor {tensor:?} of shape {shape:?} has no entry {index} along its first dimension; do the experts in config.json agree with the tensors?"
    )]
    MissingEntry { file: PathBuf, tensor: String, shape: Vec<usize>, index: usize },
    /// A part of a block-scaled weight that is stored in another way than the format says.
    #[error(
        "{file}: tensor {tensor:?} is stored as {stored:?} of shape {shape:?} where {wanted} was expected"
    )]
    Layout { file: PathBuf, tensor: String, stored: Dtype, shape: Vec<usize>, wanted: String },
    /// The bytes and scales of a block-scaled weight do not agree.
    #[error("{file}: tensor {tensor:?}")]
    Blocks { file: PathBuf, tensor: String, source: BlocksError },
    /// Candle could not make the tensor.
    #[error("{file}: tensor {tensor:?} ({stored:?}) could not be put on the device")]
    Candle { file: PathBuf, tensor: String, stored: Dtype, source: Box<candle_core::Error> },
}
