//! What reading a data set finds: problems, which refuse it, and flags, which are told and kept.

use std::collections::BTreeMap;

use serde_json::Value;

use super::array::Row;
use crate::benchmarks::reading::Problem;
use crate::data::Flag;

/// Most characters of a value that a message repeats.
const QUOTED: usize = 60;
/// Most examples that a flag names.
const EXAMPLES: usize = 3;

/// Problems and flags of one data set.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub problems: Vec<Problem>,
    pub flags: Vec<Flag>,
}

impl Findings {
    /// For the rows of a file.
    pub(super) fn of_file<'a>(&'a mut self, file: &'a str) -> FileFindings<'a> {
        FileFindings { file, all: self, unknown: BTreeMap::new() }
    }

    /// Of a file or folder as a whole.
    pub(super) fn whole(&mut self, file: &str, found: &str, remedy: impl Into<String>) {
        self.problems.push(Problem {
            file: Some(file.to_owned()),
            row: 0,
            uid: None,
            field: "(file)".to_owned(),
            found: found.to_owned(),
            remedy: remedy.into(),
        });
    }

    /// Flags something that occurs `count` times; nothing where it does not.
    pub(super) fn flag(&mut self, file: &str, count: usize, what: impl FnOnce() -> String) {
        if count > 0 {
            self.flags.push(Flag { file: Some(file.to_owned()), count, what: what() });
        }
    }
}

/// What is found in one file. [`Self::done`] tells of fields that nobody reads.
pub(super) struct FileFindings<'a> {
    pub file: &'a str,
    all: &'a mut Findings,
    /// Fields that are not read, and in how many rows.
    unknown: BTreeMap<String, usize>,
}

impl FileFindings<'_> {
    /// A problem of a row.
    pub(super) fn problem(
        &mut self,
        row: usize,
        uid: Option<&str>,
        field: &str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.all.problems.push(Problem {
            file: Some(self.file.to_owned()),
            row,
            uid: uid.map(str::to_owned),
            field: field.to_owned(),
            found: found.into(),
            remedy: remedy.into(),
        });
    }

    /// Flags something in the file that occurs `count` times.
    pub(super) fn flag(&mut self, count: usize, what: impl FnOnce() -> String) {
        self.all.flag(self.file, count, what);
    }

    /// The row's id; reports one that is missing or cannot be read, keys that stand twice, and counts fields that are not in `known`.
    pub(super) fn id(&mut self, at: usize, row: &Row, known: &[&str]) -> Option<String> {
        let id = row.get("id").and_then(id);
        if id.is_none() {
            let found = row.get("id").map_or_else(|| "no such field".to_owned(), describe);
            self.problem(at, None, "id", found, "give every row its id, a whole number or a text");
        }
        if let Some(key) = row.doubled() {
            self.problem(at, id.as_deref(), &quote(key), "the same key a second time", "keep one of them");
        }
        for (key, _) in row.0.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
            *self.unknown.entry(key.clone()).or_default() += 1;
        }
        id
    }

    /// A field's text, trimmed of nothing; `None` where it is absent, null or blank. Reports what is no text.
    pub(super) fn text(&mut self, at: usize, uid: Option<&str>, row: &Row, name: &str) -> Option<String> {
        match row.get(name)? {
            Value::String(text) if text.trim().is_empty() => None,
            Value::String(text) => Some(text.clone()),
            other => {
                self.problem(at, uid, name, describe(other), "write a text, or null");
                None
            }
        }
    }

    /// As [`Self::text`], of a field that must say something.
    pub(super) fn needed(&mut self, at: usize, uid: Option<&str>, row: &Row, name: &str) -> Option<String> {
        let text = self.text(at, uid, row, name);
        if text.is_none() && row.get(name).is_none_or(Value::is_string) {
            let found = if row.get(name).is_some() { "an empty text" } else { "no such field" };
            self.problem(at, uid, name, found, "write a text that is not blank");
        }
        text
    }

    /// Flags the fields that were not read.
    pub(super) fn done(mut self) {
        for (field, rows) in std::mem::take(&mut self.unknown) {
            self.flag(rows, || format!("rows have the field {}, which is not used", quote(&field)));
        }
    }
}

/// An id as one text, whether it is written as a number or as a text.
pub(super) fn id(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
        Value::String(text) if !text.trim().is_empty() => Some(text.trim().to_owned()),
        _ => None,
    }
}

/// A value in a message.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => format!("the number {value}"),
        Value::String(text) => quote(text),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// A text in a message, shortened.
pub(super) fn quote(text: &str) -> String {
    let mut short: String = text.chars().take(QUOTED).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

/// The first few of a list.
pub(super) fn examples(all: &[String]) -> String {
    let some = all.iter().take(EXAMPLES).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > EXAMPLES { format!("{some}, …") } else { some }
}
