//! The cache of the hub: `models--OWNER--NAME/` with `blobs/`, `snapshots/COMMIT/` and `refs/REVISION`. Names that a server gives are
//! checked here before they become paths.
//!
//! Another user or program may have filled the cache, so no link in it is followed but those from a snapshot to a blob. The cache itself is
//! the user's to name and may be a link.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use anyhow::ensure;
use hf_hub::{Cache, Repo};
use palimpsest_data::ground::folder;

/// Characters of a commit's name; git's has 40.
const LONGEST_COMMIT: usize = 128;

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

    /// A path in the repository's folder, relative to the cache.
    fn within(&self, path: &str) -> String {
        format!("{}/{path}", self.folder_name())
    }

    /// Fails if a folder of the repository is a link, by which files elsewhere would be read, written and removed.
    pub(super) fn check_folders(&self, commit: Option<&str>) -> anyhow::Result<()> {
        let below = ["blobs", "refs", "snapshots"].map(|name| self.folder().join(name));
        let snapshot = commit.map(|commit| self.snapshot(commit));
        for folder in [self.folder()].into_iter().chain(below).chain(snapshot) {
            ensure!(
                !folder.is_symlink(),
                "{} is a symbolic link, and links to folders inside the hub's cache are not followed; put what it points to in its place, or \
                 name another cache in HF_HUB_CACHE",
                folder.display()
            );
        }
        Ok(())
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
    fn reference(&self, revision: &str) -> String {
        self.within(&format!("refs/{revision}"))
    }

    /// Commit of a revision. `Err` says why there is none.
    pub(super) fn read_reference(&self, revision: &str) -> Result<String, String> {
        let (cache, name) = (self.cache.path(), self.reference(revision));
        let at = cache.join(&name);
        let file = folder::open(cache, &name).map_err(|error| format!("{}: {error}", at.display()))?;
        let file = file.ok_or_else(|| format!("{} is not there", at.display()))?;
        let mut text = String::new();
        let read = file.take(LONGEST_COMMIT as u64 + 2).read_to_string(&mut text);
        let commit = text.trim();
        if read.is_ok() && is_commit_name(commit) {
            Ok(commit.to_owned())
        } else {
            Err(format!("{} names no commit", at.display()))
        }
    }

    pub(super) fn write_reference(&self, revision: &str, commit: &str) -> io::Result<()> {
        folder::write(self.cache.path(), &self.reference(revision), commit.as_bytes())
    }

    /// Makes `file` of a snapshot a link to its blob.
    pub(super) fn link(&self, commit: &str, file: &str, blob: &Path) -> io::Result<()> {
        let pointer = self.snapshot(commit).join(file);
        if let Some((folders, _)) = self.pointer(commit, file).rsplit_once('/') {
            folder::make(self.cache.path(), folders)?;
        }
        self.unlink(commit, file)?;
        #[cfg(unix)]
        {
            let up = "../".repeat(2 + file.matches('/').count());
            let name = blob.file_name().unwrap_or_default();
            std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(name), pointer)
        }
        #[cfg(not(unix))]
        {
            fs::hard_link(blob, pointer)
        }
    }

    pub(super) fn unlink(&self, commit: &str, file: &str) -> io::Result<()> {
        folder::remove(self.cache.path(), &self.pointer(commit, file))
    }

    pub(super) fn remove_blob(&self, blob: &str) -> io::Result<()> {
        folder::remove(self.cache.path(), &self.within(&format!("blobs/{blob}")))
    }

    fn pointer(&self, commit: &str, file: &str) -> String {
        self.within(&format!("snapshots/{commit}/{file}"))
    }

    /// Opens the part of a blob to append to it after `kept` bytes, or empties it.
    pub(super) fn open_part(&self, blob: &str, kept: u64) -> io::Result<File> {
        let (cache, name) = (self.cache.path(), self.within(&format!("blobs/{blob}.part")));
        folder::make(cache, &self.within("blobs"))?;
        if fs::symlink_metadata(self.part(blob)).is_ok_and(|found| !has_one_name(&found)) {
            folder::remove(cache, &name)?;
        }
        let file = folder::open_to_append(cache, &name)?;
        file.set_len(kept)?;
        Ok(file)
    }

    /// Length of the part of a blob.
    pub(super) fn begun(&self, blob: &str) -> u64 {
        let found = fs::symlink_metadata(self.part(blob));
        found.ok().filter(has_one_name).map_or(0, |found| found.len())
    }
}

/// A regular file without other hard links. Another file would be written through it.
fn has_one_name(found: &fs::Metadata) -> bool {
    #[cfg(unix)]
    let names = std::os::unix::fs::MetadataExt::nlink(found);
    #[cfg(not(unix))]
    let names = 1;
    found.is_file() && names == 1
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
        && commit.len() <= LONGEST_COMMIT
        && commit.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        && !commit.contains("..")
}

/// A whole commit of git.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
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
