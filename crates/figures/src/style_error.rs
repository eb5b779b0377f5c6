//! Errors of style files.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum StyleError {
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {reason}; `palimpsest figures --style-example` prints a whole style file")]
    Toml { path: PathBuf, reason: String },
    #[error(
        "{path} is no font that can be drawn with ({reason}); give a TrueType or OpenType file (.ttf, .otf)"
    )]
    Font { path: PathBuf, reason: String },
}
