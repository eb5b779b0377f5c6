//! Maps weight files, and names the file if it is truncated while it is mapped.
//!
//! Weights are mapped and not read: packed weights are used where they lie, and a model's file is often most of the memory. Reading a page
//! that a truncated file no longer has raises SIGBUS, which ends a process without a word; the handler here says which file it was.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// A read-only map of a file.
#[derive(Debug)]
pub(super) struct Mapped {
    // Dropped first: its place stands for this range only while it is mapped.
    _place: truncation::Place,
    bytes: Mmap,
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

pub(super) fn map(path: &Path) -> io::Result<Mapped> {
    let file = File::open(path)?;
    // SAFETY: the map is read-only. A file truncated by another program while mapped raises SIGBUS, which ends the process with a message;
    // files in our cache are replaced by rename, never rewritten in place.
    let bytes = unsafe { Mmap::map(&file) }?;
    Ok(Mapped { _place: truncation::Place::of(&bytes, path), bytes })
}

#[cfg(target_os = "linux")]
mod truncation {
    use std::ffi::{c_int, c_void};
    use std::path::Path;
    use std::ptr;
    use std::sync::Once;
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    /// Files that can be named; a model has some ten to two hundred.
    const PLACES: usize = 1024;

    struct Range {
        /// 0 if the place is free, 1 while it is written.
        start: AtomicUsize,
        end: AtomicUsize,
        /// The message of this file, written once and kept, since a handler may read it.
        message: AtomicPtr<String>,
    }

    static RANGES: [Range; PLACES] = [const {
        Range {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            message: AtomicPtr::new(ptr::null_mut()),
        }
    }; PLACES];

    /// The entry of one map, until dropped.
    #[derive(Debug)]
    pub struct Place(Option<usize>);

    impl Place {
        pub fn of(bytes: &[u8], path: &Path) -> Self {
            static INSTALLED: Once = Once::new();
            INSTALLED.call_once(install);
            let free = |range: &Range| {
                range.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            let Some((at, range)) = RANGES.iter().enumerate().find(|(_, range)| free(range)) else {
                return Place(None);
            };
            let message = format!(
                "error: {} is shorter than when it was opened, or its disk cannot be read; weights in use are lost. Put the whole file \
                 back and start again; replace model files by renaming, never in place\n",
                path.display()
            );
            // Leaked: some 200 bytes a file opened.
            range.message.store(Box::into_raw(Box::new(message)), Ordering::Relaxed);
            let start = bytes.as_ptr() as usize;
            range.end.store(start + bytes.len(), Ordering::Relaxed);
            range.start.store(start, Ordering::Release);
            Place(Some(at))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            if let Some(range) = self.0.and_then(|at| RANGES.get(at)) {
                range.start.store(0, Ordering::Release);
            }
        }
    }

    fn install() {
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
        // SAFETY: the structure is plain data, for which zero is valid; `handle` has the signature that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
        }
    }

    /// Uses only what a signal handler may: loads, `write`, `_exit`, `signal`.
    extern "C" fn handle(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel passes a valid `siginfo_t`; SIGBUS has an address.
        let at = unsafe { (*info).si_addr() } as usize;
        for range in &RANGES {
            let start = range.start.load(Ordering::Acquire);
            // A map's last page reaches to its end in memory.
            let end = range.end.load(Ordering::Relaxed).next_multiple_of(4096);
            if start > 1 && (start..end).contains(&at) {
                // SAFETY: a message is stored before its range's start and never freed.
                unsafe {
                    let message = &*range.message.load(Ordering::Relaxed);
                    libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
                    libc::_exit(1);
                }
            }
        }
        // Not ours: the instruction is run again, and ends the process as without this handler.
        // SAFETY: `signal` may be called in a handler.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

#[cfg(not(target_os = "linux"))]
mod truncation {
    use std::path::Path;

    #[derive(Debug)]
    pub struct Place;

    impl Place {
        pub fn of(_: &[u8], _: &Path) -> Self {
            Place
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::map;

    const FILE: &str = "PALIMPSEST_TEST_TRUNCATED_FILE";

    /// The child of the test below.
    #[test]
    fn a_truncated_map_is_read() {
        let Ok(path) = std::env::var(FILE) else { return };
        let mapped = map(path.as_ref()).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        let sum: u64 = mapped.iter().map(|&byte| u64::from(byte)).sum();
        panic!("{sum} was read from a file without bytes");
    }

    #[test]
    fn a_file_truncated_while_mapped_is_named_and_the_process_ends_with_1() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, vec![1; 100_000]).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "model::weights::mapped::tests::a_truncated_map_is_read", "--nocapture"])
            .env(FILE, &path)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("error: {} is shorter", path.display())), "{told}");
    }
}
