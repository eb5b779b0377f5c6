//! Files of a folder that a stranger may have made, such as a run's.
//!
//! A file is opened relative to its folder's handle. Symbolic links below the folder are not followed, names cannot lead out of it, and
//! only regular files are read or written: a FIFO or device is refused without waiting for it. The folder itself is the user's to name
//! and may be a link.

use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::path::{Component, Path, PathBuf};

use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, FileType, OpenOptions};

/// Start of the names of files that are being written.
pub const TEMPORARY: &str = ".tmp";

/// Maximum bytes of a file that is read whole; a sparse one takes no space on disk.
const MOST_BYTES: u64 = 16 << 30;

/// Whole content; `None` if there is no such file.
pub fn read(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(mut file) = open(dir, name)? else { return Ok(None) };
    let length = file.metadata()?.len();
    if length > MOST_BYTES {
        let reason = format!("it has {length} bytes, and files of runs have at most {MOST_BYTES}");
        return Err(Error::new(ErrorKind::FileTooLarge, reason));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Opens for reading; `None` if there is no such file.
pub fn open(dir: &Path, name: &str) -> Result<Option<File>> {
    let opened = parent(dir, name, false)
        .and_then(|(folder, file)| open_regular(&folder, file, OpenOptions::new().read(true), false));
    match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Opens for writing at the start, without truncation; creates the file.
pub fn open_to_write(dir: &Path, name: &str) -> Result<File> {
    let (folder, file) = parent(dir, name, false)?;
    open_regular(&folder, file, OpenOptions::new().write(true).create(true), true)
}

/// Opens for appending; creates the file.
pub fn open_to_append(dir: &Path, name: &str) -> Result<File> {
    let (folder, file) = parent(dir, name, false)?;
    open_regular(&folder, file, OpenOptions::new().append(true).create(true), true)
}

/// True if a regular file has this name.
pub fn is_file(dir: &Path, name: &str) -> bool {
    let found = parent(dir, name, false).and_then(|(folder, file)| folder.symlink_metadata(file));
    found.is_ok_and(|metadata| metadata.is_file())
}

/// Replaces the file at once, so that readers see the old or the new content. Makes the folders in `name`.
pub fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (folder, file) = parent(dir, name, true)?;
    let (temporary, mut new) = loop {
        let name = format!("{TEMPORARY}{:016x}", rand::random::<u64>());
        match folder.open_with(&name, OpenOptions::new().write(true).create_new(true)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => break (name, opened?),
        }
    };
    let written = new.write_all(bytes).and_then(|()| new.sync_all());
    let replaced = written.and_then(|()| folder.rename(&temporary, &folder, file));
    replaced.inspect_err(|_| {
        let _ = folder.remove_file(&temporary);
    })
}

/// Removes what a killed [`write()`] left in the folder `name` of `dir`. Nobody else may be writing there.
pub fn remove_temporary(dir: &Path, name: &str) -> Result<()> {
    for (entry, kind) in entries(dir, name)? {
        if entry.starts_with(TEMPORARY) && !kind.is_dir() {
            remove(dir, &if name == "." { entry } else { format!("{name}/{entry}") })?;
        }
    }
    Ok(())
}

/// Removes the file, or the link itself, if there is one.
pub fn remove(dir: &Path, name: &str) -> Result<()> {
    let removed = parent(dir, name, false).and_then(|(folder, file)| folder.remove_file(file));
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Makes the folder `name`, where missing, and gives its path. Fails if a link is in the way.
pub fn make(dir: &Path, name: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(dir)?;
    let path = Path::new(name).join("file");
    parent(dir, &path.to_string_lossy(), true)?;
    Ok(dir.join(name))
}

/// A locked file, which tells other writers of its folder to wait. Unlocked explicitly on drop: a child process that is being started holds
/// a copy of the descriptor until exec, and with it the lock.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Creates and locks the file `name` of `dir`; `None` if another process holds it.
    pub fn take(dir: &Path, name: &str) -> Result<Option<Self>> {
        let file = open_to_write(dir, name)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Names and types of the entries of the folder `name` (`.`: of `dir`), sorted; none if there is no such folder.
pub fn entries(dir: &Path, name: &str) -> Result<Vec<(String, FileType)>> {
    let folder = match name {
        "." => Dir::open_ambient_dir(dir, ambient_authority()),
        name => parent(dir, &Path::new(name).join("file").to_string_lossy(), false).map(|(folder, _)| folder),
    };
    let folder = match folder {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        folder => folder?,
    };
    let mut found = Vec::new();
    for entry in folder.entries()? {
        let entry = entry?;
        found.push((entry.file_name().to_string_lossy().into_owned(), entry.file_type()?));
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

/// Names of the folders in the folder `name`. A link among them is an error.
pub fn folders(dir: &Path, name: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (entry, kind) in entries(dir, name)? {
        if kind.is_symlink() {
            return Err(linked(&format!("{name}/{entry}")));
        }
        found.extend(kind.is_dir().then_some(entry));
    }
    Ok(found)
}

/// Handle of the folder that holds `name`, and the last part of the name.
fn parent<'n>(dir: &Path, name: &'n str, make: bool) -> Result<(Dir, &'n str)> {
    let mut parts = Vec::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.extend(part.to_str()),
            _ => return Err(outside(name)),
        }
    }
    let Some((file, folders)) = parts.split_last() else { return Err(outside(name)) };
    let mut at = Dir::open_ambient_dir(dir, ambient_authority())?;
    for folder in folders {
        if make {
            match at.create_dir(folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        at = at.open_dir_nofollow(folder).map_err(|error| if_linked(&at, folder, error))?;
    }
    Ok((at, file))
}

fn open_regular(folder: &Dir, file: &str, options: &mut OpenOptions, writes: bool) -> Result<File> {
    // Without O_NONBLOCK, opening a FIFO waits for its other end.
    let options = options.follow(FollowSymlinks::No).nonblock(true);
    let opened = folder.open_with(file, options).map_err(|error| if_linked(folder, file, error))?.into_std();
    if !opened.metadata()?.is_file() {
        return Err(Error::other("it is a folder, FIFO, socket or device where a regular file belongs"));
    }
    #[cfg(unix)]
    if writes && std::os::unix::fs::MetadataExt::nlink(&opened.metadata()?) > 1 {
        let reason =
            "it is also linked elsewhere, where a write would change it, too; copy the file (cp, without -l)";
        return Err(Error::other(reason));
    }
    Ok(opened)
}

fn if_linked(folder: &Dir, name: &str, error: Error) -> Error {
    let is_link = folder.symlink_metadata(name).is_ok_and(|metadata| metadata.is_symlink());
    if is_link { linked(name) } else { error }
}

fn linked(name: &str) -> Error {
    Error::other(format!(
        "`{name}` is a symbolic link, and links inside its folder are not followed; put what it points to in its place"
    ))
}

fn outside(name: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("`{name}` does not name a file inside the folder"))
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder with a link at the file and at the folder of a name, each to a file outside.
    fn hostile() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let (dir, outside) = (root.path().join("run"), root.path().join("outside"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("precious"), "kept").unwrap();
        symlink(outside.join("precious"), dir.join("rows.jsonl")).unwrap();
        symlink(&outside, dir.join("attention")).unwrap();
        (root, dir, outside.join("precious"))
    }

    #[test]
    fn links_and_names_that_lead_out_are_refused_and_nothing_changes() {
        let (_root, dir, precious) = hostile();
        for name in
            ["rows.jsonl", "attention/precious", "../outside/precious", "/etc/passwd", "", ".", "a/../b"]
        {
            assert!(read(&dir, name).is_err(), "{name}");
            assert!(open_to_write(&dir, name).is_err(), "{name}");
            assert!(open_to_append(&dir, name).is_err(), "{name}");
            assert!(!is_file(&dir, name), "{name}");
        }
        assert!(write(&dir, "attention/precious", b"lost").is_err());
        assert!(remove(&dir, "attention/precious").is_err());
        assert!(make(&dir, "attention").is_err());
        assert!(entries(&dir, "attention").is_err());
        assert!(folders(&dir, ".").is_err());
        // A replaced link is replaced itself.
        write(&dir, "rows.jsonl", b"fresh").unwrap();
        assert_eq!(read(&dir, "rows.jsonl").unwrap().unwrap(), b"fresh");
        assert_eq!(std::fs::read(&precious).unwrap(), b"kept");
        assert_eq!(read(&dir, "none/at/all").unwrap(), None);
    }

    #[test]
    fn a_file_that_is_linked_elsewhere_is_read_and_not_written() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("precious"), "kept").unwrap();
        std::fs::hard_link(root.path().join("precious"), root.path().join("rows")).unwrap();
        assert_eq!(read(root.path(), "rows").unwrap().unwrap(), b"kept");
        assert!(open_to_write(root.path(), "rows").is_err() && open_to_append(root.path(), "rows").is_err());
        let sparse = File::create(root.path().join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        assert_eq!(read(root.path(), "sparse").unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_fifo_or_device_is_refused_without_waiting() {
        let root = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(root.path().join("fifo")).status().unwrap();
        assert!(made.success());
        for open in [
            read(root.path(), "fifo").map(|_| ()),
            open_to_write(root.path(), "fifo").map(|_| ()),
            read(Path::new("/dev"), "zero").map(|_| ()),
        ] {
            open.unwrap_err();
        }
        std::fs::write(root.path().join("plain"), "text").unwrap();
        assert_eq!(read(root.path(), "plain").unwrap().unwrap(), b"text");
    }

    #[test]
    fn new_files_follow_the_umask() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "deep/er/file", b"x").unwrap();
        std::fs::write(root.path().join("beside"), "x").unwrap();
        let mode = |name: &str| std::fs::metadata(root.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode("deep/er/file"), mode("beside"));
    }
}
