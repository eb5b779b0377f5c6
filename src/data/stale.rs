//! The STALE file: a JSON array of rows, read one row at a time, checked in full, and written back.
//!
//! Owns the row shape of the benchmark (STALE, section 3 and appendix D) and every check that keeps a wrong
//! file from becoming a wrong figure. Called by [`crate::data::dataset`] and by `palimpsest data`. Must not know how a
//! history is shown to a model, nor hold more than one row: the published file is 306 MB.
//!
//! What is decided here where the format leaves room:
//!
//! - Neighbouring sessions may carry equal timestamps (files with minute resolution do), but never decreasing ones, and the
//!   new session is strictly later than the old one.
//! - `query_time`, where present, is not before the last session. Equal is legal: the benchmark's construction lets the
//!   last session's time match the time of the query.
//! - A text of nothing but white space is empty.

mod array;
mod node;
mod row;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, BufRead};

use crate::data::Case;

use array::RowSplitter;
use node::Node;

pub use write::{WriteError, write_stale};

/// SHA-256 of the published `T1_T2_400_FULL.json`, in lower-case hexadecimal.
pub const PUBLISHED_SHA256: &str = "5f3ec375179e20e2e94469e018189188f34e2e7e5f21cbecbd99fcfa648c1876";

/// How many problems a [`Report`] keeps; the rest are counted.
pub const PROBLEMS_SHOWN: usize = 20;

/// One thing wrong with one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Zero-based index of the row in the file's array.
    pub row: usize,
    /// The row's uid, where it has a readable one.
    pub uid: Option<String>,
    /// Where in the row, for example `haystack_session[3][1].role`; `(row)` for the row itself.
    pub field: String,
    /// What was found there, shortened.
    pub found: String,
    /// What would put it right.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { row, uid, field, found, remedy } = self;
        match uid {
            Some(uid) => write!(f, "row {row} (uid {uid:?}), {field}: found {found}; {remedy}"),
            None => write!(f, "row {row} (no uid), {field}: found {found}; {remedy}"),
        }
    }
}

/// Everything wrong with one row; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowProblems(pub Vec<Problem>);

impl fmt::Display for RowProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for RowProblems {}

/// Why a row, or the rest of the file, could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StaleError {
    /// The row is sound JSON but not a sound row. Reading can go on behind it.
    #[error(transparent)]
    Row(#[from] RowProblems),
    /// The text is not a JSON array. Nothing behind this place can be trusted.
    #[error("row {row}, line {line}, column {column}: {what}")]
    Json {
        /// Zero-based index of the row that was being read.
        row: usize,
        /// One-based line.
        line: usize,
        /// One-based column, in bytes.
        column: usize,
        /// What is wrong there, with the remedy.
        what: String,
    },
    /// A sound array without a single row.
    #[error("the array holds no rows; a STALE file has at least one, so this is probably the wrong file")]
    NoRows,
    /// The bytes could not be read.
    #[error("reading failed in row {row}")]
    Read {
        /// Zero-based index of the row that was being read.
        row: usize,
        /// What the operating system said.
        source: io::Error,
    },
}

/// The rows of a STALE file as [`Case`]s, in file order, one in memory at a time.
///
/// After [`StaleError::Row`] the next call goes on with the next row; after any other error the iterator ends. Beyond
/// the current row it keeps the uids seen, to find doubles.
#[derive(Debug)]
pub struct StaleReader<R> {
    rows: RowSplitter<R>,
    /// The raw text of the current row; reused.
    text: Vec<u8>,
    /// uid -> the row that had it first.
    uids: HashMap<String, usize>,
    ended: bool,
}

impl<R: BufRead> StaleReader<R> {
    /// A reader over the text of a whole file.
    pub fn new(reader: R) -> Self {
        StaleReader { rows: RowSplitter::new(reader), text: Vec::new(), uids: HashMap::new(), ended: false }
    }

    /// Rows begun so far, sound or not.
    pub fn rows_read(&self) -> usize {
        self.rows.rows_read()
    }

    fn read(&mut self) -> Result<Option<Case>, StaleError> {
        let Some(start) = self.rows.next_row(&mut self.text)? else {
            return Ok(None);
        };
        let node: Node = serde_json::from_slice(&self.text).map_err(|e| start.error(&e))?;
        let (uid, outcome) = row::case_from_row(node, start.row);
        let (case, mut problems) = match outcome {
            Ok(case) => (Some(case), Vec::new()),
            Err(RowProblems(problems)) => (None, problems),
        };
        if let Some(uid) = uid {
            if let Some(first) = self.uids.get(&uid) {
                problems.push(Problem {
                    row: start.row,
                    field: "uid".to_owned(),
                    found: format!("the uid of row {first} again"),
                    remedy: "give every row its own uid".to_owned(),
                    uid: Some(uid),
                });
            } else {
                self.uids.insert(uid, start.row);
            }
        }
        match case {
            Some(case) if problems.is_empty() => Ok(Some(case)),
            _ => Err(StaleError::Row(RowProblems(problems))),
        }
    }
}

impl<R: BufRead> Iterator for StaleReader<R> {
    type Item = Result<Case, StaleError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.read().transpose();
        self.ended = !matches!(item, Some(Ok(_) | Err(StaleError::Row(_))));
        item
    }
}

/// What [`check`] found in a file.
#[derive(Debug)]
pub struct Report {
    /// Rows read, sound or not.
    pub rows: usize,
    /// Sound rows by `type`.
    pub splits: BTreeMap<String, usize>,
    /// How many problems there are in all the rows read.
    pub problem_count: usize,
    /// The first [`PROBLEMS_SHOWN`] of them, in file order.
    pub problems: Vec<Problem>,
    /// What ended the reading early, if anything did.
    pub broken: Option<StaleError>,
}

impl Report {
    /// Whether every row is sound and the file was read to its end.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0 && self.broken.is_none()
    }
}

/// Reads a whole file, one row at a time, and reports every problem in it.
pub fn check(reader: impl BufRead) -> Report {
    let mut reader = StaleReader::new(reader);
    let mut report =
        Report { rows: 0, splits: BTreeMap::new(), problem_count: 0, problems: Vec::new(), broken: None };
    for row in reader.by_ref() {
        match row {
            Ok(case) => {
                let split = case.labels.get("type").cloned().unwrap_or_default();
                *report.splits.entry(split).or_insert(0) += 1;
            }
            Err(StaleError::Row(RowProblems(problems))) => {
                report.problem_count += problems.len();
                let room = PROBLEMS_SHOWN.saturating_sub(report.problems.len());
                report.problems.extend(problems.into_iter().take(room));
            }
            Err(error) => report.broken = Some(error),
        }
    }
    report.rows = reader.rows_read();
    report
}
