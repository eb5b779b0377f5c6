//! Collects problems, which reject a data set or a question, and findings, which are only reported.

use std::collections::BTreeMap;

use serde_json::Value;

use super::array::{Row, is_blank, known_as};
use crate::benchmarks::reading::Problem;
use crate::case::finding::{Check, Finding};

pub(super) static UNUSED_FIELD: Check = Check::warning("unused-field", "fields that are not used");

const QUOTED: usize = 60;

#[derive(Debug, Default)]
pub(super) struct Findings {
    pub case: String,
    pub problems: Vec<Problem>,
    pub flags: Vec<Finding>,
}

impl Findings {
    pub(super) fn new(case: &str) -> Self {
        Findings { case: case.to_owned(), ..Findings::default() }
    }

    /// `prefix` is put before ids in messages.
    pub(super) fn of_file<'a>(&'a mut self, file: &'a str, prefix: &'static str) -> FileFindings<'a> {
        FileFindings { file, prefix, all: self, found: Vec::new(), unknown: BTreeMap::new() }
    }

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

    pub(super) fn flag(&mut self, check: &'static Check, file: &str, what: impl Into<String>) {
        self.flags.push(Finding::new(check, &self.case, what).in_file(file));
    }
}

struct Unknown {
    row: usize,
    uid: Option<String>,
    rows: usize,
}

pub(super) struct FileFindings<'a> {
    pub file: &'a str,
    prefix: &'static str,
    all: &'a mut Findings,
    found: Vec<Problem>,
    unknown: BTreeMap<String, Unknown>,
}

impl FileFindings<'_> {
    pub(super) fn problem(
        &mut self,
        row: usize,
        uid: Option<&str>,
        field: &str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.found.push(Problem {
            file: Some(self.file.to_owned()),
            row,
            uid: uid.map(|uid| format!("{}{uid}", self.prefix)),
            field: field.to_owned(),
            found: found.into(),
            remedy: remedy.into(),
        });
    }

    pub(super) fn take(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.found)
    }

    pub(super) fn flag(&mut self, finding: Finding) {
        self.all.flags.push(finding.in_file(self.file));
    }

    pub(super) fn finding(&self, check: &'static Check, what: impl Into<String>) -> Finding {
        Finding::new(check, &self.all.case, what)
    }

    /// Reads the row id; reports missing ids and repeated keys, and counts non-empty unknown fields.
    pub(super) fn id(&mut self, at: usize, row: &Row, known: &[&str]) -> Option<String> {
        let id = row.get("id").and_then(id);
        if id.is_none() {
            let found = row.get("id").map_or_else(|| "no such field".to_owned(), describe);
            self.problem(at, None, "id", found, "give every row its id, a whole number or a text");
        }
        for fault in &row.1 {
            self.problem(at, id.as_deref(), &fault.field(), fault.found.as_str(), fault.remedy);
        }
        if let Some(key) = row.doubled() {
            self.problem(at, id.as_deref(), &quote(key), "the same key a second time", "keep one of them");
        }
        for (key, value) in &row.0 {
            if !is_blank(value) && !known.contains(&known_as(key).as_str()) {
                let new = || Unknown { row: at, uid: id.clone(), rows: 0 };
                self.unknown.entry(key.clone()).or_insert_with(new).rows += 1;
            }
        }
        id
    }

    /// Untrimmed text; `None` if absent, null or blank. Reports other types.
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

    pub(super) fn needed(&mut self, at: usize, uid: Option<&str>, row: &Row, name: &str) -> Option<String> {
        let text = self.text(at, uid, row, name);
        if text.is_none() && row.get(name).is_none_or(Value::is_string) {
            let found = if row.get(name).is_some() { "an empty text" } else { "no such field" };
            self.problem(at, uid, name, found, "write a text that is not blank");
        }
        text
    }

    /// Reports each non-empty unknown field once.
    pub(super) fn refuse_unknown(&mut self, known: &[&str]) {
        for (field, Unknown { row, uid, rows }) in std::mem::take(&mut self.unknown) {
            let found = format!("a field that is not known and says something in {rows} rows");
            let remedy =
                format!("call it by one of {}, or remove it: what it says would be lost", known.join(", "));
            self.problem(row, uid.as_deref(), &field, found, remedy);
        }
    }

    /// Remaining problems reject the data set; unread fields are flagged.
    pub(super) fn done(mut self) {
        for (field, Unknown { rows, .. }) in std::mem::take(&mut self.unknown) {
            let finding = self.finding(&UNUSED_FIELD, format!("{} in {rows} rows", quote(&field)));
            self.flag(finding);
        }
        let left = self.take();
        self.all.problems.extend(left);
    }
}

/// Ids may be numbers or strings.
pub(super) fn id(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
        Value::String(text) if !text.trim().is_empty() => Some(text.trim().to_owned()),
        _ => None,
    }
}

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

pub(super) fn quote(text: &str) -> String {
    let mut short: String = text.chars().take(QUOTED).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}
