//! Requests to the hub or a mirror of it (`HF_ENDPOINT`): what a repository holds, and its files. The token appears in no message.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use hf_hub::api::Progress;
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use indicatif::ProgressBar;
use serde::Deserialize;

use crate::progress;

const ATTEMPTS: usize = 3;
/// For one answer about a repository.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub(super) struct Client {
    pub endpoint: String,
    token: Option<String>,
}

/// Files of a repository at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    pub commit: String,
    pub files: BTreeMap<String, Listed>,
    /// Architecture of its GGUF files.
    pub gguf: Option<String>,
}

/// A file of a repository; a mirror may not state all.
#[derive(Debug, Clone, Default)]
pub(super) struct Listed {
    pub size: Option<u64>,
    pub sha256: Option<String>,
    /// Its name in a cache.
    pub blob: Option<String>,
}

#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
    gguf: Option<Gguf>,
}

#[derive(Deserialize)]
struct Gguf {
    architecture: Option<String>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

impl Client {
    /// `HF_ENDPOINT`; `HF_TOKEN`, else the file that `hf auth login` writes.
    pub(super) fn from_env(home: &Path) -> Self {
        let kept = || {
            let file = variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
            let token = std::fs::read_to_string(file).ok()?.trim().to_owned();
            (!token.is_empty()).then_some(token)
        };
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Client {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: variable("HF_TOKEN").or_else(kept),
        }
    }

    /// A repository whose downloads land in `cache`.
    pub(super) fn repository(&self, repo: &str, revision: &str, cache: &Path) -> anyhow::Result<ApiRepo> {
        let api = ApiBuilder::from_cache(Cache::new(cache.to_owned()))
            .with_token(self.token.clone())
            .with_retries(ATTEMPTS)
            .with_progress(false)
            .with_endpoint(self.endpoint.clone())
            .build()
            .map_err(|error| self.failure(repo, "the connection", &error))?;
        Ok(api.repo(Repo::with_revision(repo.to_owned(), RepoType::Model, revision.to_owned())))
    }

    /// Asks for the commit of a revision and its files.
    pub(super) fn look_up(&self, repo: &str, revision: &str) -> anyhow::Result<Listing> {
        let spinner = progress::spinner(&format!("looking up {repo}@{revision}"));
        // Nothing is written.
        let request = self.repository(repo, revision, Path::new(""))?.info_request().query("blobs", "true");
        let request = request.config().http_status_as_error(false).timeout_global(Some(PATIENCE)).build();
        let response = request.call();
        spinner.finish_and_clear();
        let mut response = response.map_err(|error| self.unreachable(repo, &error))?;
        let status = response.status().as_u16();
        if !response.status().is_success() {
            let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
            return Err(match (status, code) {
                (_, Some("RevisionNotFound")) => anyhow!(
                    "{repo} has no revision {revision:?}; give a branch, a tag or a whole commit of {}/{repo}",
                    self.endpoint
                ),
                (_, Some("GatedRepo")) | (403, _) => self.closed(repo),
                (401 | 404, _) => {
                    let with = if self.token.is_some() { "with this token" } else { "without a token" };
                    anyhow!(
                        "{} shows no repository {repo} {with}; check the spelling, and for a private one set HF_TOKEN to a token that may \
                         read it",
                        self.endpoint
                    )
                }
                _ => self.unreachable(repo, &format_args!("status {status}")),
            });
        }
        let info: Info = (response.body_mut().read_json())
            .map_err(|error| anyhow!(error))
            .with_context(|| format!("{} says of {repo} what is no answer of a hub", self.endpoint))?;
        // If a mirror does not report the commit, the revision itself is pinned.
        let commit = info.sha.unwrap_or_else(|| revision.to_owned());
        // It becomes the name of a folder.
        ensure!(
            !commit.is_empty()
                && commit.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
                && !commit.contains(".."),
            "{} gives {commit:?} as the commit of {repo}@{revision}, which is none",
            self.endpoint
        );
        let listed = |sibling: Sibling| {
            let sha256 = sibling.lfs.map(|lfs| lfs.sha256);
            let is_name = |blob: &String| blob.chars().all(|c| c.is_ascii_alphanumeric());
            let blob = sha256.clone().or(sibling.blob_id).filter(is_name);
            (sibling.rfilename, Listed { size: sibling.size, sha256, blob })
        };
        let files = info.siblings.into_iter().map(listed).collect();
        Ok(Listing { commit, files, gguf: info.gguf.and_then(|gguf| gguf.architecture) })
    }

    /// Fetches one file into the cache of `from`; goes on where an earlier try ended.
    pub(super) fn download(
        &self,
        from: &ApiRepo,
        repo: &str,
        file: &str,
        bar: Bar,
    ) -> anyhow::Result<PathBuf> {
        from.download_with_progress(file, bar).map_err(|error| self.failure(repo, file, &error))
    }

    fn failure(&self, repo: &str, file: &str, error: &ApiError) -> anyhow::Error {
        match status(error) {
            Some(401 | 403) => self.closed(repo),
            _ => anyhow!(
                "{file} of {repo} could not be fetched from {}; the same command goes on from here: {error}",
                self.endpoint
            ),
        }
    }

    fn closed(&self, repo: &str) -> anyhow::Error {
        let page = format!("{}/{repo}", self.endpoint);
        match self.token {
            Some(_) => anyhow!(
                "{repo} is gated or private, and the token in use may not read it; accept its licence at {page} with the token's account, or \
                 set HF_TOKEN to another token"
            ),
            None => anyhow!(
                "{repo} is gated or private; accept its licence at {page}, then set HF_TOKEN to a token of that account"
            ),
        }
    }

    fn unreachable(&self, repo: &str, error: &dyn Display) -> anyhow::Error {
        anyhow!(
            "{repo} could not be looked up at {}; check the network, or name a mirror in HF_ENDPOINT: {error}",
            self.endpoint
        )
    }
}

pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
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

/// Progress of a file on a bar over all files of a fetch.
pub(super) struct Bar {
    all: ProgressBar,
    /// Bytes of the files before.
    before: u64,
    /// This try's first bytes are there: those of earlier tries.
    begun: bool,
}

impl Bar {
    pub(super) fn new(all: &ProgressBar, file: &str) -> Self {
        all.set_message(file.to_owned());
        Bar { all: all.clone(), before: all.position(), begun: false }
    }
}

impl Progress for Bar {
    /// Called before each try.
    fn init(&mut self, size: usize, _: &str) {
        let end = self.before + size as u64;
        self.all.set_length(self.all.length().unwrap_or(0).max(end));
        self.all.set_position(self.before);
        self.begun = false;
    }

    fn update(&mut self, size: usize) {
        self.all.inc(size as u64);
        if !std::mem::replace(&mut self.begun, true) {
            self.all.reset_eta();
        }
    }

    fn finish(&mut self) {}
}
