//! Why a run folder could not be used.

use std::path::{Path, PathBuf};

use super::header::Difference;
use super::plan::PlanError;
use crate::ground::jsonl::JsonlError;
use palimpsest_core::attention::StoreError;
use palimpsest_core::files::io_remedy;

/// Why a run folder could not be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages print
pub enum RunError {
    /// The file system refused.
    #[error("cannot {action} {path}: {source}{}", io_remedy(source))]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    /// Another process holds the folder.
    #[error("{dir} is being written by another process; wait for it to end, or use another --out")]
    Locked { dir: PathBuf },
    /// The folder holds something other than a run.
    #[error("{dir} is no run folder: {reason}; give the folder of a run, or a new one with --out")]
    NotARun { dir: PathBuf, reason: String },
    /// The folder holds another run.
    #[error("{dir} holds a different run; use another --out. It differs in {}", list(differences))]
    DifferentRun { dir: PathBuf, differences: Vec<Difference> },
    /// A file of what an answer reads of each session cannot be read.
    #[error("{path}: {reason}; delete it and measure the causes again, which makes it anew")]
    Measures { path: PathBuf, reason: String },
    /// Causes of a format that would be misread.
    #[error(
        "{path} line {line} is of an older format, in which effects have the other sign, controls stand inside rows, and a thought counts as \
         answer; move the file away and measure the causes again"
    )]
    OlderCauses { path: PathBuf, line: usize },
    /// A file of the folder is damaged in a way that no crash explains.
    #[error("{path}: {reason}; restore the file from a copy, or start again in another --out")]
    Broken { path: PathBuf, reason: String },
    /// A file of rows could not be used.
    #[error(transparent)]
    Rows(#[from] JsonlError),
    /// The run has no such condition.
    #[error("{dir} has no condition `{name}`; its conditions are: {known}")]
    UnknownCondition { dir: PathBuf, name: String, known: String },
    /// A run of a benchmark that this version does not know.
    #[error("{dir} is a run of the benchmark `{name}`, which this version does not know; it knows {known}")]
    UnknownBenchmark { dir: PathBuf, name: String, known: String },
    /// The plan is unusable.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An attention store could not be written.
    #[error(transparent)]
    Attention(#[from] StoreError),
    /// A stop was asked for; everything up to here is on the disk.
    #[error("stopped; the same command goes on from here")]
    Stopped,
    /// The model under test or the judge cannot work at all, so going on would only fill the folder with error rows.
    #[error("{0}")]
    GaveUp(String),
}

impl RunError {
    /// For `map_err`: wraps what the file system said when asked to `action` on `path`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RunError {
        let path = path.to_owned();
        move |source| RunError::Io { action, path, source }
    }
}

fn list(differences: &[Difference]) -> String {
    differences.iter().map(Difference::to_string).collect::<Vec<_>>().join("; ")
}
