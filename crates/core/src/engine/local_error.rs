//! Errors of opening or using a local model.

use super::{EngineError, RequestError, memory_plan};
use crate::model::ModelError;
use crate::text::TextError;

/// A local model cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Unusable config or weights.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Unusable tokeniser or chat template.
    #[error(transparent)]
    Prompt(#[from] TextError),
    /// Inference failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A request has no output.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The chat template lacks the requested thinking switch.
    #[error("`{model}`: {source}")]
    Thinking {
        /// The model.
        model: String,
        /// The missing switch.
        source: TextError,
    },
    /// The requested context is longer than the model's.
    #[error(
        "a context of {asked} tokens is longer than the {limit} that `{model}` was made for; ask for less, use a model with a longer context, or pass --allow-longer to see what it does beyond"
    )]
    ContextTooLong {
        /// The model.
        model: String,
        /// Requested tokens.
        asked: usize,
        /// The model's maximum.
        limit: usize,
    },
    /// Not enough memory.
    #[error(transparent)]
    Memory(#[from] Box<memory_plan::DoesNotFit>),
    /// Prompt and answer exceed the context.
    #[error(
        "{needed} tokens (prompt and answer) do not fit the context of {context}; shorten the input, or use a longer context or a model that has one"
    )]
    DoesNotFit {
        /// Tokens needed.
        needed: usize,
        /// Tokens of the context.
        context: usize,
    },
}

impl From<candle_core::Error> for LocalError {
    fn from(error: candle_core::Error) -> Self {
        LocalError::Engine(EngineError::Tensor(error))
    }
}
