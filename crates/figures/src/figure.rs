//! A figure and its errors.

use std::path::PathBuf;

use super::drawing::Drawing;

#[derive(Debug, Clone)]
pub struct Figure {
    pub name: String,
    pub title: String,
    /// How to read it, and which groups are missing.
    pub caption: String,
    pub svg: String,
    pub csv: Vec<u8>,
    pub(super) drawing: Drawing,
}

impl Figure {
    pub(super) fn of(
        name: impl Into<String>,
        title: impl Into<String>,
        caption: String,
        drawing: Drawing,
        csv: Vec<u8>,
    ) -> Self {
        let title = title.into();
        Figure { name: name.into(), svg: drawing.svg(&title), title, caption, csv, drawing }
    }

    pub(super) fn refused(&self, reason: String) -> FigureError {
        FigureError::Draw { figure: self.name.clone(), reason }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    #[error("figure `{figure}`: {reason}")]
    Draw { figure: String, reason: String },
    #[error("report: {0}")]
    Template(#[from] minijinja::Error),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
}
