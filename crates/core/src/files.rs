//! Atomic file writes.

use std::io::{BufWriter, Write};
use std::path::Path;

/// Writes `bytes` to a temporary file beside `path`, syncs it and renames it, so readers see the old or the new file, never a part.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    write_atomically_by(path, |file| file.write_all(bytes))
}

/// [`write_atomically`] for streamed content. On failure `path` is unchanged.
pub fn write_atomically_by<T, E: From<std::io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<T, E>,
) -> Result<T, E> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Temporary files are private by default; results follow the umask.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = BufWriter::new(builder.tempfile_in(folder)?);
    let done = write(&mut file)?;
    let file = file.into_inner().map_err(|e| e.into_error())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(done)
}

/// Suggests a remedy for a file system error.
pub fn io_remedy(source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; free some space, then the same command resumes"
        }
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => "; choose a folder that you may write",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "; a file is in the way: choose another folder"
        }
        ErrorKind::NotFound => "; is the path right?",
        _ => "",
    }
}
