//! Rows of a JSON array of objects, with problems, which reject a data set or a question, and findings, which are only reported.

use std::collections::BTreeMap;

use serde_json::Value;

use super::terms::TITLE;
use crate::benchmarks::Files;
use crate::benchmarks::arrays::rows;
use crate::benchmarks::reading::{Problem, ReadError};
use crate::benchmarks::shape::{Checker, Pairs};
use crate::case::finding::{Check, Finding, quote};
use crate::ground::json::Fault;

/// Field aliases in data sets 2 and 3.
const ALSO: [(&str, &str); 2] = [("mind", "inner_thought"), ("evidence_ids", "evidence")];

/// Findings in a data set.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub case: String,
    pub problems: Vec<Problem>,
    pub flags: Vec<Finding>,
}

impl Findings {
    pub(super) fn whole(&mut self, file: &str, found: &str, remedy: impl Into<String>) {
        let mut checker = Checker::new(Some(file), 0, None);
        checker.problem("(file)", found, remedy);
        self.problems.append(&mut checker.problems);
    }

    pub(super) fn finding(&self, check: &'static Check, file: &str, what: impl Into<String>) -> Finding {
        Finding::new(check, &self.case, what).in_file(file)
    }
}

pub(super) struct Row<'a> {
    pub id: Option<String>,
    /// In file order with repeated keys.
    fields: Vec<(String, Value)>,
    pub check: Checker<'a>,
}

/// `prefix` is put before ids in messages. Reports missing ids, invalid values and repeated keys.
pub(super) fn read<'a>(files: &Files<'_>, file: &'a str, prefix: &str) -> Result<Vec<Row<'a>>, ReadError> {
    let failed = |source| ReadError::Read { file: Some(file.to_owned()), row: 0, source };
    let rows = rows::<Pairs<Value>>(files.open(file).map_err(failed)?, Some(file), TITLE)?;
    let row = |(at, (Pairs(fields), faults)): (usize, (Pairs<Value>, Vec<Fault>))| {
        Row::new(fields, Checker::new(Some(file), at, None), prefix, faults)
    };
    Ok(rows.into_iter().enumerate().map(row).collect())
}

impl<'a> Row<'a> {
    fn new(fields: Vec<(String, Value)>, check: Checker<'a>, prefix: &str, faults: Vec<Fault>) -> Self {
        let mut row = Row { id: None, fields, check };
        row.id = row.get("id").and_then(id);
        row.check.uid = row.id.as_ref().map(|id| format!("{prefix}{id}"));
        if row.id.is_none() {
            let found = found(row.get("id"));
            row.check.problem("id", found, "give every row its id, a whole number or a text");
        }
        row.check.faults(faults);
        if let Some(key) = row.doubled().map(quote) {
            row.check.problem(key, "the same key a second time", "keep one of them");
        }
        row
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let of_name = |(key, value): &&(String, Value)| !value.is_null() && known_as(key) == name;
        self.fields.iter().find(of_name).map(|(_, value)| value)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(key, _)| known_as(key) == name)
    }

    /// A repeated key, or two non-null aliases.
    fn doubled(&self) -> Option<&str> {
        let fields = || self.fields.iter().enumerate();
        let twice = |(at, (key, value)): &(usize, &(String, Value))| {
            fields().take(*at).any(|(_, (before, earlier))| {
                before == key || (known_as(before) == known_as(key) && !is_blank(value) && !is_blank(earlier))
            })
        };
        fields().find(twice).map(|(_, (key, _))| key.as_str())
    }

    /// Untrimmed text; `None` if absent, null or blank. Reports other types.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        match self.get(name)? {
            Value::String(text) if text.trim().is_empty() => None,
            Value::String(text) => Some(text.clone()),
            other => {
                let found = describe(other);
                self.check.problem(name, found, "write a text, or null");
                None
            }
        }
    }

    pub(super) fn needed(&mut self, name: &str) -> Option<String> {
        let text = self.text(name);
        if text.is_none() && self.get(name).is_none_or(Value::is_string) {
            let found = if self.get(name).is_some() { "an empty text" } else { "no such field" };
            self.check.problem(name, found, "write a text that is not blank");
        }
        text
    }
}

/// Fields that are not known and say something: the first row, and the number of rows.
pub(super) fn unknown(rows: &[Row<'_>], known: &[&str]) -> BTreeMap<String, (usize, usize)> {
    let mut found: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        for (key, value) in &row.fields {
            if !is_blank(value) && !known.contains(&known_as(key).as_str()) {
                found.entry(key.clone()).or_insert((at, 0)).1 += 1;
            }
        }
    }
    found
}

/// Reports each unknown field once, at its first row.
pub(super) fn refuse_unknown(rows: &mut [Row<'_>], known: &[&str]) {
    let remedy = format!("call it by one of {}, or remove it: what it says would be lost", known.join(", "));
    for (field, (first, count)) in unknown(rows, known) {
        let found = format!("a field that is not known and says something in {count} rows");
        rows[first].check.problem(field, found, remedy.as_str());
    }
}

/// Normalised key: lower case, `_` for spaces and hyphens, aliases resolved.
fn known_as(key: &str) -> String {
    let plain = key.trim().to_lowercase().replace([' ', '-'], "_");
    ALSO.iter().find(|(other, _)| *other == plain).map_or(plain, |(_, name)| (*name).to_owned())
}

fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
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

pub(super) fn found(value: Option<&Value>) -> String {
    value.map_or_else(|| "no such field".to_owned(), describe)
}

pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) => value.to_string(),
        Value::Number(value) => format!("the number {value}"),
        Value::String(text) => quote(text),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}
