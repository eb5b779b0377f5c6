//! Files that are written whole or not at all.

use std::io::{BufWriter, Write};
use std::path::Path;

/// Writes `bytes` to a temporary file beside `path`, syncs it and renames it there: a reader sees the old file or the
/// new one, never half of one.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    write_atomically_by(path, |file| file.write_all(bytes))
}

/// The same of what `write` writes, for files that are made piece by piece. Where it fails, `path` stays as it was.
pub fn write_atomically_by<T, E: From<std::io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<T, E>,
) -> Result<T, E> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Temporary files are private by default; results are for whoever may read the folder, as the umask says.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = BufWriter::new(builder.tempfile_in(folder)?);
    let done = write(&mut file)?;
    let file = file.into_inner().map_err(|e| e.into_error())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(done)
}

/// The remedy for an error of the file system, to stand behind it.
pub fn io_remedy(source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; free some space, then the same command goes on from here"
        }
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => "; choose a folder that you may write",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "; a file is in the way: choose another folder"
        }
        ErrorKind::NotFound => "; is the path right?",
        _ => "",
    }
}
