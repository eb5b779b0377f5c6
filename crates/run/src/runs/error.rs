//! Errors of run folders.

use std::path::{Path, PathBuf};

use super::header::Difference;
use super::plan::PlanError;
use palimpsest_core::attention::StoreError;
use palimpsest_core::files::io_remedy;
use palimpsest_data::ground::jsonl::JsonlError;

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot {action} {path}: {source}{}", io_remedy(source))]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{dir} is being written by another process; wait for it to end")]
    Locked { dir: PathBuf },
    #[error("{dir} is no run folder: {reason}; give the folder of a run, or a new one with --out")]
    NotARun { dir: PathBuf, reason: String },
    #[error("{dir} holds a different run; use another --out. It differs in {}", list(differences))]
    DifferentRun { dir: PathBuf, differences: Vec<Difference> },
    #[error("{path}: {reason}; restore the file from a copy, or start again in another --out")]
    Broken { path: PathBuf, reason: String },
    #[error(transparent)]
    Rows(#[from] JsonlError),
    #[error("{dir} has no condition `{name}`; its conditions are: {known}")]
    UnknownCondition { dir: PathBuf, name: String, known: String },
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Attention(#[from] StoreError),
    /// Interrupted; all rows so far are on disk.
    #[error("stopped; the same command resumes")]
    Stopped,
    #[error("{0}")]
    GaveUp(String),
}

impl RunError {
    /// For `map_err`: adds the action and the path to an I/O error.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RunError {
        let path = path.to_owned();
        move |source| RunError::Io { action, path, source }
    }
}

/// `None` for a file that is not there.
pub(super) fn if_there<T>(read: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

fn list(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("; ")
}
