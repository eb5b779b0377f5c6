//! The run store, the runner, judging, metrics and statistics.
//!
//! Owns the run folder: what was run ([`header`]), what is expected ([`plan`]), what was answered and judged ([`rows`],
//! [`store`]), and the figures that follow from it ([`metrics`], [`statistics`]). Called by the commands; lens and
//! figures read what it wrote. It knows no tensors and no HTTP: who answers comes in as a [`runner::Subject`], who
//! judges as a [`judge::Judge`].

use std::io::Write;
use std::path::Path;

pub mod agreement;
pub mod exchange;
pub mod fit;
pub mod header;
mod jsonl;
pub mod judge;
pub mod local;
pub mod merge;
pub mod metrics;
pub mod plan;
pub mod reply;
pub mod rows;
pub mod runner;
pub mod statistics;
pub mod store;
pub mod subject;
mod texts;

/// Writes `bytes` to a temporary file beside `path`, syncs it and renames it there: a reader sees the old file or the
/// new one, never half of one.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Temporary files are private by default; results are for whoever may read the folder, as the umask says.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}
