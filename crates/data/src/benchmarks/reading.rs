//! Problems of data files, and check reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::{io, iter};

use crate::case::finding::Finding;
use crate::case::{Case, Probe};
use crate::ground::words::counted;
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
    /// True if one question is broken in a table of its own, and its history is not.
    pub of_question: bool,
}

/// Histories, questions and broken rows of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowCounts {
    pub histories: usize,
    pub questions: usize,
    pub broken_histories: BrokenRows,
    pub broken_questions: BrokenRows,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrokenRows {
    pub count: usize,
    pub files: BTreeSet<String>,
}

impl RowCounts {
    pub fn sound(&mut self, case: &Case) {
        self.histories += 1;
        self.questions += case.probes.len();
    }

    pub fn broken(&mut self, row: &RowProblems) {
        let broken = match row.of_question {
            true => &mut self.broken_questions,
            false => &mut self.broken_histories,
        };
        broken.count += 1;
        broken.files.extend(row.problems.iter().filter_map(|problem| problem.file.clone()));
        self.histories += usize::from(!row.of_question);
        self.questions += row.probes.len();
    }

    /// `3 of 4 questions (my-questions.csv) are broken`, where histories and questions are tables of their own.
    pub fn broken_in_words(&self) -> String {
        let of = |broken: &BrokenRows, all: usize, word: &str| {
            let files: Vec<&str> = broken.files.iter().map(String::as_str).collect();
            let files = if files.is_empty() { String::new() } else { format!(" ({})", files.join(", ")) };
            (broken.count > 0).then(|| format!("{} of {}{files}", broken.count, counted(all, word)))
        };
        let histories = of(&self.broken_histories, self.histories, "history");
        let questions = of(&self.broken_questions, self.questions, "question");
        let is = if self.broken_histories.count + self.broken_questions.count == 1 { "is" } else { "are" };
        format!("{} {is} broken", Vec::from_iter(histories.into_iter().chain(questions)).join(" and "))
    }
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
    pub counts: RowCounts,
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
