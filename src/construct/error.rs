//! Reasons why nothing can be built.

use std::path::{Path, PathBuf};

use palimpsest_core::text::TextError;

use crate::models::ModelsError;

/// Why a build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("{name}: {message}")]
    Toml { name: String, message: String },
    #[error("{field}: {found}; {remedy}")]
    Field { field: String, found: String, remedy: String },
    #[error("{} line {line}, {field}: {found}; {remedy}", path.display())]
    Filler {
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        field: String,
        found: String,
        remedy: &'static str,
    },
    #[error("none of the {asked} items could be made under the tokenizer {tokenizer}: {reason}")]
    Nothing { asked: usize, tokenizer: String, reason: String },
    /// The tokenizer could not be opened.
    #[error(
        "the tokenizer `{name}` cannot be opened; fetch the model with `palimpsest model pull {name}`, or name a folder, a tokenizer.json or an encoding with --tokenizer"
    )]
    Tokenizer { name: String, source: Box<ModelsError> },
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Which: `read`, `write`.
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
}

impl BuildError {
    /// A wrong field.
    pub(super) fn field(field: &str, found: String, remedy: impl Into<String>) -> Self {
        BuildError::Field { field: field.to_owned(), found, remedy: remedy.into() }
    }

    /// A file that fails.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| BuildError::Io { action, path: path.to_owned(), source }
    }
}
