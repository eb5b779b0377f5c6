//! Why a request has no output.

use super::EngineError;
use crate::attention::{SpanError, TargetError};

/// A task has no output.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The model could not serve it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Its spans cannot be measured.
    #[error(transparent)]
    Spans(#[from] SpanError),
    /// Its targets cannot be attributed.
    #[error(transparent)]
    Targets(#[from] TargetError),
    /// It is longer than the cache.
    #[error("{needed} tokens of prompt and answer do not fit the context of {context}; shorten them")]
    TooLong {
        /// Tokens of both.
        needed: usize,
        /// Tokens of the cache.
        context: usize,
    },
    /// A server cannot be asked for it.
    #[error("a server cannot be asked for {what}; run the model itself for that")]
    NotServed {
        /// The part of the request.
        what: &'static str,
    },
    /// A server refused the request, or its reply cannot be used.
    #[error("{0}")]
    Refused(String),
    /// A server refused the request, since its prompt is longer than the context.
    #[error("{0}")]
    RefusedTooLong(String),
    /// A server did not reply.
    #[error("{0}")]
    Unreachable(String),
    /// Serving it panicked.
    #[error("This is a bug: the request made the model's thread panic; the next one is served")]
    Panicked,
    /// The thread is gone.
    #[error("the model's thread has ended; start it again")]
    Gone,
}
