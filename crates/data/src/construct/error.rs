//! Errors of a build.

use std::path::{Path, PathBuf};

use palimpsest_core::text::TextError;

use crate::ground::text_file::refused;

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("{name}: {message}")]
    Toml { name: String, message: String },
    #[error("{field}: {found}; {remedy}")]
    Field { field: String, found: String, remedy: String },
    /// Every fault with its line.
    #[error("{}", refused(.path, .faults, "the sessions that are drawn depend on the whole file"))]
    Fillers { path: PathBuf, faults: Vec<String> },
    #[error("none of the {asked} items could be made under the tokenizer {tokenizer}: {reason}")]
    Nothing { asked: usize, tokenizer: String, reason: String },
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
}

#[derive(Debug)]
pub enum Unmade {
    Dropped(String),
    Failed(BuildError),
}

impl<E: Into<BuildError>> From<E> for Unmade {
    fn from(error: E) -> Self {
        Unmade::Failed(error.into())
    }
}

impl BuildError {
    pub(super) fn field(field: &str, found: String, remedy: impl Into<String>) -> Self {
        BuildError::Field { field: field.to_owned(), found, remedy: remedy.into() }
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| BuildError::Io { action, path: path.to_owned(), source }
    }
}
