//! The files of the benchmark: JSONL or Parquet, known by content, alone or in a folder.
//!
//! Owns the row shape (MemoryRewardBench, section 3) and every check that keeps a wrong file from becoming a wrong figure. Holds a
//! row or a few of them at a time; of a Parquet file also its bytes, which cannot be read from front to back.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead};

use super::columns::{ColumnsError, MAGIC, ParquetRows};
use super::row::{RawRow, case_of};
use super::terms::TITLE;
use crate::benchmarks::reading::{ReadError, RowProblems, until_broken};
use crate::benchmarks::shape::{Checker, WHOLE_ROW};
use crate::benchmarks::{Cases, Files};
use crate::data::Case;
use crate::ground::json::{self, Fault};

const KEYS: [&str; 4] = ["\"subtask\"", "\"ctx_length\"", "\"chosen\"", "\"rejected\""];

/// True if one of the files is the benchmark's: Parquet, or JSON lines with its keys. Quotes inside a text are escaped, so that a
/// key is not found there.
pub(super) fn recognises(files: &Files<'_>) -> bool {
    files.names().iter().filter(|name| reads(name)).any(|name| {
        let beginning = files.beginning(name);
        let begun = beginning.trim_start();
        beginning.starts_with(MAGIC)
            || begun.starts_with(['{', '[']) && KEYS.iter().any(|key| beginning.contains(key))
    })
}

/// True if a file of a folder is data: texts about data are not.
pub(super) fn reads(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let about = name.starts_with("readme") || name.starts_with("license");
    !about && ![".md", ".txt", ".py", ".png"].iter().any(|end| name.ends_with(end))
}

struct Pairs<'a> {
    files: Files<'a>,
    /// True if rows are told by their file too.
    folder: bool,
    names: VecDeque<&'a str>,
    open: Option<Open<'a>>,
    ids: HashMap<String, String>,
    /// True if there was a row, sound or not.
    any: bool,
}

struct Open<'a> {
    name: &'a str,
    rows: Format<'a>,
    row: usize,
}

enum Format<'a> {
    Lines { reader: Box<dyn BufRead + 'a>, line: usize },
    Columns(Box<ParquetRows>),
}

enum Next {
    /// With what JSON does not have in it.
    Row(Box<RawRow>, Vec<Fault>),
    Broken(String),
    End,
}

/// The rows of all files, in the order of their names.
pub(super) fn pairs(files: Files<'_>) -> Cases<'_> {
    let folder = files.is_folder();
    let names = files.names().into_iter().filter(|name| !folder || reads(name)).collect();
    let mut pairs = Pairs { files, folder, names, open: None, ids: HashMap::new(), any: false };
    until_broken(move || pairs.read())
}

impl Pairs<'_> {
    fn read(&mut self) -> Result<Option<Case>, ReadError> {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                none => match self.names.pop_front() {
                    Some(name) => none.insert(open(&self.files, self.folder, name)?),
                    None if self.any => return Ok(None),
                    None => return Err(ReadError::NoCases { benchmark: TITLE }),
                },
            };
            let (name, row) = (open.name, open.row);
            let file = self.folder.then_some(name);
            let next = open.rows.next(file, row)?;
            open.row += 1;
            let mut checker = Checker::new(file, row, None);
            let found = match next {
                Next::End => {
                    self.open = None;
                    continue;
                }
                Next::Broken(found) => {
                    self.any = true;
                    checker.problem(WHOLE_ROW, found, "write one JSON object a line");
                    return Err(ReadError::Row(checker.problems.into()));
                }
                Next::Row(raw, faults) => {
                    self.any = true;
                    let mut own = Checker::new(file, row, None);
                    own.faults(faults);
                    own.beside(case_of(*raw, checker))?
                }
            };
            let place = if self.folder { format!("{name}, row {row}") } else { format!("row {row}") };
            if let Some(first) = self.ids.insert(found.id.clone(), place) {
                let what = format!("the index of {first} again");
                let mut row = Checker::new(file, row, Some(&found.id));
                row.problem("index", what, "give every row its own index, or none");
                return Err(ReadError::Row(RowProblems {
                    problems: row.problems,
                    labels: found.labels,
                    ..RowProblems::default()
                }));
            }
            return Ok(Some(found));
        }
    }
}

fn open<'a>(files: &Files<'a>, folder: bool, name: &'a str) -> Result<Open<'a>, ReadError> {
    let file = || folder.then(|| name.to_owned());
    let failed = |source| ReadError::Read { file: file(), row: 0, source };
    let mut reader = files.open(name).map_err(failed)?;
    let rows = if reader.fill_buf().map_err(failed)?.starts_with(MAGIC.as_bytes()) {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map_err(failed)?;
        Format::Columns(Box::new(ParquetRows::open(bytes).map_err(|error| failed(invalid(error)))?))
    } else {
        Format::Lines { reader, line: 0 }
    };
    Ok(Open { name, rows, row: 0 })
}

fn invalid(error: ColumnsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Format<'_> {
    fn next(&mut self, of_folder: Option<&str>, row: usize) -> Result<Next, ReadError> {
        let file = || of_folder.map(str::to_owned);
        let failed = |source| ReadError::Read { file: file(), row, source };
        match self {
            Format::Columns(rows) => {
                let next = rows.next_row().map_err(|error| failed(invalid(error)))?;
                Ok(next.map_or(Next::End, |row| Next::Row(Box::new(row), Vec::new())))
            }
            Format::Lines { reader, line } => {
                let mut text = Vec::new();
                loop {
                    text.clear();
                    if reader.read_until(b'\n', &mut text).map_err(failed)? == 0 {
                        return Ok(Next::End);
                    }
                    *line += 1;
                    let bare = text.trim_ascii();
                    if bare.is_empty() {
                        continue;
                    }
                    if row == 0 && !bare.starts_with(b"{") {
                        let what = "this is neither a JSON object nor Parquet; a file has one object a line"
                            .to_owned();
                        return Err(ReadError::Syntax { file: file(), row: 0, line: *line, column: 1, what });
                    }
                    // The parser's place is in the line, and the line is the row.
                    return Ok(match json::read(bare) {
                        Ok((raw, faults)) => Next::Row(Box::new(raw), faults),
                        Err(error) => Next::Broken(format!("line {line}, which is no row: {error}")),
                    });
                }
            }
        }
    }
}
