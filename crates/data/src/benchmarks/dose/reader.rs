//! Reads `dose.jsonl` row by row, alone or in a folder written by `palimpsest build dose`.

use super::case::case_of;
use super::terms::TITLE;
use crate::benchmarks::reading::{ReadError, unreadable, until_broken};
use crate::benchmarks::shape::{Checker, ONE_OBJECT, Places, json_row, lines};
use crate::benchmarks::{Cases, Files};

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
    let failed = |row, source| ReadError::Read { file: None, row, source };
    let lines = match files.open_first() {
        Ok(reader) => lines(reader),
        Err(source) => return unreadable(failed(0, source)),
    };
    let (mut lines, mut ids) = (lines.enumerate().peekable(), Places::new());
    if lines.peek().is_none() {
        return unreadable(ReadError::NoCases { benchmark: TITLE });
    }
    until_broken(move || {
        let Some((row, line)) = lines.next() else { return Ok(None) };
        let (line, text) = line.map_err(|source| failed(row, source))?;
        let (node, faults) = json_row(line, &text)
            .map_err(|found| Checker::new(None, row, None).refused(found, ONE_OBJECT))?;
        let id = node.text("id");
        let mut checker = Checker::new(None, row, id);
        checker.faults(faults);
        checker.unique("id", id, "give every row its own id", &mut ids);
        Ok(Some(case_of(node, checker)?))
    })
}
