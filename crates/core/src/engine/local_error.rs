//! Why a local model could not be opened or used.

use super::{EngineError, RequestError, memory_plan};
use crate::model::ModelError;
use crate::text::TextError;

/// Why a local model could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Its config or weights are unusable.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its tokeniser or chat template is unusable.
    #[error(transparent)]
    Prompt(#[from] TextError),
    /// It could not be run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A request to it has no output.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Its chat template cannot do what is asked about thoughts.
    #[error("`{model}`: {source}")]
    Thinking {
        /// The model.
        model: String,
        /// The switch that it lacks.
        source: TextError,
    },
    /// The context asked for is longer than the model's.
    #[error(
        "a context of {asked} tokens is longer than the {limit} that `{model}` was made for; ask for less, use a model with a longer context, or pass --allow-longer to see what it does beyond"
    )]
    ContextTooLong {
        /// The model.
        model: String,
        /// The length that was asked for.
        asked: usize,
        /// The model's.
        limit: usize,
    },
    /// There is not enough memory.
    #[error(transparent)]
    Memory(#[from] Box<memory_plan::DoesNotFit>),
    /// A conversation does not fit.
    #[error(
        "{needed} tokens (prompt and answer) do not fit the context of {context}; shorten the input, or use a longer context or a model that has one"
    )]
    DoesNotFit {
        /// Tokens needed.
        needed: usize,
        /// Tokens there are.
        context: usize,
    },
}

impl From<candle_core::Error> for LocalError {
    fn from(error: candle_core::Error) -> Self {
        LocalError::Engine(EngineError::Tensor(error))
    }
}
