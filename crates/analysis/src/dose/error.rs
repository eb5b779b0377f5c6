//! Errors of the analysis of doses.

use std::path::PathBuf;

use palimpsest_core::attention::StoreError;
use palimpsest_data::ground::jsonl::JsonlError;
use palimpsest_run::runs::error::RunError;

#[derive(Debug, thiserror::Error)]
pub enum DoseError {
    #[error(
        "{} is a run of {benchmark}; palimpsest dose reads runs of data made by `palimpsest build dose`",
        dir.display()
    )]
    OtherBenchmark { dir: PathBuf, benchmark: String },
    #[error(
        "{}: none of {answers} answers has log-probabilities of its values ({reason}); make the run with a model on this machine, which \
         gives them",
        dir.display()
    )]
    NoContrast { dir: PathBuf, answers: usize, reason: String },
    #[error("{}: no factor `{factor}` is varied in this run; varied are {known}", dir.display())]
    UnknownFactor { dir: PathBuf, factor: String, known: String },
    #[error(
        "{}: no item passes the gate (right with the old session alone and with the new one alone, in both orders); leave --gated out",
        dir.display()
    )]
    NoneGated { dir: PathBuf },
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Rows(#[from] JsonlError),
    #[error(transparent)]
    Store(#[from] StoreError),
}
