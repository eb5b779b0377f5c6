//! Errors of a request.

use super::EngineError;
use crate::attention::{SpanError, TargetError};

/// A task has no output.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Inference failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The spans cannot be measured.
    #[error(transparent)]
    Spans(#[from] SpanError),
    /// The targets cannot be attributed.
    #[error(transparent)]
    Targets(#[from] TargetError),
    /// Prompt and answer exceed the cache.
    #[error("{needed} tokens of prompt and answer do not fit the context of {context}; shorten them")]
    TooLong {
        /// Tokens of prompt and answer.
        needed: usize,
        /// Tokens of the cache.
        context: usize,
    },
    /// A remote server does not support this part of a request.
    #[error("a server cannot be asked for {what}; run the model itself for that")]
    NotServed {
        /// The unsupported part.
        what: &'static str,
    },
    /// A server refused the request, or its reply is unusable.
    #[error("{0}")]
    Refused(String),
    /// A server refused the prompt as too long.
    #[error("{0}")]
    RefusedTooLong(String),
    /// A server did not reply.
    #[error("{0}")]
    Unreachable(String),
    /// The engine panicked while serving the request.
    #[error("This is a bug: the request made the model's thread panic; the next one is served")]
    Panicked,
    /// The engine thread has ended.
    #[error("the model's thread has ended; start it again")]
    Gone,
}
