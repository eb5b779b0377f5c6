//! Why a self-test ended early.

use palimpsest_core::engine::EngineError;
use palimpsest_core::engine::memory_plan::DoesNotFit;
use palimpsest_core::model::ModelError;

/// Why the self-test ended early, or one of its parts did.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    #[error("interrupted")]
    Interrupted,
    #[error("no device was named; name at least one, such as cpu or cuda:0")]
    NoDevice,
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    DoesNotFit(#[from] Box<DoesNotFit>),
    #[error(transparent)]
    Engine(EngineError),
    #[error(transparent)]
    Spans(#[from] palimpsest_core::attention::SpanError),
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl From<EngineError> for SelfTestError {
    /// An interruption is no failure of the model.
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Interrupted => SelfTestError::Interrupted,
            other => SelfTestError::Engine(other),
        }
    }
}
