//! Reads JSONL or Parquet, detected by content, alone or in a folder (MemoryRewardBench, section 3). Streams rows.

use super::columns::{self, MAGIC};
use super::row::{case_of, id};
use super::terms::TITLE;
use crate::benchmarks::reading::{ReadError, until_broken};
use crate::benchmarks::shape::{Checker, Node, ONE_OBJECT, Places, json_row, lines};
use crate::benchmarks::{Cases, Files};
use crate::ground::json::Fault;

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

/// Skips READMEs, licences, and the table that `build` writes beside the pairs.
pub(super) fn reads(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let about = name.starts_with("readme") || name.starts_with("license");
    !about && ![".md", ".txt", ".py", ".png", ".csv"].iter().any(|end| name.ends_with(end))
}

/// A row, or what is wrong with its JSON.
type Read = Result<(Node, Vec<Fault>), String>;

pub(super) fn pairs(files: Files<'_>) -> Cases<'_> {
    let folder = files.is_folder();
    let names: Vec<&str> = files.names().into_iter().filter(|name| !folder || reads(name)).collect();
    let mut rows = names.into_iter().flat_map(move |name| {
        let file = folder.then_some(name);
        let rows = rows_of(&files, file, name).unwrap_or_else(|error| Box::new(std::iter::once(Err(error))));
        rows.enumerate().map(move |(row, read)| (file, row, read))
    });
    let (mut ids, mut any) = (Places::new(), false);
    until_broken(move || {
        let Some((file, row, read)) = rows.next() else {
            return if any { Ok(None) } else { Err(ReadError::NoCases { benchmark: TITLE }) };
        };
        let read = read?;
        any = true;
        let (node, faults) =
            read.map_err(|found| Checker::new(file, row, None).refused(found, ONE_OBJECT))?;
        let id = id(&node, file, row);
        let mut checker = Checker::new(file, row, id.as_deref());
        checker.faults(faults);
        checker.unique("index", id.as_deref(), "give every row its own index, or none", &mut ids);
        Ok(Some(case_of(&node, checker)?))
    })
}

type Rows<'a> = Box<dyn Iterator<Item = Result<Read, ReadError>> + 'a>;

fn rows_of<'a>(files: &Files<'a>, file: Option<&'a str>, name: &str) -> Result<Rows<'a>, ReadError> {
    let failed = move |row, source| ReadError::Read { file: file.map(str::to_owned), row, source };
    let of_start = |source| failed(0, source);
    let mut reader = files.open(name).map_err(of_start)?;
    if reader.fill_buf().map_err(of_start)?.starts_with(MAGIC.as_bytes()) {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map_err(of_start)?;
        let rows = columns::rows(bytes).map_err(of_start)?.enumerate();
        return Ok(Box::new(rows.map(move |(row, node)| match node {
            Ok(node) => Ok(Ok((node, Vec::new()))),
            Err(source) => Err(failed(row, source)),
        })));
    }
    Ok(Box::new(lines(reader).enumerate().map(move |(row, line)| {
        let (line, text) = line.map_err(|source| failed(row, source))?;
        if row == 0 && !text.trim_ascii_start().starts_with(b"{") {
            let what = "this is neither a JSON object nor Parquet; a file has one object a line".to_owned();
            let file = file.map(str::to_owned);
            return Err(ReadError::Syntax { file, row, line, column: 1, what });
        }
        Ok(json_row(line, &text))
    })))
}
