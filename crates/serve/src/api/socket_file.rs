//! The file of a Unix socket: from its creation on this user's alone, and removed with its server.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct SocketFile(Named);

/// A socket in the file system.
#[derive(Debug, Clone)]
struct Named {
    path: PathBuf,
    /// Device and inode: another server may have taken the path over.
    id: (u64, u64),
}

impl Named {
    fn remove(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| id(&file) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn id(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn in_use() -> Error {
    Error::new(ErrorKind::AddrInUse, "a server answers there")
}

/// Connects without waiting for a server that does not accept.
fn connect(path: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(tokio::net::UnixStream::connect(path)).map(drop)
}

/// True if there is nothing, false if there is the socket of a server that has ended. Anything else is refused.
fn is_free(path: &Path) -> Result<bool> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(Error::new(
            ErrorKind::AlreadyExists,
            "there is a file that is no socket; it is left alone",
        ));
    }
    match connect(path) {
        Ok(()) => Err(in_use()),
        // More wait to be accepted than may.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(in_use()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

/// Moves a socket to its path, where nothing is replaced that came since the path was found free.
fn place(hidden: &Path, path: &Path, free: bool) -> Result<()> {
    match if free { fs::hard_link(hidden, path) } else { fs::rename(hidden, path) } {
        Err(error) if free && error.kind() == ErrorKind::AlreadyExists => Err(in_use()),
        // Some file systems have no links.
        Err(_) if free => fs::rename(hidden, path),
        placed => placed,
    }
}

impl SocketFile {
    /// Binds in a folder that only this user can enter, and moves the socket to its path once its mode is 0600. The socket of a server
    /// that has ended is replaced.
    pub fn bind(path: &Path) -> Result<(UnixListener, Self)> {
        SocketAddr::from_pathname(path).map_err(|_| {
            let bytes = path.as_os_str().len();
            Error::new(ErrorKind::InvalidInput, format!("a path of {bytes} bytes is too long for a socket"))
        })?;
        let free = is_free(path)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = tempfile::Builder::new()
            .prefix(".ps")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent.unwrap_or(Path::new(".")))?;
        let hidden = folder.path().join("s");
        // The system takes paths of about a hundred bytes. Linux has a short one for each open folder.
        let opened = File::open(folder.path())?;
        let short = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let within = if short.exists() { short.as_path() } else { folder.path() };
        let listener = UnixListener::bind(within.join("s"))?;
        fs::set_permissions(&hidden, Permissions::from_mode(0o600))?;
        let id = id(&fs::symlink_metadata(&hidden)?);
        place(&hidden, path, free)?;
        Ok((listener, SocketFile(Named { path: path.to_owned(), id })))
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Removes the file before an exit that drops nothing.
    pub fn removal(&self) -> impl Fn() + Send + use<> {
        let file = self.0.clone();
        move || file.remove()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.0.remove();
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
        next.removal()();
        assert!(!path.exists());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_path_that_clients_can_connect_to_is_taken_and_no_other() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("f".repeat(97 - root.path().as_os_str().len()));
        fs::create_dir(&folder).unwrap();
        // The hidden path would be too long.
        let path = folder.join("s");
        let (_listener, _file) = SocketFile::bind(&path).unwrap();
        assert!(connect(&path).is_ok());
        assert_eq!(refusal(&folder.join("s".repeat(50))), ErrorKind::InvalidInput);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn a_socket_that_came_meanwhile_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let (path, hidden) = (root.path().join("socket"), root.path().join("hidden"));
        let (_listener, _file) = SocketFile::bind(&path).unwrap();
        fs::write(&hidden, "").unwrap();
        assert_eq!(place(&hidden, &path, true).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert!(connect(&path).is_ok());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_server_that_accepts_nobody_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("socket");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _listener = runtime.block_on(async {
            let socket = tokio::net::UnixSocket::new_stream().unwrap();
            socket.bind(&path).unwrap();
            socket.listen(1).unwrap()
        });
        let wait = |_| runtime.block_on(tokio::net::UnixStream::connect(&path)).ok();
        let waiting: Vec<_> = (0..100).map_while(wait).collect();
        assert!((1..100).contains(&waiting.len()), "{}", waiting.len());
        assert_eq!(refusal(&path), ErrorKind::AddrInUse);
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
