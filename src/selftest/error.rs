//! Why a self-test ended early.

use std::path::PathBuf;

use palimpsest_core::engine::EngineError;
use palimpsest_core::engine::memory_plan::DoesNotFit;
use palimpsest_core::model::ModelError;

/// Why the self-test ended early, or one of its parts did.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The temporary folder could not be written to.
    #[error(
        "the embedded checkpoints cannot be written to {folder}; set TMPDIR to a folder with 10 MB free that can be written to"
    )]
    Temporary {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no device to test.
    #[error("no device was named; name at least one, such as cpu or cuda:0")]
    NoDevice,
    /// A model could not be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A model does not fit.
    #[error(transparent)]
    DoesNotFit(#[from] Box<DoesNotFit>),
    /// A model could not be run.
    #[error(transparent)]
    Engine(EngineError),
    /// Spans that cannot be observed.
    #[error(transparent)]
    Spans(#[from] palimpsest_core::attention::SpanError),
    /// What is embedded is damaged.
    #[error("an embedded checkpoint is damaged: {0}; build or fetch the program again")]
    Embedded(#[from] serde_json::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}
