//! Reads `dose.jsonl` row by row, alone or in a folder written by `palimpsest build dose`.

use std::collections::HashMap;
use std::io::BufRead;

use super::case::case_of;
use super::terms::TITLE;
use crate::benchmarks::reading::{ReadError, RowProblems, until_broken};
use crate::benchmarks::shape::{Checker, Node, WHOLE_ROW};
use crate::benchmarks::{Cases, Files};
use crate::ground::json;

pub const FILE: &str = "dose.jsonl";

/// Leading keys; the sessions after them may exceed the detection window.
const KEYS: [&str; 3] = ["\"item\"", "\"twin\"", "\"factors\""];

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

pub(super) fn rows(files: Files<'_>) -> Cases<'_> {
    let mut reader = None;
    let (mut row, mut line) = (0, 0);
    // id -> first row
    let mut ids: HashMap<String, usize> = HashMap::new();
    until_broken(move || {
        let at = row;
        let failed = |source| ReadError::Read { file: None, row: at, source };
        let reader = match &mut reader {
            Some(reader) => reader,
            none => none.insert(files.open_first().map_err(failed)?),
        };
        let mut text = Vec::new();
        while text.trim_ascii().is_empty() {
            text.clear();
            if reader.read_until(b'\n', &mut text).map_err(failed)? == 0 {
                return if at == 0 { Err(ReadError::NoCases { benchmark: TITLE }) } else { Ok(None) };
            }
            line += 1;
        }
        row += 1;
        let mut own = Checker::new(None, at, None);
        let (node, faults): (Node, _) = json::read(&text).map_err(|error| {
            let found = format!("line {line}, which is no row: {error}");
            own.problem(WHOLE_ROW, found, "write one JSON object a line");
            RowProblems::from(std::mem::take(&mut own.problems))
        })?;
        own.uid = node.text("id").map(str::to_owned);
        own.faults(faults);
        let checker = Checker::new(None, at, node.text("id"));
        let case = own.beside(case_of(node, checker))?;
        if let Some(first) = ids.insert(case.id.clone(), at) {
            let mut again = Checker::new(None, at, Some(&case.id));
            again.problem("id", format!("the id of row {first} again"), "give every row its own id");
            let (problems, labels) = (again.problems, case.labels);
            return Err(RowProblems { problems, labels, ..RowProblems::default() }.into());
        }
        Ok(Some(case))
    })
}
