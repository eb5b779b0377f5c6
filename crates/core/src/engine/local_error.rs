//! Errors of opening or using a local model.

use super::{EngineError, RequestError, memory_plan};
use crate::model::ModelError;
use crate::text::TextError;

/// A local model cannot be opened or used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // printed by the messages
pub enum LocalError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Prompt(#[from] TextError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("`{model}`: {source}")]
    Thinking { model: String, source: TextError },
    #[error(
        "a context of {asked} tokens is longer than the {limit} that `{model}` was made for; ask for less, use a model with a longer context, or pass --allow-longer to see what it does beyond"
    )]
    ContextTooLong { model: String, asked: usize, limit: usize },
    #[error(transparent)]
    Memory(#[from] Box<memory_plan::DoesNotFit>),
    #[error(
        "{needed} tokens (prompt and answer) do not fit the context of {context}; shorten the input, or use a longer context or a model that has one"
    )]
    DoesNotFit { needed: usize, context: usize },
}

impl From<candle_core::Error> for LocalError {
    fn from(error: candle_core::Error) -> Self {
        LocalError::Engine(EngineError::Tensor(error))
    }
}
