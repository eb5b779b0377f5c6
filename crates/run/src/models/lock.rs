//! Locks of files that several processes fetch.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::Context;

use super::error::{cannot, not_created};

/// Locks a model, waiting with a message. The OS releases the lock when the file closes. The file is never removed, since two processes
/// could then lock two files.
pub(super) fn lock(path: &Path, name: &str) -> anyhow::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.with_context(not_created(path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            crate::progress::note(format!("waiting for another process that is fetching {name}"));
            file.lock().with_context(cannot("lock", path))?;
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(cannot("lock", path)),
    }
    Ok(file)
}
