//! Locks of files that several processes fetch.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::Context;
use palimpsest_data::ground::folder;

use super::error::{cannot, not_created};

/// Locks a model by a file in `dir`, waiting with a message. The OS releases the lock when the file closes. The file is never removed,
/// since two processes could then lock two files. A link or FIFO in its place is refused.
pub(super) fn lock(dir: &Path, file_name: &str, model: &str) -> anyhow::Result<File> {
    let path = dir.join(file_name);
    let file = folder::open_to_write(dir, file_name).with_context(not_created(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            crate::progress::note(format!("waiting for another process that is fetching {model}"));
            file.lock().with_context(cannot("lock", &path))?;
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(cannot("lock", &path)),
    }
    Ok(file)
}
