//! Problems of data files, and check reports.

use std::collections::BTreeMap;
use std::fmt;
use std::{io, iter};

use crate::case::finding::Finding;
use crate::case::{Case, Probe};
use serde::Serialize;

/// Problems that a [`Report`] keeps; others are only counted.
pub const PROBLEMS_SHOWN: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// `None` for single-file datasets.
    pub file: Option<String>,
    pub row: usize,
    pub uid: Option<String>,
    /// Path such as `haystack_session[3][1].role`; `(row)` for the row itself.
    pub field: String,
    /// Shortened.
    pub found: String,
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { file, row, uid, field, found, remedy } = self;
        if let Some(file) = file {
            write!(f, "{file}, ")?;
        }
        match uid {
            Some(uid) => write!(f, "row {row} (uid {uid:?}), {field}: found {found}; {remedy}"),
            None => write!(f, "row {row} (no uid), {field}: found {found}; {remedy}"),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowProblems {
    pub problems: Vec<Problem>,
    /// Readable labels; the broken case counts under them.
    pub labels: BTreeMap<String, String>,
    /// Known probes by id and facets, which stay in the denominators if cases have different probes.
    pub probes: Vec<Probe>,
}

impl From<Vec<Problem>> for RowProblems {
    fn from(problems: Vec<Problem>) -> Self {
        RowProblems { problems, ..RowProblems::default() }
    }
}

impl fmt::Display for RowProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))
    }
}

impl std::error::Error for RowProblems {}

fn in_file(file: &Option<String>) -> String {
    file.as_ref().map_or_else(String::new, |file| format!("{file}, "))
}

fn in_row(row: usize) -> String {
    if row == 0 { String::new() } else { format!(", row {row}") }
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Row(#[from] RowProblems),
    /// A table that cannot be read; row 0 is the file itself.
    #[error("{file}{}: {what}", in_row(*.row))]
    Table { file: String, row: usize, what: String },
    #[error("{}row {row}, line {line}, column {column}: {what}", in_file(.file))]
    Syntax { file: Option<String>, row: usize, line: usize, column: usize, what: String },
    #[error(
        "the file holds no cases; a {benchmark} file has at least one, so this is probably the wrong file"
    )]
    NoCases { benchmark: &'static str },
    #[error("{}reading failed in row {row}", in_file(.file))]
    Read { file: Option<String>, row: usize, source: io::Error },
}

/// Cases in file order, streamed. Iteration continues after [`ReadError::Row`].
pub type Cases<'a> = Box<dyn Iterator<Item = Result<Case, ReadError>> + 'a>;

pub(super) fn unreadable<'a>(error: ReadError) -> Cases<'a> {
    Box::new(iter::once(Err(error)))
}

/// Continues after broken rows; ends after any other error.
pub(super) fn until_broken<'a>(mut read: impl FnMut() -> Result<Option<Case>, ReadError> + 'a) -> Cases<'a> {
    let mut ended = false;
    Box::new(iter::from_fn(move || {
        let item = if ended { None } else { read().transpose() };
        ended = !matches!(item, Some(Ok(_) | Err(ReadError::Row(_))));
        item
    }))
}

#[derive(Debug, Default)]
pub struct Report {
    pub rows: usize,
    pub splits: BTreeMap<String, usize>,
    pub probes: BTreeMap<String, usize>,
    pub findings: Vec<Finding>,
    pub problem_count: usize,
    /// The first [`PROBLEMS_SHOWN`] in file order.
    pub problems: Vec<Problem>,
    pub broken: Option<ReadError>,
}

impl Report {
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0 && self.broken.is_none()
    }
}
