//! Errors of specs and of stages.

use std::path::{Path, PathBuf};

/// A build cannot be started or go on.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("{name}: {message}")]
    Toml { name: String, message: String },
    /// `field` is a path in the spec: `stage old: checks[1]`.
    #[error("{name}: {field}: {found}; {remedy}")]
    Field { name: String, field: String, found: String, remedy: String },
    #[error("stage {stage}: {message}")]
    Stage { stage: String, message: String },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
}

impl BuildError {
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| BuildError::Io { action, path: path.to_owned(), source }
    }

    pub fn stage(stage: &str, message: impl Into<String>) -> Self {
        BuildError::Stage { stage: stage.to_owned(), message: message.into() }
    }
}

/// Why a maker makes no row of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowError {
    /// The row is rejected for this reason, which is counted in `yield.csv`; equal reasons have equal texts.
    Rejected(String),
    /// The spec or a source is wrong; the build ends.
    Fault(String),
}

impl RowError {
    pub fn rejected(why: impl ToString) -> Self {
        RowError::Rejected(why.to_string())
    }

    pub fn fault(what: impl ToString) -> Self {
        RowError::Fault(what.to_string())
    }
}
