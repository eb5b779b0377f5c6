//! Reads the rows of a memory system on one case, `memory/NAME/CASE/` (see [`super::rows`]). Writes nothing.

use std::collections::BTreeMap;
use std::path::Path;

use super::protocol::{FailureKind, Memory, Op};
use super::proxy::CALLS;
use super::record::{DUMP, EVENTS, FINISH, SEARCHES, case_folder};
use super::rows::{CallRow, EventRow, HistoryRow, SearchRow, SessionRow, StatedRow};
use palimpsest_data::ground::folder::is_file;
use palimpsest_data::ground::jsonl::{JsonlError, read_rows};

pub const STATED: &str = "stated.jsonl";

#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryRows {
    pub history: Vec<HistoryRow>,
    /// The store after the last session; absent if dumps are not supported.
    pub dump: Option<Vec<Memory>>,
    /// The last row of a probe counts.
    pub searches: Vec<SearchRow>,
    pub calls: Vec<CallRow>,
    /// Judgements of what memories say; absent if not judged.
    pub stated: Option<Vec<StatedRow>>,
}

impl MemoryRows {
    /// `None` if the run has no folder for the system and case.
    pub fn read(run: &Path, system: &str, case: &str) -> Result<Option<Self>, JsonlError> {
        let folder = case_folder(system, case);
        if !run.join(&folder).is_dir() {
            return Ok(None);
        }
        let name = |file: &str| format!("{folder}/{file}");
        let there = |file: &str| is_file(run, &name(file));
        let mut rows = MemoryRows {
            history: read_rows(run, &name(EVENTS))?,
            dump: there(DUMP).then(|| read_rows(run, &name(DUMP))).transpose()?,
            searches: read_rows(run, &name(SEARCHES))?,
            calls: read_rows(run, &name(CALLS))?,
            stated: there(STATED).then(|| read_rows(run, &name(STATED))).transpose()?,
        };
        if let Some(mut stated) = rows.stated.take() {
            let last = rows.last_texts();
            for row in stated.iter_mut().filter(|row| row.text.is_empty()) {
                row.text = last.get(row.memory.as_str()).copied().unwrap_or_default().to_owned();
            }
            rows.stated = Some(stated);
        }
        Ok(Some(rows))
    }

    pub fn sessions(&self) -> impl Iterator<Item = &SessionRow> {
        self.history.iter().filter_map(HistoryRow::session)
    }

    /// True if a session's changes are known; a failed session changed nothing. For older files without this field, a history with no
    /// events at all counts as unknown.
    pub fn tells(&self, session: &SessionRow) -> bool {
        let has_events = || self.history.iter().any(|row| row.event().is_some());
        self.dump.is_some() || session.failed.is_some() || session.told.unwrap_or_else(has_events)
    }

    /// True if all changes of the history are known, so that a missing row means no change.
    pub fn tells_all(&self) -> bool {
        let given_up =
            |row: &SessionRow| row.failed.as_ref().is_some_and(|failed| failed.kind == FailureKind::Fatal);
        let ended = self.sessions().last().is_some_and(|row| row.session == FINISH || given_up(row));
        self.dump.is_some() || (ended && self.sessions().all(|row| self.tells(row)))
    }

    /// Store changes in order, each with the memory's text after it. A missing text is recovered from the previous text of a later event,
    /// or from a dump or search.
    pub fn events(&self) -> Vec<(&EventRow, Option<&str>)> {
        let mut after: BTreeMap<&str, Option<&str>> =
            self.texts_of_memories().map(|(id, text)| (id, Some(text))).collect();
        let mut events = Vec::new();
        for row in self.history.iter().rev().filter_map(HistoryRow::event) {
            let (event, id) = (&row.event, row.event.memory.as_deref());
            let known = id.and_then(|id| *after.get(id)?);
            let text = match event.op {
                // No change: the event's text was not written.
                Op::None => known,
                _ => event.text.as_deref().or(known),
            };
            events.push((row, text));
            let before = match event.op {
                Op::Add | Op::Update | Op::Delete => event.previous.as_deref(),
                Op::Stale | Op::Unknown | Op::Weak => event.previous.as_deref().or(text),
                Op::None => known,
            };
            after.extend(id.map(|id| (id, before)));
        }
        events.reverse();
        events
    }

    pub fn memories(&self) -> impl Iterator<Item = &Memory> {
        let found =
            self.searches.iter().flat_map(|row| row.memories.iter().chain(row.readback.iter().flatten()));
        found.chain(self.dump.iter().flatten())
    }

    fn texts_of_memories(&self) -> impl Iterator<Item = (&str, &str)> {
        self.memories().map(|memory| (memory.id.as_str(), memory.text.as_str()))
    }

    fn last_texts(&self) -> BTreeMap<&str, &str> {
        let told =
            self.events().into_iter().filter_map(|(row, text)| Some((row.event.memory.as_deref()?, text?)));
        told.chain(self.texts_of_memories()).collect()
    }

    pub fn search(&self, probe: &str) -> Option<&SearchRow> {
        self.searches.iter().rev().find(|row| row.probe == probe)
    }
}
