//! Fetches model files from the Hugging Face hub or a mirror (`HF_ENDPOINT`).
//!
//! Called by [`ModelStore::pull`](super::ModelStore::pull). Resolves the revision to a commit once. Finished files stay in a folder named
//! after the commit, so an interrupted pull resumes. The token (`HF_TOKEN`, or from `huggingface-cli login`) appears in no message.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use indicatif::ProgressBar;
use serde::Deserialize;

use super::error::cannot;
use crate::models::manifest::HubSource;
use crate::progress;

/// Name prefix of folders with finished files; new pulls keep them.
pub(super) const KEPT_PREFIX: &str = "hub-";
const ATTEMPTS: usize = 3;

/// Complete but unverified files in one folder.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) dir: PathBuf,
    pub(super) commit: String,
    pub(super) names: Vec<String>,
}

pub(super) fn fetch(source: &HubSource, partial: &Path) -> anyhow::Result<Fetched> {
    let repo = &source.repo;
    let fail = |what: &str, error: ApiError| match status(&error) {
        Some(401 | 403) => anyhow!(
            "{repo} is closed to anonymous readers; accept its terms on its hub page, then set HF_TOKEN to a token that may read it"
        ),
        _ => anyhow!(
            "{what} of {repo} could not be fetched from the hub; check the network, or name a mirror in HF_ENDPOINT: {error}"
        ),
    };
    let opened = |revision: &str, cache: PathBuf| -> anyhow::Result<ApiRepo> {
        let token = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty());
        let mut builder = ApiBuilder::from_cache(Cache::new(cache))
            .with_token(token.or_else(|| Cache::from_env().token()))
            .with_retries(ATTEMPTS)
            .with_progress(false);
        if let Ok(endpoint) = std::env::var("HF_ENDPOINT") {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        let api = builder.build().map_err(|error| fail("the connection", error))?;
        Ok(api.repo(Repo::with_revision(repo.clone(), RepoType::Model, revision.to_owned())))
    };
    let spinner = progress::spinner(&format!("looking up {}@{}", source.repo, source.revision));
    let commit = commit_of(&opened(&source.revision, partial.to_owned())?);
    spinner.finish_and_clear();
    // If a mirror does not report the commit, pin the revision itself.
    let commit =
        commit.map_err(|error| fail("the repository", error))?.unwrap_or_else(|| source.revision.clone());

    let safe: String = commit.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let dir = partial.join(format!("{KEPT_PREFIX}{safe}"));
    let unfinished = dir.join(".unfinished");
    let mut waiting: Vec<String> = source.files.iter().rev().map(|file| file.path.clone()).collect();
    let mut names = BTreeSet::new();
    let pinned = opened(&commit, unfinished.clone())?;
    while let Some(file) = waiting.pop() {
        if !names.insert(file.clone()) {
            continue;
        }
        let target = dir.join(&file);
        if !target.is_file() {
            let at = cannot("write", &target);
            std::fs::create_dir_all(&unfinished).with_context(&at)?;
            let bar = Bar(progress::bytes(0, &file));
            let fetched = pinned.download_with_progress(&file, bar).map_err(|error| fail(&file, error))?;
            let fetched = std::fs::canonicalize(&fetched).with_context(&at)?;
            if let Some(folder) = target.parent() {
                std::fs::create_dir_all(folder).with_context(&at)?;
            }
            std::fs::rename(&fetched, &target).with_context(&at)?;
        }
        if file.ends_with(".safetensors.index.json") {
            waiting.extend(shards(&target)?.into_iter().rev());
        }
    }
    let _ = std::fs::remove_dir_all(&unfinished);
    Ok(Fetched { dir, commit, names: names.into_iter().collect() })
}

fn commit_of(repo: &ApiRepo) -> Result<Option<String>, ApiError> {
    let mut response = repo.info_request().call().map_err(Box::new)?;
    let info: serde_json::Value = response.body_mut().read_json().map_err(Box::new)?;
    Ok(info.get("sha").and_then(serde_json::Value::as_str).map(str::to_owned))
}

fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match &**error {
            ureq::Error::StatusCode(status) => Some(*status),
            _ => None,
        },
        ApiError::TooManyRetries(error) => status(error),
        _ => None,
    }
}

fn shards(index: &Path) -> anyhow::Result<BTreeSet<String>> {
    let bad = || format!("{} is not a model", index.display());
    let text = std::fs::read(index).with_context(cannot("read", index))?;
    let Index { weight_map } =
        serde_json::from_slice(&text).context("the index of shards").with_context(bad)?;
    let shards: BTreeSet<String> = weight_map.into_values().collect();
    for name in &shards {
        ensure!(
            name.ends_with(".safetensors") && !name.contains(['/', '\\']),
            "{}: the index of shards names {name:?}, which is no *.safetensors beside it",
            bad()
        );
    }
    Ok(shards)
}

/// `*.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    /// File by tensor.
    weight_map: BTreeMap<String, String>,
}

struct Bar(ProgressBar);

impl Progress for Bar {
    fn init(&mut self, size: usize, _: &str) {
        self.0.set_length(size as u64);
    }

    fn update(&mut self, size: usize) {
        self.0.inc(size as u64);
    }

    fn finish(&mut self) {
        self.0.finish_and_clear();
    }
}
