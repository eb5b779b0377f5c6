//! The STALE file: a JSON array of rows, read one row at a time, checked in full, and written back.
//!
//! Owns the row shape of the benchmark (STALE, section 3 and appendix D) and every check that keeps a wrong
//! file from becoming a wrong figure. Called by [`crate::benchmarks::dataset`]. Must not know how a
//! history is shown to a model, nor hold more than one row: the published file is 306 MB.
//!
//! Choices where the format leaves room:
//!
//! - Neighbouring sessions may carry equal timestamps (files with minute resolution do), but never decreasing ones, and the
//!   new session is strictly later than the old one.
//! - `query_time`, where present, is not before the last session. Equal is legal: the benchmark's construction lets the
//!   last session's time match the time of the query.
//! - A text of nothing but white space is empty.
//! - A value that JSON does not have ([`crate::ground::json`]) costs its row and no other.
//! - A session without a turn is skipped, as the authors' code does that shows sessions; the others keep their indices. The old and the
//!   new one must have turns.
//! - The rows may stand in an object under `data`; its other keys are passed over. `old_info` is another name of `M_old`.
//! - Rows without a `type`, as the construction writes them, are of the type that the user gives. Their `time_gap` is a label.

use std::collections::HashMap;
use std::io::BufRead;

use super::array::RowSplitter;
use super::row;
use crate::benchmarks::Cases;
use crate::benchmarks::reading::{ReadError, RowProblems, until_broken};
use crate::benchmarks::shape::{Checker, Node};
use crate::case::Case;
use crate::ground::json;

/// The rows of a whole STALE file as [`Case`]s, in file order, one in memory at a time; `split` is the type of rows that do not
/// say it.
///
/// After [`ReadError::Row`] the next call goes on with the next row; after any other error the iterator ends.
pub fn read_stale<'a>(text: impl BufRead + 'a, split: Option<&'static str>) -> Cases<'a> {
    let mut reader =
        StaleReader { rows: RowSplitter::new(text), text: Vec::new(), uids: HashMap::new(), split };
    until_broken(move || reader.read())
}

struct StaleReader<R> {
    rows: RowSplitter<R>,
    text: Vec<u8>,
    /// uid -> the row that had it first.
    uids: HashMap<String, usize>,
    split: Option<&'static str>,
}

impl<R: BufRead> StaleReader<R> {
    fn read(&mut self) -> Result<Option<Case>, ReadError> {
        let Some(start) = self.rows.next_row(&mut self.text)? else {
            return Ok(None);
        };
        let (node, faults) = json::read::<Node>(&self.text).map_err(|e| start.error(&e))?;
        let uid = node.text("uid").map(str::to_owned);
        let mut row = Checker::new(None, start.row, uid.as_deref());
        row.faults(faults);
        let checker = Checker::new(None, start.row, uid.as_deref());
        let outcome = row.beside(row::case_from_row(node, checker, self.split));
        let first = uid.as_ref().and_then(|uid| self.uids.get(uid));
        let Some(first) = first else {
            self.uids.extend(uid.map(|uid| (uid, start.row)));
            return Ok(Some(outcome?));
        };
        let mut again = Checker::new(None, start.row, uid.as_deref());
        again.problem("uid", format!("the uid of row {first} again"), "give every row its own uid");
        let mut broken = outcome.map_or_else(
            |broken| broken,
            |case| RowProblems { labels: case.labels, ..RowProblems::default() },
        );
        broken.problems.extend(again.problems);
        Err(ReadError::Row(broken))
    }
}
