//! Model files from the Hugging Face hub, or a mirror of it (`HF_ENDPOINT`).
//!
//! Called by [`ModelStore::pull`](super::ModelStore::pull). The revision is turned into a commit once, so that all files
//! are of one commit. Finished files wait in a folder named after that commit: a pull that was cut off goes on with the
//! first file that is not there. `HF_TOKEN` is read by the hub library and appears in no message.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use hf_hub::{HFClient, HFError};
use indicatif::ProgressBar;

use super::FetchError;
use crate::model::manifest::HubSource;
use crate::progress;

/// The start of the names of the folders in which finished files wait; a new pull keeps these.
pub(super) const KEPT_PREFIX: &str = "hub-";
/// Tries of one request before it counts as failed.
const ATTEMPTS: usize = 3;

/// What a hub source gave: complete files in one folder, not yet verified.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) dir: PathBuf,
    pub(super) commit: String,
    pub(super) names: Vec<String>,
}

/// Fetches the files of a source into a folder under `partial`.
pub(super) fn fetch(source: &HubSource, partial: &Path) -> Result<Fetched, FetchError> {
    let fail = |what: &str, error: HFError| match error {
        HFError::AuthRequired { .. } | HFError::Forbidden { .. } => {
            FetchError::HubToken { repo: source.repo.clone() }
        }
        error => {
            FetchError::Hub { repo: source.repo.clone(), what: what.to_string(), cause: innermost(&error) }
        }
    };
    let (owner, name) = hf_hub::split_id(&source.repo);
    let client = HFClient::builder()
        .retry_max_attempts(ATTEMPTS)
        .build_sync()
        .map_err(|error| fail("the connection", error))?;
    let repo = client.model(owner, name);
    let spinner = progress::spinner(&format!("looking up {}@{}", source.repo, source.revision));
    let commit = repo.info().revision(source.revision.as_str()).send().map(|info| info.sha);
    spinner.finish_and_clear();
    // A mirror may not say the commit; then the revision itself is all there is to pin.
    let commit =
        commit.map_err(|error| fail("the repository", error))?.unwrap_or_else(|| source.revision.clone());

    let safe: String = commit.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let dir = partial.join(format!("{KEPT_PREFIX}{safe}"));
    let unfinished = dir.join(".unfinished");
    let mut waiting: Vec<String> = source.files.iter().rev().map(|file| file.path.clone()).collect();
    let mut names = BTreeSet::new();
    while let Some(file) = waiting.pop() {
        if !names.insert(file.clone()) {
            continue;
        }
        let target = dir.join(&file);
        if !target.is_file() {
            let at = |source| FetchError::Io { doing: "write", path: target.clone(), source };
            std::fs::create_dir_all(&unfinished).map_err(at)?;
            let bar = Bar(progress::bytes(0, &file));
            let fetched = repo
                .download_file()
                .filename(file.as_str())
                .revision(commit.as_str())
                .local_dir(unfinished.clone())
                .progress(bar)
                .send()
                .map_err(|error| fail(&file, error))?;
            std::fs::rename(&fetched, &target).map_err(at)?;
        }
        if file.ends_with(".safetensors.index.json") {
            waiting.extend(shards(&target)?.into_iter().rev());
        }
    }
    // Only bookkeeping of the download lies there.
    let _ = std::fs::remove_dir_all(&unfinished);
    Ok(Fetched { dir, commit, names: names.into_iter().collect() })
}

/// What lies at the bottom of an error: the hub library and the HTTP client each repeat the address around it.
fn innermost(error: &HFError) -> String {
    let HFError::Request { url, .. } = error else { return error.to_string() };
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match url {
        Some(url) => format!("{cause} ({url})"),
        None => cause.to_string(),
    }
}

/// The shards that an index names.
fn shards(index: &Path) -> Result<BTreeSet<String>, FetchError> {
    let bad = |fault: String| FetchError::NotAModel { path: index.to_path_buf(), fault };
    let text = std::fs::read(index).map_err(|source| FetchError::Io {
        doing: "read",
        path: index.to_path_buf(),
        source,
    })?;
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

/// A bar that follows one file.
struct Bar(ProgressBar);

impl ProgressHandler for Bar {
    fn on_progress(&self, event: &ProgressEvent) {
        match event {
            ProgressEvent::Download(DownloadEvent::Start { total_bytes, .. }) => {
                self.0.set_length(*total_bytes);
            }
            ProgressEvent::Download(DownloadEvent::Progress { files }) => {
                if let Some(file) = files.first() {
                    self.0.set_position(file.bytes_completed);
                }
            }
            ProgressEvent::Download(DownloadEvent::AggregateProgress { bytes_completed, .. }) => {
                self.0.set_position(*bytes_completed);
            }
            ProgressEvent::Download(DownloadEvent::Complete) => self.0.finish_and_clear(),
            _ => {}
        }
    }
}
