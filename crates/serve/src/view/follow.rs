//! Follows a growing JSONL file: new lines with their positions.
//!
//! Each call reads what was appended. A finished run rewrites its files by rename; the new file is then read from the start.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// Byte range of a row, without the newline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    offset: u64,
    length: u32,
}

impl Place {
    /// Reads the row; `None` if the file was rewritten.
    pub fn read<T: DeserializeOwned>(self, path: &Path) -> io::Result<Option<T>> {
        self.of(&mut File::open(path)?)
    }

    /// Reads rows, skipping those no longer present.
    pub fn read_all<T: DeserializeOwned>(
        path: &Path,
        places: impl IntoIterator<Item = Place>,
    ) -> io::Result<Vec<T>> {
        let mut file: Option<File> = None;
        let mut rows = Vec::new();
        for place in places {
            let file = match &mut file {
                Some(file) => file,
                none => none.insert(File::open(path)?),
            };
            rows.extend(place.of(file)?);
        }
        Ok(rows)
    }

    fn of<T: DeserializeOwned>(self, file: &mut File) -> io::Result<Option<T>> {
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = vec![0; self.length as usize];
        match file.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(serde_json::from_slice(&bytes).ok()),
        }
    }
}

#[derive(Debug)]
pub enum Step<'a> {
    /// The file was replaced: discard earlier rows.
    Restart,
    /// Row, position, 1-based line number.
    Line(&'a [u8], Place, usize),
}

#[derive(Debug, Default)]
pub struct Followed {
    path: PathBuf,
    /// Inode, to detect replaced files.
    file: Option<u64>,
    read: u64,
    lines: usize,
}

impl Followed {
    pub fn new(path: PathBuf) -> Self {
        Followed { path, ..Followed::default() }
    }

    /// Reads new lines. An incomplete last line is left for the next call.
    pub fn read(&mut self, take: &mut dyn FnMut(Step<'_>)) -> io::Result<()> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.restart(None, take);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        let number = number_of(&metadata);
        if self.file != number || metadata.len() < self.read {
            self.restart(number, take);
        }
        if metadata.len() == self.read {
            return Ok(());
        }
        let mut reader = BufReader::with_capacity(1 << 16, file);
        reader.seek(SeekFrom::Start(self.read))?;
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line)?;
            let Some(row) = line.strip_suffix(b"\n") else { return Ok(()) };
            let place = Place { offset: self.read, length: u32::try_from(row.len()).unwrap_or(u32::MAX) };
            self.read += read as u64;
            self.lines += 1;
            take(Step::Line(row, place, self.lines));
        }
    }

    fn restart(&mut self, file: Option<u64>, take: &mut dyn FnMut(Step<'_>)) {
        if self.read > 0 {
            take(Step::Restart);
        }
        (self.file, self.read, self.lines) = (file, 0, 0);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(followed: &mut Followed) -> Vec<String> {
        let mut found = Vec::new();
        let mut take = |step: Step<'_>| match step {
            Step::Restart => found.push("restart".to_owned()),
            Step::Line(row, place, number) => {
                found.push(format!("{number} {} {}", place.offset, String::from_utf8_lossy(row)));
            }
        };
        followed.read(&mut take).unwrap();
        found
    }

    #[test]
    fn rows_come_once_torn_ones_when_they_are_whole_and_all_again_of_a_file_that_was_written_anew() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("rows.jsonl");
        let mut followed = Followed::new(path.clone());
        assert!(lines(&mut followed).is_empty());
        std::fs::write(&path, "\"a\"\n\"b").unwrap();
        assert_eq!(lines(&mut followed), ["1 0 \"a\""]);
        assert!(lines(&mut followed).is_empty());
        std::fs::write(&path, "\"a\"\n\"bc\"\n").unwrap();
        assert_eq!(lines(&mut followed), ["2 4 \"bc\""]);
        palimpsest_core::files::write_atomically(&path, b"\"bc\"\n\"d\"\n").unwrap();
        assert_eq!(lines(&mut followed), ["restart", "1 0 \"bc\"", "2 5 \"d\""]);
        let place = Place { offset: 5, length: 3 };
        assert_eq!(place.read::<String>(&path).unwrap(), Some("d".to_owned()));
        assert_eq!(Place { offset: 5, length: 30 }.read::<String>(&path).unwrap(), None);
    }
}
