//! The file of a Unix socket: from its creation on this user's alone, and removed with its server.

use std::fs::{self, Metadata, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: another server may have taken the path over.
    id: (u64, u64),
}

fn id(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Refuses a path at which there is something other than the socket of a server that has ended.
fn check_free(path: &Path) -> Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            "there is a file that is no socket; it is left alone",
        ));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(Error::new(ErrorKind::AddrInUse, "a server answers there")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error),
    }
}

impl SocketFile {
    /// Binds in a folder that only this user can enter, and moves the socket to its path once its mode is 0600. The socket of a server
    /// that has ended is replaced.
    pub fn bind(path: &Path) -> Result<(UnixListener, Self)> {
        check_free(path)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        // Short names: the system takes paths of about a hundred bytes.
        let folder = tempfile::Builder::new()
            .prefix(".ps")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent.unwrap_or(Path::new(".")))?;
        let hidden = folder.path().join("s");
        let listener = UnixListener::bind(&hidden)?;
        fs::set_permissions(&hidden, Permissions::from_mode(0o600))?;
        let id = id(&fs::symlink_metadata(&hidden)?);
        fs::rename(&hidden, path)?;
        Ok((listener, SocketFile { path: path.to_owned(), id }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| id(&file) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> ErrorKind {
        SocketFile::bind(path).map(drop).unwrap_err().kind()
    }

    #[test]
    fn a_socket_is_the_users_alone_and_goes_with_its_server() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("socket");
        let (listener, file) = SocketFile::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing but the socket is left");
        assert_eq!(refusal(&path), ErrorKind::AddrInUse);
        drop(listener);
        // As after a crash: the file is there, and nobody listens.
        let (_listener, next) = SocketFile::bind(&path).unwrap();
        drop(file);
        assert!(path.exists(), "the file of the next server");
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn other_files_are_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let (path, link) = (root.path().join("file"), root.path().join("link"));
        fs::write(&path, "kept").unwrap();
        std::os::unix::fs::symlink(root.path().join("nowhere"), &link).unwrap();
        for path in [path.as_path(), &link, root.path()] {
            assert_eq!(refusal(path), ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
    }
}
