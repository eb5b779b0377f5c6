//! Reads JSONL or Parquet, detected by content, alone or in a folder (MemoryRewardBench, section 3). Streams rows.

use std::collections::HashMap;
use std::io;

use super::columns::{ColumnsError, MAGIC, ParquetRows};
use super::row::{RawRow, case_of};
use super::terms::TITLE;
use crate::benchmarks::reading::{ReadError, RowProblems, until_broken};
use crate::benchmarks::shape::{Checker, WHOLE_ROW};
use crate::benchmarks::{Cases, Files};
use crate::ground::json::{self, Fault};

const KEYS: [&str; 4] = ["\"subtask\"", "\"ctx_length\"", "\"chosen\"", "\"rejected\""];

/// Parquet, or JSON Lines with the benchmark's keys. Quotes inside strings are escaped, so texts do not match.
pub(super) fn recognises(files: &Files<'_>) -> bool {
    files.names().iter().filter(|name| reads(name)).any(|name| {
        let beginning = files.beginning(name);
        let begun = beginning.trim_start();
        beginning.starts_with(MAGIC)
            || begun.starts_with(['{', '[']) && KEYS.iter().any(|key| beginning.contains(key))
    })
}

/// Skips READMEs and licences.
pub(super) fn reads(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let about = name.starts_with("readme") || name.starts_with("license");
    !about && ![".md", ".txt", ".py", ".png"].iter().any(|end| name.ends_with(end))
}

type Read = Result<(RawRow, Vec<Fault>), String>;

pub(super) fn pairs(files: Files<'_>) -> Cases<'_> {
    let folder = files.is_folder();
    let names: Vec<&str> = files.names().into_iter().filter(|name| !folder || reads(name)).collect();
    let mut rows = names.into_iter().flat_map(move |name| {
        let file = folder.then_some(name);
        let rows = rows_of(&files, file, name).unwrap_or_else(|error| Box::new(std::iter::once(Err(error))));
        rows.enumerate().map(move |(row, read)| (file, row, read))
    });
    // id -> first place
    let mut ids: HashMap<String, String> = HashMap::new();
    let mut any = false;
    until_broken(move || {
        let Some((file, row, read)) = rows.next() else {
            return if any { Ok(None) } else { Err(ReadError::NoCases { benchmark: TITLE }) };
        };
        let read = read?;
        any = true;
        let mut checker = Checker::new(file, row, None);
        let (raw, faults) = read.map_err(|found| {
            checker.problem(WHOLE_ROW, found, "write one JSON object a line");
            RowProblems::from(std::mem::take(&mut checker.problems))
        })?;
        let mut own = Checker::new(file, row, None);
        own.faults(faults);
        let found = own.beside(case_of(raw, checker))?;
        let place = file.map_or_else(|| format!("row {row}"), |name| format!("{name}, row {row}"));
        if let Some(first) = ids.insert(found.id.clone(), place) {
            let mut again = Checker::new(file, row, Some(&found.id));
            again.problem(
                "index",
                format!("the index of {first} again"),
                "give every row its own index, or none",
            );
            let (problems, labels) = (again.problems, found.labels);
            return Err(RowProblems { problems, labels, ..RowProblems::default() }.into());
        }
        Ok(Some(found))
    })
}

type Rows<'a> = Box<dyn Iterator<Item = Result<Read, ReadError>> + 'a>;

fn rows_of<'a>(files: &Files<'a>, file: Option<&'a str>, name: &str) -> Result<Rows<'a>, ReadError> {
    let failed = move |row, source| ReadError::Read { file: file.map(str::to_owned), row, source };
    let invalid = |error: ColumnsError| io::Error::new(io::ErrorKind::InvalidData, error);
    let of_start = |source| failed(0, source);
    let mut reader = files.open(name).map_err(of_start)?;
    let mut row = 0;
    if reader.fill_buf().map_err(of_start)?.starts_with(MAGIC.as_bytes()) {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map_err(of_start)?;
        let mut columns = ParquetRows::open(bytes).map_err(|error| of_start(invalid(error)))?;
        return Ok(Box::new(std::iter::from_fn(move || {
            let next = columns.next_row().map_err(|error| failed(row, invalid(error))).transpose();
            row += 1;
            next.map(|raw| raw.map(|raw| Ok((raw, Vec::new()))))
        })));
    }
    let mut line = 0;
    Ok(Box::new(std::iter::from_fn(move || {
        let mut text = Vec::new();
        while text.trim_ascii().is_empty() {
            text.clear();
            match reader.read_until(b'\n', &mut text) {
                Ok(0) => return None,
                Ok(_) => line += 1,
                Err(error) => return Some(Err(failed(row, error))),
            }
        }
        let bare = text.trim_ascii();
        row += 1;
        if row == 1 && !bare.starts_with(b"{") {
            let what = "this is neither a JSON object nor Parquet; a file has one object a line".to_owned();
            let file = file.map(str::to_owned);
            return Some(Err(ReadError::Syntax { file, row: 0, line, column: 1, what }));
        }
        // serde's position is within the line, which is the row.
        Some(Ok(json::read(bare).map_err(|error| format!("line {line}, which is no row: {error}"))))
    })))
}
