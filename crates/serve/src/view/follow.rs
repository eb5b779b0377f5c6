//! Follows a growing JSONL file: new lines with their positions.
//!
//! Each call reads what was appended. A finished run rewrites its files by rename; its folder is then read from the start.

use std::fs::Metadata;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use palimpsest_data::ground::folder;
use serde::de::DeserializeOwned;

/// Maximum bytes of a row: a stranger's file may have no line breaks.
const LONGEST_ROW: u64 = 1 << 28;

/// Byte range of a row, without the newline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    offset: u64,
    length: u32,
}

impl Place {
    /// Reads rows, skipping those no longer present.
    pub fn read_all<T: DeserializeOwned>(
        dir: &Path,
        name: &str,
        places: impl IntoIterator<Item = Place>,
    ) -> io::Result<Vec<T>> {
        let mut places = places.into_iter().peekable();
        let mut rows = Vec::new();
        if places.peek().is_none() {
            return Ok(rows);
        }
        let mut file = folder::open(dir, name)?.ok_or(io::ErrorKind::NotFound)?;
        for Place { offset, length } in places {
            file.seek(SeekFrom::Start(offset))?;
            let mut bytes = vec![0; length as usize];
            match file.read_exact(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => return Err(error),
                Ok(()) => rows.extend(serde_json::from_slice(&bytes).ok()),
            }
        }
        Ok(rows)
    }
}

#[derive(Debug)]
pub struct Followed {
    dir: PathBuf,
    name: &'static str,
    /// Inode, to detect replaced files.
    file: Option<u64>,
    read: u64,
    lines: usize,
}

impl Followed {
    /// Follows the file `name` of `dir`.
    pub fn new(dir: &Path, name: &'static str) -> Self {
        Followed { dir: dir.to_owned(), name, file: None, read: 0, lines: 0 }
    }

    /// Reads new lines: row, position, 1-based number. An incomplete last line is left for the next call. Fails if the file was replaced.
    pub fn read(&mut self, mut take: impl FnMut(&[u8], Place, usize)) -> io::Result<()> {
        let file = match folder::open(&self.dir, self.name)? {
            None if self.read == 0 => return Ok(()),
            opened => opened.ok_or(io::ErrorKind::NotFound)?,
        };
        let metadata = file.metadata()?;
        let number = number_of(&metadata);
        if self.read > 0 && (self.file != number || metadata.len() < self.read) {
            return Err(io::Error::other("it was replaced"));
        }
        self.file = number;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        reader.seek(SeekFrom::Start(self.read))?;
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.by_ref().take(LONGEST_ROW).read_until(b'\n', &mut line)?;
            if read as u64 == LONGEST_ROW {
                return Err(io::Error::other(format!(
                    "line {} has over {LONGEST_ROW} bytes",
                    self.lines + 1
                )));
            }
            let Some(row) = line.strip_suffix(b"\n") else { return Ok(()) };
            let place = Place { offset: self.read, length: u32::try_from(row.len()).unwrap_or(u32::MAX) };
            self.read += read as u64;
            self.lines += 1;
            take(row, place, self.lines);
        }
    }
}

/// Inode, where supported.
#[cfg(unix)]
fn number_of(metadata: &Metadata) -> Option<u64> {
    Some(std::os::unix::fs::MetadataExt::ino(metadata))
}

#[cfg(not(unix))]
fn number_of(_: &Metadata) -> Option<u64> {
    None
}
