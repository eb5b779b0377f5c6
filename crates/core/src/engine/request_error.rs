//! Errors of a request.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::EngineError;
use crate::attention::{SpanError, TargetError};

/// A task has no output.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // printed by the messages
pub enum RequestError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Spans(#[from] SpanError),
    #[error(transparent)]
    Targets(#[from] TargetError),
    #[error("{needed} tokens of prompt and answer do not fit the context of {context}; shorten them")]
    TooLong { needed: usize, context: usize },
    #[error("a server cannot be asked for {what}; run the model itself for that")]
    NotServed { what: &'static str },
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    RefusedTooLong(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("This is a bug: the request made the model's thread panic; the next one is served")]
    Panicked,
    #[error("the model's thread has ended; start it again")]
    Gone,
}

impl From<candle_core::Error> for RequestError {
    fn from(error: candle_core::Error) -> Self {
        RequestError::Engine(error.into())
    }
}

impl RequestError {
    /// A copy of the error for another task of the same prompt.
    pub(super) fn again(&self) -> Self {
        match self {
            RequestError::Engine(EngineError::NotFinite { position, value, dtype }) => {
                EngineError::NotFinite { position: *position, value: *value, dtype: *dtype }.into()
            }
            RequestError::Engine(EngineError::Interrupted) => EngineError::Interrupted.into(),
            RequestError::Panicked => RequestError::Panicked,
            RequestError::Gone => RequestError::Gone,
            other => candle_core::Error::msg(other.to_string()).into(),
        }
    }
}

/// Runs a part of one request; its panic fails only that request. The panic hook has already printed the message.
pub(super) fn guarded<T, E: Into<RequestError>>(
    part: impl FnOnce() -> Result<T, E>,
) -> Result<T, RequestError> {
    match catch_unwind(AssertUnwindSafe(part)) {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(RequestError::Panicked),
    }
}
