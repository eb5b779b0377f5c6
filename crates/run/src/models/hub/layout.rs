//! The cache of the hub: `models--OWNER--NAME/` with `blobs/`, `snapshots/COMMIT/` and `refs/REVISION`. Names that a server gives are
//! checked here before they become paths.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use hf_hub::{Cache, Repo, RepoType};

/// A repository in a cache.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    cache: Cache,
    repo: Repo,
}

impl Layout {
    pub(super) fn new(cache: &Path, repo: &str) -> Self {
        Layout { cache: Cache::new(cache.to_owned()), repo: Repo::model(repo.to_owned()) }
    }

    pub(super) fn folder_name(&self) -> String {
        self.repo.folder_name()
    }

    fn folder(&self) -> PathBuf {
        self.cache.path().join(self.folder_name())
    }

    pub(super) fn blob(&self, name: &str) -> PathBuf {
        self.folder().join("blobs").join(name)
    }

    /// A download that has not ended.
    pub(super) fn part(&self, blob: &str) -> PathBuf {
        self.blob(blob).with_extension("part")
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.cache.repo(self.repo.clone()).pointer_path(commit)
    }

    /// A revision may have slashes.
    pub(super) fn reference(&self, revision: &str) -> PathBuf {
        self.folder().join("refs").join(revision)
    }

    pub(super) fn write_reference(&self, repo: &str, revision: &str, commit: &str) -> io::Result<()> {
        let at = Repo::with_revision(repo.to_owned(), RepoType::Model, revision.to_owned());
        self.cache.repo(at).create_ref(commit)
    }

    /// Opens the part of a blob to append to it after `kept` bytes, or empties it.
    pub(super) fn open_part(&self, blob: &str, kept: u64) -> io::Result<File> {
        let path = self.part(blob);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        // A link would be written through.
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
            fs::remove_file(&path)?;
        }
        let file = File::options().create(true).append(true).open(&path)?;
        file.set_len(kept)?;
        Ok(file)
    }

    /// Length of the part of a blob.
    pub(super) fn begun(&self, blob: &str) -> u64 {
        let found = fs::symlink_metadata(self.part(blob));
        found.ok().filter(fs::Metadata::is_file).map_or(0, |found| found.len())
    }
}

/// The name of a blob in an `ETag` such as `"c0ffee"` or `W/"c0ffee"`; `None` if it is no plain name.
pub(super) fn blob_name(etag: &str) -> Option<&str> {
    let etag = etag.trim();
    let name = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    ((1..=128).contains(&name.len()) && name.chars().all(is_plain)).then_some(name)
}

/// A commit becomes a folder.
pub(super) fn is_commit_name(commit: &str) -> bool {
    commit.starts_with(|first: char| first.is_ascii_alphanumeric())
        && commit.len() <= 128
        && commit.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        && !commit.contains("..")
}

/// A file's name in a repository: folders and a name, below the repository on every system.
pub(super) fn is_file_name(file: &str) -> bool {
    !file.is_empty()
        && !file.contains(['\\', '\0'])
        && file.split('/').all(|part| !["", ".", ".."].contains(&part))
        && Path::new(file).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_names_stays_within_the_cache() {
        let (sha1, sha256) = ("c0ffee00".repeat(5), "c0ffee00".repeat(8));
        for etag in [format!("\"{sha1}\""), format!("W/\"{sha256}\""), sha1.clone(), "\"0a1b-2\"".to_owned()]
        {
            assert!(
                blob_name(&etag).is_some_and(|name| etag.contains(name) && !name.contains('"')),
                "{etag}"
            );
        }
        for etag in
            ["", "\"\"", "../../x", "\"../../x\"", "/etc/passwd", "a/b", "a\\b", "..", ".", "a.part", "W/"]
        {
            assert_eq!(blob_name(etag), None, "{etag}");
        }
        assert!(is_commit_name(&sha1) && is_commit_name("main") && is_commit_name("v1.0"));
        for commit in ["", ".", "..", "../x", "a/b", "/a", "a\\b", ".git", "a..b"] {
            assert!(!is_commit_name(commit), "{commit}");
        }
        assert!(
            is_file_name("config.json") && is_file_name("onnx/model.onnx") && is_file_name(".gitattributes")
        );
        for file in ["", "../x", "a/../x", "/x", "a//b", "a/", "./a", "a\\..\\x", "..", "a\0"] {
            assert!(!is_file_name(file), "{file:?}");
        }
    }
}
