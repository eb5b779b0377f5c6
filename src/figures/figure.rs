//! A figure, and why one could not be made.

use std::path::PathBuf;

/// A picture with what belongs to it.
#[derive(Debug, Clone)]
pub struct Figure {
    pub name: String,
    pub title: String,
    /// Reading instructions, and the groups that are missing from it.
    pub caption: String,
    pub svg: String,
    /// The numbers in it, in long format.
    pub csv: Vec<u8>,
}

/// Why a figure could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    #[error("figure `{figure}`: {reason}")]
    Draw { figure: String, reason: String },
    #[error("report: {0}")]
    Template(#[from] minijinja::Error),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}
