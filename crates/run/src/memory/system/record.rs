//! The folder of a case and a memory system, `memory/NAME/CASE/`: rows and saved state.
//!
//! The events of a session are written together with its final row, so a kill leaves complete sessions only. A saved state is
//! `save-N` for N sessions; only the last is kept. Knows no system.

use std::path::{Path, PathBuf};

use super::protocol::{Failure, FailureKind, Memory, SessionInput, TurnInput};
use super::rows::{EventRow, HistoryRow, SearchRow, SessionRow};
use palimpsest_core::digest::sha256;
use palimpsest_data::case::{Segment, Turn};
use palimpsest_data::ground::file_stem::file_stem;
use palimpsest_data::ground::folder;
use palimpsest_data::ground::jsonl::{JsonlError, RowLog, read_rows, write_rows};

pub const FINISH: &str = "finish";

pub const EVENTS: &str = "events.jsonl";
pub(super) const DUMP: &str = "dump.jsonl";
pub(super) const SEARCHES: &str = "searches.jsonl";
const SAVE: &str = "save-";
const SAVING: &str = "saving";

/// Folder of a system's files within the run.
pub fn system_folder(system: &str) -> String {
    format!("memory/{}", file_stem(system))
}

/// Folder of a system's files on a case within the run.
pub fn case_folder(system: &str, case: &str) -> String {
    format!("{}/{}", system_folder(system), file_stem(case))
}

/// A session as the system gets it.
pub(super) fn session_of(segment: &Segment) -> SessionInput {
    let turns = segment.turns.iter().enumerate();
    let turn =
        |(id, turn): (usize, &Turn)| TurnInput { id, role: turn.role.clone(), content: turn.content.clone() };
    let time = segment.time.map(|time| time.to_string());
    SessionInput { id: segment.label(), time, turns: turns.map(turn).collect() }
}

/// Digest of a dump, independent of its order.
pub(super) fn digest(memories: &[Memory]) -> String {
    let lines = memories.iter().map(|memory| serde_json::to_string(memory).unwrap_or_default());
    let mut lines: Vec<String> = lines.collect();
    lines.sort_unstable();
    sha256(lines.join("\n"))
}

#[derive(Debug)]
pub struct CaseRecord {
    folder: PathBuf,
    events: RowLog<HistoryRow>,
    searches: RowLog<SearchRow>,
}

impl CaseRecord {
    /// Opens or creates the folder `name` of `run`. Drops incomplete rows.
    pub fn open(run: &Path, name: &str) -> Result<Self, JsonlError> {
        let folder = folder::make(run, name).map_err(JsonlError::io("create", &run.join(name)))?;
        let events = RowLog::open(&folder, EVENTS)?;
        let searches = RowLog::open(&folder, SEARCHES)?;
        Ok(CaseRecord { folder, events, searches })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn sessions(&self) -> impl Iterator<Item = &SessionRow> {
        self.events.rows.iter().filter_map(HistoryRow::session)
    }

    pub fn events(&self) -> impl Iterator<Item = &EventRow> {
        self.events.rows.iter().filter_map(HistoryRow::event)
    }

    pub fn is_complete(&self) -> bool {
        self.sessions().last().is_some_and(|row| row.session == FINISH)
    }

    /// Failed sessions by index, without the one that ended ingestion for good.
    pub fn failed(&self) -> impl Iterator<Item = (usize, Failure)> {
        let failed = self.sessions().enumerate().filter_map(|(at, row)| Some((at, row.failed.clone()?)));
        failed.filter(|(_, failure)| failure.kind != FailureKind::Fatal)
    }

    /// Truncates to the first `sessions` sessions and drops the dump.
    pub fn keep(&mut self, sessions: usize) -> Result<(), JsonlError> {
        let mut ended = 0;
        let kept = self.events.rows.iter().take_while(|row| {
            let within = ended < sessions;
            ended += usize::from(matches!(row, HistoryRow::Session(_)));
            within
        });
        let kept = kept.cloned().collect();
        self.events.rewrite(kept)?;
        if !self.is_complete() {
            let dump = self.folder.join(DUMP);
            gone(std::fs::remove_file(&dump), &dump)?;
        }
        Ok(())
    }

    /// Writes a session's events and its final row at once. `events` is `None` if changes are not reported.
    pub fn end_session(
        &mut self,
        session: &str,
        events: Option<Vec<EventRow>>,
        failed: Option<Failure>,
    ) -> Result<(), JsonlError> {
        let told = Some(events.is_some());
        let events = events.unwrap_or_default();
        let end = SessionRow { session: session.to_owned(), events: events.len(), told, failed };
        let mut rows: Vec<HistoryRow> = events.into_iter().map(HistoryRow::Event).collect();
        rows.push(HistoryRow::Session(end));
        self.events.append_all(rows)
    }

    pub fn write_dump(&self, memories: &[Memory]) -> Result<(), JsonlError> {
        write_rows(&self.folder, DUMP, memories)
    }

    pub fn dump(&self) -> Result<Option<Vec<Memory>>, JsonlError> {
        let there = folder::is_file(&self.folder, DUMP);
        there.then(|| read_rows(&self.folder, DUMP)).transpose()
    }

    pub fn search(&self, probe: &str) -> Option<&SearchRow> {
        self.searches.rows.iter().find(|row| row.probe == probe)
    }

    pub fn put_search(&mut self, row: SearchRow) -> Result<(), JsonlError> {
        let Some(at) = self.searches.rows.iter().position(|other| other.probe == row.probe) else {
            return self.searches.append(row);
        };
        let mut rows = self.searches.rows.clone();
        rows[at] = row;
        self.searches.rewrite(rows)
    }

    pub fn begin_save(&self) -> Result<PathBuf, JsonlError> {
        let saving = self.folder.join(SAVING);
        remove_folder(&saving)?;
        std::fs::create_dir(&saving).map_err(JsonlError::io("create", &saving))?;
        Ok(saving)
    }

    /// Makes the new save the state of the first `sessions` sessions.
    pub fn end_save(&self, sessions: usize) -> Result<(), JsonlError> {
        let (saving, saved) = (self.folder.join(SAVING), self.folder.join(format!("{SAVE}{sessions}")));
        remove_folder(&saved)?;
        std::fs::rename(&saving, &saved).map_err(JsonlError::io("rename", &saving))?;
        for (_, older) in saves(&self.folder).into_iter().filter(|(_, folder)| *folder != saved) {
            remove_folder(&older)?;
        }
        Ok(())
    }
}

/// The saved state in a case's folder and its number of sessions, at most `most`.
pub fn last_save(folder: &Path, most: usize) -> Option<(usize, PathBuf)> {
    saves(folder).into_iter().filter(|(sessions, _)| *sessions <= most).max()
}

fn saves(folder: &Path) -> Vec<(usize, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix(SAVE)?.parse().ok();
    entries.filter_map(|entry| Some((number(&entry.path())?, entry.path()))).collect()
}

pub(super) fn remove_folder(folder: &Path) -> Result<(), JsonlError> {
    gone(std::fs::remove_dir_all(folder), folder)
}

fn gone(removed: std::io::Result<()>, path: &Path) -> Result<(), JsonlError> {
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(JsonlError::io("remove", path)(e)),
        _ => Ok(()),
    }
}
