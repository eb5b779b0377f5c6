//! A figure, and why one could not be made.

use std::path::PathBuf;

/// A picture with what belongs to it.
#[derive(Debug, Clone)]
pub struct Figure {
    /// File name without extension.
    pub name: String,
    /// Its content, in a few words.
    pub title: String,
    /// Reading instructions, and the groups that are missing from it.
    pub caption: String,
    /// The picture.
    pub svg: String,
    /// The numbers in it, in long format.
    pub csv: Vec<u8>,
}

/// Why a figure could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// The drawing library refused.
    #[error("figure `{figure}`: {reason}")]
    Draw {
        /// The figure's name.
        figure: String,
        /// The library's message.
        reason: String,
    },
    /// The page's template failed.
    #[error("report: {0}")]
    Template(#[from] minijinja::Error),
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: std::io::Error,
    },
}
