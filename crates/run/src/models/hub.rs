//! Fetches model files from the Hugging Face hub or a mirror (`HF_ENDPOINT`).
//!
//! Called by [`ModelStore::pull`](super::ModelStore::pull). Resolves the revision to a commit once. Finished files stay in a folder named
//! after the commit, so an interrupted pull resumes. The token (`HF_TOKEN`, or from `huggingface-cli login`) appears in no message.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use indicatif::ProgressBar;

use palimpsest_core::model::PathError;

use super::ModelsError;
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

pub(super) fn fetch(source: &HubSource, partial: &Path) -> Result<Fetched, ModelsError> {
    let fail = |what: &str, error: ApiError| match status(&error) {
        Some(401 | 403) => ModelsError::HubToken { repo: source.repo.clone() },
        _ => ModelsError::Hub { repo: source.repo.clone(), what: what.to_string(), cause: error.to_string() },
    };
    let repo = |revision: &str, cache: PathBuf| -> Result<ApiRepo, ModelsError> {
        let token = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty());
        let mut builder = ApiBuilder::from_cache(Cache::new(cache))
            .with_token(token.or_else(|| Cache::from_env().token()))
            .with_retries(ATTEMPTS)
            .with_progress(false);
        if let Ok(endpoint) = std::env::var("HF_ENDPOINT") {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        let api = builder.build().map_err(|error| fail("the connection", error))?;
        Ok(api.repo(Repo::with_revision(source.repo.clone(), RepoType::Model, revision.to_owned())))
    };
    let spinner = progress::spinner(&format!("looking up {}@{}", source.repo, source.revision));
    let commit = commit_of(&repo(&source.revision, partial.to_owned())?);
    spinner.finish_and_clear();
    // If a mirror does not report the commit, pin the revision itself.
    let commit =
        commit.map_err(|error| fail("the repository", error))?.unwrap_or_else(|| source.revision.clone());

    let safe: String = commit.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let dir = partial.join(format!("{KEPT_PREFIX}{safe}"));
    let unfinished = dir.join(".unfinished");
    let mut waiting: Vec<String> = source.files.iter().rev().map(|file| file.path.clone()).collect();
    let mut names = BTreeSet::new();
    let pinned = repo(&commit, unfinished.clone())?;
    while let Some(file) = waiting.pop() {
        if !names.insert(file.clone()) {
            continue;
        }
        let target = dir.join(&file);
        if !target.is_file() {
            let at = |source| ModelsError::Io { doing: "write", path: target.clone(), source };
            std::fs::create_dir_all(&unfinished).map_err(at)?;
            let bar = Bar(progress::bytes(0, &file));
            let fetched = pinned.download_with_progress(&file, bar).map_err(|error| fail(&file, error))?;
            let fetched = std::fs::canonicalize(&fetched).map_err(at)?;
            if let Some(folder) = target.parent() {
                std::fs::create_dir_all(folder).map_err(at)?;
            }
            std::fs::rename(&fetched, &target).map_err(at)?;
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

fn shards(index: &Path) -> Result<BTreeSet<String>, ModelsError> {
    let bad = |fault: String| ModelsError::from(PathError::NotAModel { path: index.to_path_buf(), fault });
    let text = std::fs::read(index).map_err(ModelsError::io("read", index))?;
    let index: serde_json::Value = serde_json::from_slice(&text)
        .map_err(|error| bad(format!("the index of shards is not JSON ({error})")))?;
    let map = index
        .get("weight_map")
        .and_then(serde_json::Value::as_object)
        .ok_or_else(|| bad("the index of shards has no weight_map".to_string()))?;
    map.values()
        .map(|shard| match shard.as_str() {
            Some(name) if name.ends_with(".safetensors") && !name.contains(['/', '\\']) => {
                Ok(name.to_string())
            }
            _ => Err(bad(format!("the index of shards names {shard}, which is no *.safetensors beside it"))),
        })
        .collect()
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
