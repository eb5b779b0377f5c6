//! Validates JSON rows against a declared [`Shape`]; problems name file, row, id and field. Rules across fields are the readers' own.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, BufRead};
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::{Number, Value};

use super::reading::{Problem, RowProblems};
use crate::case::Probe;
pub use crate::case::finding::quote;
use crate::ground::json::{self, Fault};

pub const WHOLE_ROW: &str = "(row)";

/// JSON value that keeps repeated keys.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Node {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Node>),
    Object(Pairs<Node>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Pairs<V>(pub Vec<(String, V)>);

pub enum Shape {
    Text,
    /// (values, remedy)
    OneOf(&'static [&'static str], &'static str),
    /// (predicate, remedy)
    Where(fn(&Node) -> bool, &'static str),
    /// (word for an element, minimum length, element shape)
    List(&'static str, usize, &'static Shape),
    Fields(&'static [Field], Others),
    /// Reports by itself; true if valid.
    By(fn(&mut Checker<'_>, &str, &Node) -> bool),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Others {
    Refused,
    Ignored,
}

pub struct Field {
    name: &'static str,
    shape: Shape,
    /// Remedy if missing; `None` if optional.
    missing: Option<&'static str>,
}

pub const fn needed(name: &'static str, shape: Shape) -> Field {
    Field { name, shape, missing: Some("add it") }
}

pub const fn needed_or(name: &'static str, shape: Shape, missing: &'static str) -> Field {
    Field { name, shape, missing: Some(missing) }
}

pub const fn optional(name: &'static str, shape: Shape) -> Field {
    Field { name, shape, missing: None }
}

pub const SPEAKER: Shape = Shape::OneOf(&["user", "assistant"], "write \"user\" or \"assistant\"");
const OF_TURN: [Field; 2] = [needed("role", SPEAKER), needed("content", Shape::Text)];
/// Strict: other fields are refused.
pub const TURN: Shape = Shape::Fields(&OF_TURN, Others::Refused);
/// Other fields are ignored.
pub const OPEN_TURN: Shape = Shape::Fields(&OF_TURN, Others::Ignored);

impl Node {
    pub fn describe(&self) -> String {
        match self {
            Node::Null => "null".to_owned(),
            Node::Bool(value) => value.to_string(),
            Node::Number(value) => value.to_string(),
            Node::String(text) => quote(text),
            Node::Array(items) => format!("an array of {}", items.len()),
            Node::Object(Pairs(fields)) => format!("an object of {} fields", fields.len()),
        }
    }

    pub fn get(&self, name: &str) -> Option<&Node> {
        match self {
            Node::Object(Pairs(fields)) => {
                fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Node::String(text) => Some(text),
            _ => None,
        }
    }

    /// Elements of an array field.
    pub fn items(&self, name: &str) -> &[Node] {
        match self.get(name) {
            Some(Node::Array(items)) => items,
            _ => &[],
        }
    }

    /// Strings in an array field.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        self.items(name).iter().filter_map(Node::as_str).collect()
    }

    /// A non-blank string field.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str().filter(|text| !text.trim().is_empty())
    }

    fn value(self) -> Value {
        match self {
            Node::Null => Value::Null,
            Node::Bool(value) => value.into(),
            Node::Number(value) => value.into(),
            Node::String(text) => text.into(),
            Node::Array(items) => items.into_iter().map(Node::value).collect(),
            Node::Object(Pairs(fields)) => {
                Value::Object(fields.into_iter().map(|(name, value)| (name, value.value())).collect())
            }
        }
    }
}

#[derive(Debug)]
pub struct Checker<'a> {
    pub file: Option<&'a str>,
    pub row: usize,
    pub uid: Option<String>,
    pub within: String,
    pub problems: Vec<Problem>,
    /// Leading problems that are faults of the JSON itself; nothing more is said of their fields.
    faults: usize,
}

/// File and row of ids that are read.
pub type Places<'a> = HashMap<String, (Option<&'a str>, usize)>;

impl<'a> Checker<'a> {
    pub fn new(file: Option<&'a str>, row: usize, uid: Option<&str>) -> Self {
        let uid = uid.map(str::to_owned);
        Checker { file, row, uid, within: String::new(), problems: Vec::new(), faults: 0 }
    }

    pub fn problem(&mut self, field: impl AsRef<str>, found: impl Into<String>, remedy: impl Into<String>) {
        let field = format!("{}{}", self.within, field.as_ref());
        if self.problems.iter().take(self.faults).any(|fault| fault.field == field) {
            return;
        }
        let (file, uid) = (self.file.map(str::to_owned), self.uid.clone());
        let (found, remedy) = (found.into(), remedy.into());
        self.problems.push(Problem { file, row: self.row, uid, field, found, remedy });
    }

    pub fn faults(&mut self, faults: Vec<Fault>) {
        self.faults = 0;
        for fault in faults {
            self.problem(fault.field, fault.found, fault.remedy);
        }
        self.faults = self.problems.len();
    }

    /// Reports an id that an earlier row has.
    pub fn unique(&mut self, field: &str, id: Option<&str>, remedy: &str, ids: &mut Places<'a>) {
        let Some(id) = id else { return };
        let Some((file, row)) = ids.get(id) else {
            ids.insert(id.to_owned(), (self.file, self.row));
            return;
        };
        let file = file.filter(|_| *file != self.file).map_or(String::new(), |file| format!("{file}, "));
        self.problem(field, format!("the {field} of {file}row {row} again"), remedy);
    }

    /// The row cannot be read at all.
    pub fn refused(mut self, found: impl Into<String>, remedy: &str) -> RowProblems {
        self.problem(WHOLE_ROW, found, remedy);
        self.problems.into()
    }

    /// `read` if there was no problem with the row.
    pub fn outcome<T>(
        self,
        read: Option<T>,
        labels: BTreeMap<String, String>,
        probes: Vec<Probe>,
    ) -> Result<T, RowProblems> {
        let problems = self.problems;
        read.filter(|_| problems.is_empty()).ok_or(RowProblems {
            problems,
            labels,
            probes,
            ..RowProblems::default()
        })
    }

    /// Parses a row; `None` after reporting problems.
    pub fn read<T: DeserializeOwned>(&mut self, node: Node, shape: &Shape) -> Option<T> {
        if !self.fits(WHOLE_ROW, &node, shape) || self.faults > 0 {
            return None;
        }
        let read = serde_json::from_value(node.value());
        read.map_err(|error| self.problem(WHOLE_ROW, error.to_string(), "put it right")).ok()
    }

    pub fn fits(&mut self, path: &str, node: &Node, shape: &Shape) -> bool {
        let before = self.problems.len();
        match (shape, node) {
            (Shape::Text, Node::String(text)) if text.trim().is_empty() => {
                self.problem(path, "an empty string", "write a text that is not blank");
            }
            (Shape::Text, Node::String(_)) => {}
            (Shape::Text, other) => self.problem(path, other.describe(), "write a string"),
            (Shape::OneOf(known, _), Node::String(text)) if known.contains(&text.as_str()) => {}
            (Shape::OneOf(_, remedy), Node::String(text)) if text.trim().is_empty() => {
                self.problem(path, "an empty string", *remedy);
            }
            (Shape::OneOf(_, remedy), other) => self.problem(path, other.describe(), *remedy),
            (Shape::Where(takes, remedy), other) => {
                if !takes(other) {
                    self.problem(path, other.describe(), *remedy);
                }
            }
            (Shape::List(of, least, _), Node::Array(items)) if items.len() < *least => {
                self.problem(path, "an empty array", format!("give at least one {of}"));
            }
            (Shape::List(_, _, each), Node::Array(items)) => {
                for (at, item) in items.iter().enumerate() {
                    self.fits(&format!("{path}[{at}]"), item, each);
                }
            }
            (Shape::List(of, ..), other) => {
                self.problem(path, other.describe(), format!("write an array, one element a {of}"));
            }
            (Shape::Fields(known, others), Node::Object(Pairs(fields))) => {
                self.fields(path, fields, known, *others);
            }
            (Shape::Fields(known, Others::Refused), other) => {
                let remedy = format!("write an object with the fields {}", listed(known));
                self.problem(path, other.describe(), remedy);
            }
            (Shape::Fields(..), other) => self.problem(path, other.describe(), "write an object"),
            (Shape::By(check), node) => return check(self, path, node),
        }
        self.problems.len() == before
    }

    fn fields(&mut self, path: &str, fields: &[(String, Node)], known: &[Field], others: Others) {
        let prefix = if path == WHOLE_ROW { String::new() } else { format!("{path}.") };
        for (at, (name, _)) in fields.iter().enumerate() {
            if others == Others::Refused && !known.iter().any(|field| field.name == name) {
                let remedy = format!("remove it: the fields here are {}", listed(known));
                self.problem(format!("{prefix}{}", shown_key(name)), "an unknown field", remedy);
            } else if fields.iter().take(at).any(|(before, _)| before == name) {
                self.problem(format!("{prefix}{name}"), "the same key a second time", "keep one of them");
            }
        }
        for Field { name, shape, missing } in known {
            let path = format!("{prefix}{name}");
            match (fields.iter().find(|(other, _)| other == name), missing) {
                (Some((_, value)), _) => drop(self.fits(&path, value, shape)),
                (None, Some(remedy)) => self.problem(path, "no such field", *remedy),
                (None, None) => {}
            }
        }
    }
}

pub const ONE_OBJECT: &str = "write one JSON object a line";

/// Lines that are not blank, with their numbers from 1.
pub fn lines<'a>(reader: impl BufRead + 'a) -> impl Iterator<Item = io::Result<(usize, Vec<u8>)>> + 'a {
    let numbered = (1..).zip(reader.split(b'\n')).map(|(number, text)| Ok((number, text?)));
    numbered.filter(|line| !line.as_ref().is_ok_and(|(_, text)| text.trim_ascii().is_empty()))
}

/// Parses a line of JSON Lines, or says what is wrong with it.
pub fn json_row(line: usize, text: &[u8]) -> Result<(Node, Vec<Fault>), String> {
    json::read(text).map_err(|error| format!("line {line}, which is no row: {error}"))
}

/// Required names first.
fn listed(fields: &[Field]) -> String {
    let names = |needed: bool| {
        let names = fields.iter().filter(|field| field.missing.is_some() == needed).map(|field| field.name);
        names.collect::<Vec<_>>().join(", ")
    };
    match names(false) {
        none if none.is_empty() => names(true),
        others => format!("{} and, where wanted, {others}", names(true)),
    }
}

/// Field-like keys as they are, others quoted and shortened.
fn shown_key(name: &str) -> String {
    let plain =
        !name.is_empty() && name.len() <= 60 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if plain { name.to_owned() } else { quote(name) }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

struct PairsVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for PairsVisitor<V> {
    type Value = Pairs<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<V>, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Pairs(fields))
    }
}
