//! Reads the rows that a run keeps of a memory system on one case: `memory/NAME/CASE/`.
//!
//! The rows are those of [`super::rows`]. Writes nothing.

use std::path::Path;

use super::protocol::Memory;
use super::record::case_folder;
use super::rows::{CallRow, HistoryRow, SearchRow, StatedRow};
use crate::ground::jsonl::{JsonlError, read_rows};

const EVENTS: &str = "events.jsonl";
const DUMP: &str = "dump.jsonl";
const SEARCHES: &str = "searches.jsonl";
const CALLS: &str = "calls.jsonl";
/// The file of [`StatedRow`]s in a case's folder.
pub const STATED: &str = "stated.jsonl";

/// The rows of a memory system on one case.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryRows {
    /// Changes of the store and ends of sessions, in order.
    pub history: Vec<HistoryRow>,
    /// The store after the last session; absent where the system gives none.
    pub dump: Option<Vec<Memory>>,
    /// Searches; of one probe the last counts.
    pub searches: Vec<SearchRow>,
    /// Calls of language models and embedders.
    pub calls: Vec<CallRow>,
    /// Judgements of memories by what they say; absent where nobody judged.
    pub stated: Option<Vec<StatedRow>>,
}

impl MemoryRows {
    /// Rows of a system on a case; `None` where the run has no folder of them.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or holds a broken row.
    pub fn read(run: &Path, system: &str, case: &str) -> Result<Option<Self>, JsonlError> {
        let folder = case_folder(run, system, case);
        if !folder.is_dir() {
            return Ok(None);
        }
        let path = |name: &str| folder.join(name);
        let there = |name: &str| path(name).is_file();
        Ok(Some(MemoryRows {
            history: read_rows(&path(EVENTS))?,
            dump: there(DUMP).then(|| read_rows(&path(DUMP))).transpose()?,
            searches: read_rows(&path(SEARCHES))?,
            calls: read_rows(&path(CALLS))?,
            stated: there(STATED).then(|| read_rows(&path(STATED))).transpose()?,
        }))
    }

    /// The search for a probe.
    pub fn search(&self, probe: &str) -> Option<&SearchRow> {
        self.searches.iter().rev().find(|row| row.probe == probe)
    }
}
