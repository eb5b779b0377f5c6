//! Cached SHA-256 digests, to avoid hashing large models in every run. One JSON file per path in `digests/` of the model home, valid while
//! size and modification time match. An unwritable home only costs time.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::progress;
use palimpsest_core::digest::{hex, sha256};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    path: String,
    size: u64,
    modified_ns: u64,
    sha256: String,
}

#[derive(Debug, Clone)]
pub(super) struct Digests {
    dir: PathBuf,
}

impl Digests {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Lower-case hex SHA-256, from the cache or computed with a progress bar.
    pub(super) fn sha256(&self, path: &Path) -> io::Result<String> {
        let path = path.canonicalize()?;
        let (size, modified_ns) = stamp(&path)?;
        let known = std::fs::read(self.entry(&path)).ok();
        if let Some(known) = known.and_then(|json| serde_json::from_slice::<Remembered>(&json).ok())
            && (known.size, known.modified_ns) == (size, modified_ns)
            && known.path == path.to_string_lossy()
        {
            return Ok(known.sha256);
        }
        let sha256 = hash(&path, size, Sha256::new())?;
        // Do not cache if the file changed while being read.
        if stamp(&path)? == (size, modified_ns) {
            self.remember(&path, &sha256);
        }
        Ok(sha256)
    }

    pub(super) fn remember(&self, path: &Path, sha256: &str) {
        let kept = path.canonicalize().and_then(|path| {
            let (size, modified_ns) = stamp(&path)?;
            let entry = self.entry(&path);
            let path = path.to_string_lossy().into_owned();
            let known = Remembered { path, size, modified_ns, sha256: sha256.to_string() };
            std::fs::create_dir_all(&self.dir)?;
            let temporary = tempfile::NamedTempFile::new_in(&self.dir)?;
            std::fs::write(temporary.path(), serde_json::to_vec_pretty(&known)?)?;
            temporary.persist(entry)?;
            Ok(())
        });
        if let Err(error) = kept {
            tracing::debug!(
                "the digest of {} is not kept in {}: {error}",
                path.display(),
                self.dir.display()
            );
        }
    }

    fn entry(&self, path: &Path) -> PathBuf {
        let key = sha256(path.as_os_str().as_encoded_bytes());
        self.dir.join(format!("{key}.json"))
    }
}

fn stamp(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(path)?;
    let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((metadata.len(), u64::try_from(modified.as_nanos()).unwrap_or(u64::MAX)))
}

/// Git's name of a file's content: SHA-1 of a header and the bytes.
pub(super) fn git_sha1(path: &Path) -> io::Result<String> {
    let size = std::fs::metadata(path)?.len();
    hash(path, size, Sha1::new_with_prefix(format!("blob {size}\0")))
}

fn hash(path: &Path, size: u64, mut hasher: impl Digest) -> io::Result<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let bar = progress::bytes(size, &format!("hashing {name}"));
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        bar.inc(read as u64);
    }
    bar.finish_and_clear();
    Ok(hex(&hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gits_name_of_a_file_is_that_of_git_hash_object() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(git_sha1(file.path()).unwrap(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        std::fs::write(file.path(), "hello\n").unwrap();
        assert_eq!(git_sha1(file.path()).unwrap(), "ce013625030ba8dba906f756967f9e9ca394464a");
    }
}
