//! Streams rows of the STALE file, a JSON array of 306 MB, and validates them (STALE, section 3, appendix D). Choices:
//!
//! - Session times may repeat (minute resolution) but not decrease; new is strictly after old. `query_time` may equal the last session's.
//! - Blank texts count as empty. Invalid JSON values ([`crate::ground::json`]) cost only their row.
//! - Sessions without turns are skipped, as in the authors' code; indices are kept. Old and new must have turns.
//! - Rows may be under `data`; other keys are ignored. `old_info` is an alias of `M_old`.
//! - Rows without `type` (construction files) get the user's. Their `time_gap` is a label.

use std::io::BufRead;

use super::TITLE;
use super::row::case_from_row;
use crate::benchmarks::Cases;
use crate::benchmarks::arrays::RowSplitter;
use crate::benchmarks::reading::{ReadError, until_broken};
use crate::benchmarks::shape::{Checker, Node, Places};
use crate::ground::json;

/// Streams cases in file order; `split` is the type of rows without one. Continues after row problems, ends after any other error.
pub fn read_stale<'a>(text: impl BufRead + 'a, split: Option<&'static str>) -> Cases<'a> {
    let (mut rows, mut text, mut uids) = (RowSplitter::new(text, None, TITLE), Vec::new(), Places::new());
    let mut any = false;
    until_broken(move || {
        let Some(start) = rows.next_row(&mut text)? else {
            return if any { Ok(None) } else { Err(ReadError::NoCases { benchmark: TITLE }) };
        };
        any = true;
        let (node, faults) = json::read::<Node>(&text).map_err(|error| start.error(&error))?;
        let uid = node.text("uid");
        let mut row = Checker::new(None, start.row, uid);
        row.faults(faults);
        row.unique("uid", uid, "give every row its own uid", &mut uids);
        Ok(Some(case_from_row(node, row, split)?))
    })
}
