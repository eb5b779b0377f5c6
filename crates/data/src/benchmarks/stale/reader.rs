//! Streams rows of the STALE file, a JSON array of 306 MB, and validates them (STALE, section 3, appendix D). Choices:
//!
//! - Session times may repeat (minute resolution) but not decrease; new is strictly after old. `query_time` may equal the last session's.
//! - Blank texts count as empty. Invalid JSON values ([`crate::ground::json`]) cost only their row.
//! - Sessions without turns are skipped, as in the authors' code; indices are kept. Old and new must have turns.
//! - Rows may be under `data`; other keys are ignored. `old_info` is an alias of `M_old`.
//! - Rows without `type` (construction files) get the user's. Their `time_gap` is a label.

use std::collections::HashMap;
use std::io::BufRead;

use super::array::RowSplitter;
use super::row;
use crate::benchmarks::Cases;
use crate::benchmarks::reading::{ReadError, RowProblems, until_broken};
use crate::benchmarks::shape::{Checker, Node};
use crate::case::Case;
use crate::ground::json;

/// Streams cases in file order; `split` is the type of rows without one. Continues after [`ReadError::Row`], ends after any other error.
pub fn read_stale<'a>(text: impl BufRead + 'a, split: Option<&'static str>) -> Cases<'a> {
    let mut reader =
        StaleReader { rows: RowSplitter::new(text), text: Vec::new(), uids: HashMap::new(), split };
    until_broken(move || reader.read())
}

struct StaleReader<R> {
    rows: RowSplitter<R>,
    text: Vec<u8>,
    /// uid -> first row
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
