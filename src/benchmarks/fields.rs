//! A row of JSON that is taken apart field by field, every problem named by file, row, id and field.

use super::node::{Node, quote};
use super::reading::{Problem, RowProblems};
use crate::data::Case;
use crate::ground::json::Fault;

/// The path that stands for the row itself.
pub(super) const WHOLE_ROW: &str = "(row)";

/// One row of a file, taken apart. A `None` from its methods always comes with a problem.
#[derive(Debug)]
pub(super) struct Checker<'a> {
    pub(super) file: Option<&'a str>,
    pub(super) row: usize,
    /// The row's id, once it is known; and what stands in the place of it in a problem.
    pub(super) uid: Option<String>,
    /// Before the field in a problem.
    pub(super) within: String,
    pub(super) problems: Vec<Problem>,
}

/// The fields of an object that have not been taken yet.
pub(super) struct Fields(pub(super) Vec<(String, Node)>);

impl Fields {
    pub(super) fn take(&mut self, name: &str) -> Option<Node> {
        let at = self.0.iter().position(|(field, _)| field == name)?;
        Some(self.0.swap_remove(at).1)
    }
}

impl<'a> Checker<'a> {
    pub(super) fn new(file: Option<&'a str>, row: usize) -> Self {
        Checker { file, row, uid: None, within: String::new(), problems: Vec::new() }
    }

    pub(super) fn problem(
        &mut self,
        field: impl AsRef<str>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.problems.push(Problem {
            file: self.file.map(str::to_owned),
            row: self.row,
            uid: self.uid.clone(),
            field: format!("{}{}", self.within, field.as_ref()),
            found: found.into(),
            remedy: remedy.into(),
        });
    }

    /// Reports what JSON does not have in the row.
    pub(super) fn faults(&mut self, faults: Vec<Fault>) {
        for fault in faults {
            self.problem(fault.field(), fault.found.as_str(), fault.remedy);
        }
    }

    /// The outcome of the row's other checks together with the problems so far, which cost the row.
    pub(super) fn beside(self, outcome: Result<Case, RowProblems>) -> Result<Case, RowProblems> {
        if self.problems.is_empty() {
            return outcome;
        }
        let of_sound = |case: Case| RowProblems { labels: case.labels, ..RowProblems::default() };
        let others = outcome.map_or_else(|others| others, of_sound);
        let mut problems = self.problems;
        let again = |other: &Problem| problems.iter().any(|own| own.field == other.field);
        let others_alone: Vec<Problem> = others.problems.into_iter().filter(|other| !again(other)).collect();
        problems.extend(others_alone);
        Err(RowProblems { problems, ..others })
    }

    /// The fields of an object; one that occurs twice is reported. Fields that nobody takes do no harm.
    pub(super) fn object(&mut self, path: &str, node: Node) -> Option<Fields> {
        self.object_of(path, node, "write an object", |_| None)
    }

    /// The same, with the remedy for what is no object, and that for a field that the object does not have.
    pub(super) fn object_of(
        &mut self,
        path: &str,
        node: Node,
        wanted: &str,
        unknown: impl Fn(&str) -> Option<String>,
    ) -> Option<Fields> {
        let found = match node {
            Node::Object(fields) => fields,
            other => {
                self.problem(path, other.describe(), wanted);
                return None;
            }
        };
        let prefix = prefix(path);
        let mut fields = Fields(Vec::with_capacity(found.len()));
        for (name, value) in found {
            if let Some(remedy) = unknown(&name) {
                self.problem(format!("{prefix}{}", shown_key(&name)), "an unknown field", remedy);
            } else if fields.0.iter().any(|(seen, _)| *seen == name) {
                self.problem(format!("{prefix}{name}"), "the same key a second time", "keep one of them");
            } else {
                fields.0.push((name, value));
            }
        }
        Some(fields)
    }

    /// A field that must be there.
    pub(super) fn required(&mut self, fields: &mut Fields, path: &str, name: &str) -> Option<Node> {
        let node = fields.take(name);
        if node.is_none() {
            self.problem(path, "no such field", "add it");
        }
        node
    }

    /// A field that must be a string with something in it.
    pub(super) fn text(&mut self, fields: &mut Fields, path: &str, name: &str) -> Option<String> {
        let node = self.required(fields, path, name)?;
        self.string(path, node)
    }

    pub(super) fn string(&mut self, path: &str, node: Node) -> Option<String> {
        match node {
            Node::String(text) if text.trim().is_empty() => {
                self.problem(path, "an empty string", "write a text that is not blank");
                None
            }
            Node::String(text) => Some(text),
            other => {
                self.problem(path, other.describe(), "write a string");
                None
            }
        }
    }

    /// A field that must be an array with something in it.
    pub(super) fn array(
        &mut self,
        fields: &mut Fields,
        path: &str,
        name: &str,
        of: &str,
    ) -> Option<Vec<Node>> {
        let node = self.required(fields, path, name)?;
        self.items(path, node, of)
    }

    /// The elements of an array with something in it.
    pub(super) fn items(&mut self, path: &str, node: Node, of: &str) -> Option<Vec<Node>> {
        match node {
            Node::Array(items) if items.is_empty() => {
                self.problem(path, "an empty array", format!("give at least one {of}"));
                None
            }
            Node::Array(items) => Some(items),
            other => {
                self.problem(path, other.describe(), format!("write an array, one element a {of}"));
                None
            }
        }
    }

    /// A field that must be an array of strings, each with something in it.
    pub(super) fn texts(
        &mut self,
        fields: &mut Fields,
        path: &str,
        name: &str,
        of: &str,
    ) -> Option<Vec<String>> {
        let items = self.array(fields, path, name, of)?;
        let count = items.len();
        let texts = items.into_iter().enumerate();
        let texts: Vec<String> =
            texts.filter_map(|(at, item)| self.string(&format!("{path}[{at}]"), item)).collect();
        (texts.len() == count).then_some(texts)
    }
}

/// The text before the names of fields of the object at a path.
pub(super) fn prefix(path: &str) -> String {
    if path == WHOLE_ROW { String::new() } else { format!("{path}.") }
}

/// A key as a message shows it: plain where it looks like a field name, quoted and shortened where it does not.
fn shown_key(name: &str) -> String {
    let plain =
        !name.is_empty() && name.len() <= 60 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if plain { name.to_owned() } else { quote(name) }
}
