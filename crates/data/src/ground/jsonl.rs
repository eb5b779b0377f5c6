//! Append-only JSON Lines files that survive a kill or a power loss at any byte. A row counts once its newline is on disk. A torn last line
//! is truncated by the next append and its work redone; a broken line elsewhere is an error.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::folder;
use palimpsest_core::files::io_remedy;

#[derive(Debug, thiserror::Error)]
pub enum JsonlError {
    #[error("cannot {action} {path}: {source}{}", io_remedy(source))]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{path}: a row cannot be written: {source}")]
    Row { path: PathBuf, source: serde_json::Error },
    #[error("{path} line {line}: {reason}; mend or delete the line (a deleted row is done again)")]
    BrokenLine { path: PathBuf, line: usize, reason: String },
}

impl JsonlError {
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> JsonlError {
        let path = path.to_owned();
        move |source| JsonlError::Io { action, path, source }
    }
}

#[derive(Debug)]
pub struct RowLog<T> {
    dir: PathBuf,
    name: String,
    file: File,
    length: u64,
    torn: bool,
    pub rows: Vec<T>,
}

impl<T: Serialize + DeserializeOwned> RowLog<T> {
    /// Opens or creates the file `name` of `dir` (see [`folder`]). A torn last line is truncated by the first append.
    pub fn open(dir: &Path, name: &str) -> Result<Self, JsonlError> {
        let Parsed { rows, length, torn } = parse(dir, name)?;
        let path = dir.join(name);
        let file = folder::open_to_write(dir, name).map_err(JsonlError::io("open", &path))?;
        if let Some(torn) = &torn {
            tracing::warn!(
                "{}: the last line was not written to its end ({torn}); it is cut off and its work done again",
                path.display()
            );
        }
        Ok(RowLog { dir: dir.to_owned(), name: name.to_owned(), file, length, torn: torn.is_some(), rows })
    }

    fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    pub fn append(&mut self, row: T) -> Result<(), JsonlError> {
        self.append_all(vec![row])
    }

    /// Appends rows with one write and syncs.
    pub fn append_all(&mut self, rows: Vec<T>) -> Result<(), JsonlError> {
        let path = self.path();
        let mut lines = Vec::new();
        for row in &rows {
            lines.extend(line(row, &path)?);
        }
        if self.torn {
            let cut = self.file.set_len(self.length).and_then(|()| self.file.sync_data());
            cut.map_err(JsonlError::io("cut the torn last line off", &path))?;
            self.torn = false;
        }
        let at_end = self.file.seek(SeekFrom::Start(self.length));
        let written = at_end.and_then(|_| self.file.write_all(&lines)).and_then(|()| self.file.sync_data());
        if let Err(source) = written {
            // A full disk may leave a partial line: truncate it. If this fails too, the next open finds a torn line.
            let _ = self.file.set_len(self.length);
            return Err(JsonlError::io("append to", &path)(source));
        }
        self.length += lines.len() as u64;
        self.rows.extend(rows);
        Ok(())
    }

    /// Replaces the content atomically; no write if it is unchanged.
    pub fn rewrite(&mut self, rows: Vec<T>) -> Result<(), JsonlError>
    where
        T: PartialEq,
    {
        if rows == self.rows && !self.torn {
            return Ok(());
        }
        write_rows(&self.dir, &self.name, &rows)?;
        *self = RowLog::open(&self.dir.clone(), &self.name.clone())?;
        Ok(())
    }
}

/// Writes the whole file `name` of `dir` atomically.
pub fn write_rows<T: Serialize>(dir: &Path, name: &str, rows: &[T]) -> Result<(), JsonlError> {
    let path = dir.join(name);
    let mut bytes = Vec::new();
    for row in rows {
        bytes.extend(line(row, &path)?);
    }
    folder::write(dir, name, &bytes).map_err(JsonlError::io("write", &path))
}

/// Rows of the file `name` of `dir`, without a torn last line; none if there is no such file.
pub fn read_rows<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<Vec<T>, JsonlError> {
    Ok(parse(dir, name)?.rows)
}

fn line<T: Serialize>(row: &T, path: &Path) -> Result<Vec<u8>, JsonlError> {
    let mut line =
        serde_json::to_vec(row).map_err(|source| JsonlError::Row { path: path.to_owned(), source })?;
    line.push(b'\n');
    Ok(line)
}

struct Parsed<T> {
    rows: Vec<T>,
    /// Bytes of complete rows.
    length: u64,
    torn: Option<String>,
}

fn parse<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<Parsed<T>, JsonlError> {
    let path = dir.join(name);
    let bytes = folder::read(dir, name).map_err(JsonlError::io("read", &path))?.unwrap_or_default();
    let mut parsed = Parsed { rows: Vec::new(), length: 0, torn: None };
    for (number, line) in bytes.split_inclusive(|b| *b == b'\n').enumerate() {
        let last = parsed.length + line.len() as u64 == bytes.len() as u64;
        let row = match line.strip_suffix(b"\n") {
            // Even if it parses, the write did not finish and bytes may be missing.
            None => Err("no newline".to_owned()),
            Some(line) => serde_json::from_slice(line).map_err(|e| e.to_string()),
        };
        match row {
            Ok(row) => {
                parsed.rows.push(row);
                parsed.length += line.len() as u64;
            }
            Err(reason) if last => parsed.torn = Some(reason),
            Err(reason) => {
                return Err(JsonlError::BrokenLine { path, line: number + 1, reason });
            }
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_an_error_with_a_remedy_and_counts_no_row() {
        let root = tempfile::tempdir().unwrap();
        let mut log: RowLog<String> = RowLog::open(root.path(), "rows.jsonl").unwrap();
        log.append("kept".to_owned()).unwrap();
        // /dev/full rejects every write.
        log.file = File::options().write(true).open("/dev/full").unwrap();
        let error = log.append("lost".to_owned()).unwrap_err().to_string();
        assert!(error.contains("rows.jsonl") && error.contains("free some space"), "{error}");
        assert_eq!(log.rows, ["kept"]);
        assert_eq!(read_rows::<String>(root.path(), "rows.jsonl").unwrap(), ["kept"]);
    }

    /// serde_json reads floats exactly only with its `float_roundtrip` feature.
    #[test]
    fn a_stored_number_is_read_back_bit_for_bit() {
        let root = tempfile::tempdir().unwrap();
        // Linear congruential generator; the high bits cover all exponents and both signs.
        let step = |state: &u64| {
            Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        };
        let states = std::iter::successors(Some(7), step).take(20_000);
        let any = states.clone().map(f64::from_bits).filter(|number| number.is_finite());
        // The range of log-probabilities and effects.
        let small = states.map(|state| -((state >> 11) as f64) / (1_u64 << 50) as f64);
        let numbers: Vec<f64> = any.chain(small).collect();
        write_rows(root.path(), "numbers.jsonl", &numbers).unwrap();
        let back = read_rows::<f64>(root.path(), "numbers.jsonl").unwrap();
        let differ = numbers.iter().zip(&back).filter(|(one, other)| one.to_bits() != other.to_bits());
        assert_eq!((back.len(), differ.count()), (numbers.len(), 0));
        let through_values = read_rows::<serde_json::Value>(root.path(), "numbers.jsonl").unwrap();
        let values = through_values.iter().map(|value| value.as_f64().map(f64::to_bits));
        assert!(values.eq(numbers.iter().map(|number| Some(number.to_bits()))));
    }

    #[test]
    fn a_write_that_stopped_within_a_line_is_taken_back() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("rows.jsonl");
        let mut log: RowLog<String> = RowLog::open(root.path(), "rows.jsonl").unwrap();
        log.append("a".to_owned()).unwrap();
        std::fs::write(&path, "\"a\"\n\"b").unwrap();
        let mut log: RowLog<String> = RowLog::open(root.path(), "rows.jsonl").unwrap();
        log.append("c".to_owned()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "\"a\"\n\"c\"\n");
    }
}
