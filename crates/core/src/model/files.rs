//! A model's files at a path. Looks at names only; readers validate the contents.

use std::io;
use std::path::{Path, PathBuf};

use super::weights::gguf::{self, GgufError};

/// Files of a model folder, besides the weights, that affect its answers; part of its digest.
pub const FOLDER_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// File format of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelKind {
    /// One GGUF file, or all parts of a split one in order.
    Gguf(Vec<PathBuf>),
    /// A folder in Hugging Face layout (config.json, *.safetensors, tokenizer.json, ...).
    Folder(PathBuf),
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    /// The requested name, or that of the file (without extension) or folder.
    pub name: String,
    /// Paths of the files.
    pub kind: ModelKind,
}

/// No model at a path.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // printed by the messages
pub enum PathError {
    #[error(
        "there is no file or folder {path}; give a model's name (palimpsest model list), a .gguf file, a folder or a repository of the Hugging Face hub (owner/name)"
    )]
    NoSuchPath { path: PathBuf },
    #[error("{path} is not a model: {fault}")]
    NotAModel { path: PathBuf, fault: String },
    #[error("cannot read {path}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

impl ModelFiles {
    /// Path for display: the (first) GGUF file or the folder.
    pub fn path(&self) -> &Path {
        match &self.kind {
            ModelKind::Gguf(parts) => parts.first().map_or(Path::new(""), PathBuf::as_path),
            ModelKind::Folder(dir) => dir,
        }
    }

    /// All parts of the GGUF file, or the folder.
    pub fn paths(&self) -> Vec<PathBuf> {
        match &self.kind {
            ModelKind::Gguf(parts) => parts.clone(),
            ModelKind::Folder(dir) => vec![dir.clone()],
        }
    }

    /// Finds the model at a path: a folder with config.json, or a `.gguf` file with all its parts.
    pub fn at(path: &Path) -> Result<ModelFiles, PathError> {
        let not_a_model = |fault: String| PathError::NotAModel { path: path.to_path_buf(), fault };
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(PathError::NoSuchPath { path: path.to_path_buf() });
            }
            Err(source) => return Err(PathError::Io { path: path.to_path_buf(), source }),
        };
        if metadata.is_dir() {
            if !path.join("config.json").is_file() {
                let fault = "the folder has no config.json; give a folder in Hugging Face layout, or the .gguf file itself";
                return Err(not_a_model(fault.to_string()));
            }
            let io = |source| PathError::Io { path: path.to_path_buf(), source };
            for entry in std::fs::read_dir(path).map_err(io)? {
                let entry = entry.map_err(io)?.path();
                if entry.exists() && !(entry.is_file() || entry.is_dir()) {
                    let name = entry.file_name().unwrap_or_default().display();
                    return Err(not_a_model(format!(
                        "its `{name}` is a FIFO, socket or device, not a regular file"
                    )));
                }
            }
            // `.` and `models/` have no file name; their canonical path has one.
            let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
            let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Ok(ModelFiles { name, kind: ModelKind::Folder(path.to_path_buf()) });
        }
        if !is_gguf(path) {
            return Err(not_a_model(
                "expected a .gguf file, or a folder with config.json and *.safetensors".to_string(),
            ));
        }
        // Opening a FIFO would wait for its other end.
        let parts = gguf::split_parts(path)?;
        if let Some(part) = parts.iter().find(|part| part.exists() && !part.is_file()) {
            let fault = format!("{} is a folder, FIFO, socket or device, not a regular file", part.display());
            return Err(not_a_model(fault));
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(ModelFiles { name, kind: ModelKind::Gguf(parts) })
    }

    /// Files that affect the model's answers: all GGUF parts, or a folder's files that are read.
    pub fn deciding(&self) -> Result<Vec<PathBuf>, PathError> {
        let dir = match &self.kind {
            ModelKind::Gguf(parts) => return Ok(parts.clone()),
            ModelKind::Folder(dir) => dir,
        };
        let at = |source| PathError::Io { path: dir.clone(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(at)? {
            let path = entry.map_err(at)?.path();
            let named = path
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| FOLDER_FILES.contains(&name));
            if (named || path.extension().is_some_and(|extension| extension == "safetensors"))
                && path.is_file()
            {
                files.push(path);
            }
        }
        Ok(files)
    }
}

/// True for the `.gguf` extension.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}
