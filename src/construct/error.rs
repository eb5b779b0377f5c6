//! Reasons why nothing can be built.

use std::path::{Path, PathBuf};

use palimpsest_core::text::TextError;

use crate::models::CounterError;

/// Why a build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A spec is no TOML, or has fields that are none.
    #[error("{name}: {message}")]
    Toml {
        /// The spec.
        name: String,
        /// Line and reason.
        message: String,
    },
    /// A field of a spec has a wrong value.
    #[error("{field}: {found}; {remedy}")]
    Field {
        /// The field by its path.
        field: String,
        /// Its value.
        found: String,
        /// The remedy.
        remedy: String,
    },
    /// A line of a file of fillers is wrong.
    #[error("{} line {line}, {field}: {found}; {remedy}", path.display())]
    Filler {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Its field.
        field: String,
        /// The value that stands there.
        found: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// No item could be made.
    #[error("none of the {asked} items could be made under the tokenizer {tokenizer}: {reason}")]
    Nothing {
        /// Items that were asked for.
        asked: usize,
        /// The tokenizer's name.
        tokenizer: String,
        /// The first reason.
        reason: String,
    },
    /// The tokenizer could not be opened.
    #[error(
        "the tokenizer `{name}` cannot be opened; fetch the model with `palimpsest model pull {name}`, or name a folder, a tokenizer.json or an encoding with --tokenizer"
    )]
    Tokenizer {
        /// As it was asked for.
        name: String,
        /// Why.
        source: Box<CounterError>,
    },
    /// A text could not be tokenised.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A file could not be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Which: `read`, `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
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
