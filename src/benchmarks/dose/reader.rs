//! The file of the benchmark: `dose.jsonl`, one row a line, alone or in the folder that `palimpsest build dose` wrote.
//!
//! Holds a row at a time.

use std::collections::HashMap;
use std::io::{self, BufRead};

use super::case::case_of;
use super::terms::TITLE;
use crate::benchmarks::reading::{ReadError, RowProblems, until_broken};
use crate::benchmarks::shape::{Checker, Node, WHOLE_ROW};
use crate::benchmarks::{Cases, Files};
use crate::data::Case;
use crate::ground::json;

pub const FILE: &str = "dose.jsonl";

/// Keys with which a row begins: the sessions behind them may be longer than what is looked at.
const KEYS: [&str; 3] = ["\"item\"", "\"twin\"", "\"factors\""];

/// True if it is such a file, or a folder that holds one under its name.
pub(super) fn recognises(files: &Files<'_>) -> bool {
    let is_rows = |name: &str| {
        let beginning = files.beginning(name);
        KEYS.iter().all(|key| beginning.contains(key))
    };
    let names = files.names();
    match files.is_folder() {
        true => names.contains(&FILE),
        false => names.first().is_some_and(|name| is_rows(name)),
    }
}

struct Rows<'a> {
    files: Files<'a>,
    reader: Option<Box<dyn BufRead + 'a>>,
    row: usize,
    line: usize,
    ids: HashMap<String, usize>,
}

pub(super) fn rows(files: Files<'_>) -> Cases<'_> {
    let mut rows = Rows { files, reader: None, row: 0, line: 0, ids: HashMap::new() };
    until_broken(move || rows.read())
}

impl Rows<'_> {
    fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(self.files.open_first()?),
        };
        let mut text = Vec::new();
        loop {
            text.clear();
            if reader.read_until(b'\n', &mut text)? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if !text.trim_ascii().is_empty() {
                return Ok(Some(text));
            }
        }
    }

    fn read(&mut self) -> Result<Option<Case>, ReadError> {
        let row = self.row;
        let line = self.next_line().map_err(|source| ReadError::Read { file: None, row, source })?;
        let Some(text) = line else {
            return if row == 0 { Err(ReadError::NoCases { benchmark: TITLE }) } else { Ok(None) };
        };
        self.row += 1;
        let mut checker = Checker::new(None, row, None);
        let (node, faults): (Node, _) = match json::read(&text) {
            Ok(read) => read,
            Err(error) => {
                let found = format!("line {}, which is no row: {error}", self.line);
                checker.problem(WHOLE_ROW, found, "write one JSON object a line");
                return Err(ReadError::Row(checker.problems.into()));
            }
        };
        checker.uid = node.text("id").map(str::to_owned);
        let mut own = Checker::new(None, row, node.text("id"));
        own.faults(faults);
        let case = own.beside(case_of(node, checker))?;
        if let Some(first) = self.ids.insert(case.id.clone(), row) {
            let mut checker = Checker::new(None, row, Some(&case.id));
            checker.problem("id", format!("the id of row {first} again"), "give every row its own id");
            let problems = checker.problems;
            return Err(RowProblems { problems, labels: case.labels, ..RowProblems::default() }.into());
        }
        Ok(Some(case))
    }
}
