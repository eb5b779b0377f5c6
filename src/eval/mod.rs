//! The run store, judging, metrics and statistics.

use std::io::Write;
use std::path::Path;

pub mod rows;

/// Writes `bytes` to a temporary file beside `path`, syncs it and renames it there: a reader sees the old file or the
/// new one, never half of one.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}
