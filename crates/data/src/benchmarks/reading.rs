//! Problems of a benchmark's file, and the report of a check.

use std::collections::BTreeMap;
use std::fmt;
use std::{io, iter};

use crate::case::Case;
use crate::case::finding::Finding;
use serde::Serialize;

/// Number of problems that a [`Report`] keeps; the rest are counted, and told as they are found.
pub const PROBLEMS_SHOWN: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Which file of a folder; absent where the data set is one file.
    pub file: Option<String>,
    pub row: usize,
    /// The row's uid, where it has a readable one.
    pub uid: Option<String>,
    /// Where in the row, for example `haystack_session[3][1].role`; `(row)` for the row itself.
    pub field: String,
    /// The text that was found there, shortened.
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
    /// The labels that the row has all the same, as far as they can be read: its case is counted under them.
    pub labels: BTreeMap<String, String>,
    /// The probes that the row has all the same, where a benchmark's cases have different ones: they stay in the denominators. Empty
    /// where nobody knows them.
    pub probes: Vec<BrokenProbe>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrokenProbe {
    pub id: String,
    /// The facets that it is grouped by, as far as they can be read.
    pub facets: BTreeMap<String, String>,
}

impl From<Vec<Problem>> for RowProblems {
    fn from(problems: Vec<Problem>) -> Self {
        RowProblems { problems, ..RowProblems::default() }
    }
}

impl fmt::Display for RowProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for RowProblems {}

fn in_file(file: &Option<String>) -> String {
    file.as_ref().map_or_else(String::new, |file| format!("{file}, "))
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Row(#[from] RowProblems),
    #[error("{}row {row}, line {line}, column {column}: {what}", in_file(.file))]
    Syntax { file: Option<String>, row: usize, line: usize, column: usize, what: String },
    #[error(
        "the file holds no cases; a {benchmark} file has at least one, so this is probably the wrong file"
    )]
    NoCases { benchmark: &'static str },
    #[error("{}reading failed in row {row}", in_file(.file))]
    Read { file: Option<String>, row: usize, source: io::Error },
}

/// The cases of a data set, in its order, one in memory at a time. After [`ReadError::Row`] reading can go on.
pub type Cases<'a> = Box<dyn Iterator<Item = Result<Case, ReadError>> + 'a>;

/// The cases that `read` gives one by one, `None` at the end. After a broken row reading goes on; after any other error it ends.
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
    /// Sound rows by the label that splits the benchmark.
    pub splits: BTreeMap<String, usize>,
    /// The probes of sound rows by what they are grouped by.
    pub probes: BTreeMap<String, usize>,
    pub findings: Vec<Finding>,
    pub problem_count: usize,
    /// The first [`PROBLEMS_SHOWN`] of them, in file order.
    pub problems: Vec<Problem>,
    pub broken: Option<ReadError>,
}

impl Report {
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0 && self.broken.is_none()
    }
}
