//! Drives a memory system through a run's cases: ingests histories, searches memories, records everything.
//!
//! Each case's history is ingested once, session by session, for all probes and all k; each probe is searched once. After a kill, ingestion
//! resumes from the last saved state if the system supports saving, otherwise from an empty store. A failed session is recorded, and the
//! next one proceeds. Only `readback` tells the system which sessions hold evidence.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::driver::Driver;
use super::protocol::{
    Capability, Failure, FailureKind, Hello, Memory, MemorySystem, SessionInput, Source, SystemError,
    SystemResult, WriteEvent,
};
use super::proxy::Proxy;
use super::record::{CaseRecord, FINISH, case_folder, digest, last_save, remove_folder, session_of};
use super::rows::{CallRow, EventRow, Provenance, SearchRow};
use super::sources::Sources;
use palimpsest_data::case::{Case, Probe, Segment};
use palimpsest_data::ground::file_stem::file_stem;
use palimpsest_data::ground::jsonl::JsonlError;

/// Consecutive sessions lost (timeout, crash, nonsense) before the history is given up.
const LOST_IN_A_ROW: usize = 3;

/// Save when the last save took less than 1/SAVE_SHARE of the time since.
const SAVE_SHARE: u32 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    pub case: &'a str,
    pub done: usize,
    pub sessions: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    pub k: usize,
    pub readback: bool,
    pub answer: bool,
}

type OnProgress = Box<dyn FnMut(Progress<'_>) + Send>;

pub struct SystemRun {
    run: PathBuf,
    driver: Driver,
    given_up: BTreeMap<String, SystemError>,
    case: Option<OpenCase>,
    progress: Option<OnProgress>,
    stop: Arc<AtomicBool>,
    /// Serves the calls of the system, and is dropped after it.
    proxy: Option<Proxy>,
}

struct OpenCase {
    id: String,
    scope: String,
    sessions: Vec<SessionInput>,
    record: CaseRecord,
    sources: Sources,
    /// Store fingerprint, valid until the next operation.
    fingerprint: Option<String>,
}

impl OpenCase {
    fn name(&self, at: usize) -> String {
        self.sessions.get(at).map_or(FINISH, |session| &session.id).to_owned()
    }

    fn follow_events(&mut self, hello: &Hello) {
        self.sources = Sources::new(hello.provenance, &self.sessions);
        self.record.events().for_each(|row| self.sources.follow(row));
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error(transparent)]
    Files(#[from] JsonlError),
    #[error(
        "{folder} holds another history of this case: {there} where the case has {wanted}; give each its own --out, or remove the folder"
    )]
    Other { folder: PathBuf, there: String, wanted: String },
    #[error("stopped; the same command resumes")]
    Stopped,
    /// Recorded by [`SystemRun::searched`] and [`SystemRun::prepare`], which never return it.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl HistoryError {
    /// The failure of the system; other errors are returned.
    fn of_system(self) -> Result<Failure, Self> {
        match self {
            HistoryError::System(error) => Ok((&error).into()),
            error => Err(error),
        }
    }
}

struct Writing {
    /// Sessions not retried, by index.
    failed: BTreeMap<usize, Failure>,
    /// Sessions at which the system died.
    died: BTreeSet<usize>,
    saves: bool,
}

impl SystemRun {
    pub fn start(name: &str, system: Box<dyn MemorySystem>, run: &Path) -> SystemResult<Self> {
        Ok(SystemRun {
            run: run.to_owned(),
            driver: Driver::start(name, system)?,
            given_up: BTreeMap::new(),
            case: None,
            progress: None,
            stop: Arc::default(),
            proxy: None,
        })
    }

    /// Publishes the current operation to the proxy of its models, and keeps that.
    #[must_use]
    pub fn watched(mut self, proxy: Option<Proxy>) -> Self {
        self.driver.operation = proxy.as_ref().map(Proxy::operation).unwrap_or_default();
        SystemRun { proxy, ..self }
    }

    #[must_use]
    pub fn told(self, progress: impl FnMut(Progress<'_>) + Send + 'static) -> Self {
        SystemRun { progress: Some(Box::new(progress)), ..self }
    }

    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        SystemRun { stop, ..self }
    }

    pub fn name(&self) -> &str {
        &self.driver.name
    }

    /// The reply to `hello`, part of the run's identity.
    pub fn identity(&self) -> &Hello {
        &self.driver.hello
    }

    /// A probe's memories, from the run's files or by a search; ingests the history first if necessary. A system failure is recorded in
    /// [`SearchRow::failed`] and retried by the next call.
    pub fn searched(
        &mut self,
        case: &Case,
        probe: &Probe,
        wanted: Wanted,
    ) -> Result<SearchRow, HistoryError> {
        self.with_open(case, |run, open| {
            if let Some(kept) = open.record.search(&probe.id).filter(|row| holds(row, wanted)) {
                return Ok(kept.clone());
            }
            let row = match run.search(open, case, probe, wanted) {
                Ok(row) => row,
                Err(error) => SearchRow {
                    probe: probe.id.clone(),
                    query: probe.query.clone(),
                    k: wanted.k,
                    failed: Some(error.of_system()?),
                    ..SearchRow::default()
                },
            };
            open.record.put_search(row.clone())?;
            Ok(row)
        })
    }

    pub fn prepare(&mut self, case: &Case) -> Result<(), HistoryError> {
        self.with_open(case, |run, open| {
            if !open.record.is_complete()
                && let Err(error) = run.ready(open)
            {
                error.of_system()?;
            }
            Ok(())
        })
    }

    pub fn close(&mut self) {
        self.driver.close();
    }

    /// Keeps the case open until another one is used.
    fn with_open<T>(
        &mut self,
        case: &Case,
        work: impl FnOnce(&mut Self, &mut OpenCase) -> Result<T, HistoryError>,
    ) -> Result<T, HistoryError> {
        let mut open = match self.case.take().filter(|open| open.id == case.id) {
            Some(open) => open,
            None => {
                let record = CaseRecord::open(&self.run, &case_folder(&self.driver.name, &case.id))?;
                let sessions: Vec<SessionInput> = case.history.segments.iter().map(session_of).collect();
                check_same(&record, &sessions)?;
                let (id, scope, sources) = (case.id.clone(), file_stem(&case.id), Sources::default());
                let mut open = OpenCase { id, scope, sessions, record, sources, fingerprint: None };
                open.follow_events(&self.driver.hello);
                open
            }
        };
        let done = work(self, &mut open);
        self.case = Some(open);
        done
    }

    fn call<T>(
        &mut self,
        open: &OpenCase,
        phase: &'static str,
        about: &str,
        mut operation: impl FnMut(&mut dyn MemorySystem, &str) -> SystemResult<T>,
    ) -> SystemResult<T> {
        self.driver.call(open.record.folder(), phase, about, |system| operation(system, &open.scope))
    }

    /// Ensures that the running system holds the case's complete history.
    fn ready(&mut self, open: &mut OpenCase) -> Result<(), HistoryError> {
        if self.driver.holds(&open.scope) {
            return Ok(());
        }
        if let Some(error) = self.given_up.get(&open.scope) {
            return Err(error.clone().into());
        }
        let failed = open.record.failed().collect();
        let saves = self.driver.hello.can(Capability::Save);
        let mut writing = Writing { failed, died: BTreeSet::new(), saves };
        loop {
            self.driver.revive()?;
            self.driver.make_room();
            match self.attempt(open, &mut writing) {
                Ok(false) => {}
                Ok(true) => {
                    self.driver.live.push(open.scope.clone());
                    return Ok(());
                }
                Err(HistoryError::System(error)) => {
                    self.given_up.insert(open.scope.clone(), error.clone());
                    return Err(error.into());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ingests from the last known state. False if the system was lost; the failure is then noted.
    fn attempt(&mut self, open: &mut OpenCase, writing: &mut Writing) -> Result<bool, HistoryError> {
        let Some(mut at) = self.restore(open, writing)? else { return Ok(false) };
        open.record.keep(at)?;
        open.fingerprint = None;
        open.follow_events(&self.driver.hello);
        let mut saved = (Instant::now(), Duration::ZERO);
        while at <= open.sessions.len() {
            self.tell(open, at);
            if self.stop.load(Ordering::Relaxed) {
                return Err(HistoryError::Stopped);
            }
            let (rows, failed) = match writing.failed.get(&at) {
                Some(failure) => (None, Some(failure.clone())),
                None => match self.write(open, at) {
                    Ok(rows) => (rows, None),
                    Err(HistoryError::System(error)) => match self.note_failure(open, writing, at, error)? {
                        Some(failure) => (None, Some(failure)),
                        None => return Ok(false),
                    },
                    Err(error) => return Err(error),
                },
            };
            open.record.end_session(&open.name(at), rows, failed)?;
            at += 1;
            let last = at > open.sessions.len();
            if writing.saves && (last || saved.0.elapsed() >= saved.1 * SAVE_SHARE) {
                let begun = Instant::now();
                writing.saves = self.save(open, at)?;
                if !self.driver.running {
                    return Ok(false);
                }
                saved = (Instant::now(), begun.elapsed());
            }
        }
        self.tell(open, at);
        let failed: BTreeSet<String> = open.record.failed().map(|(at, _)| open.name(at)).collect();
        let writes =
            |row: &CallRow| matches!(row.phase.as_str(), "ingest" | FINISH) && !failed.contains(&row.about);
        if let Some(error) = self.all_calls_failed(open, FINISH, writes)? {
            // A later process writes the history anew.
            open.record.keep(0)?;
            return Err(error.into());
        }
        Ok(true)
    }

    /// The error of an operation whose model calls all failed, although the system reports none.
    fn all_calls_failed(
        &self,
        open: &OpenCase,
        op: &'static str,
        counts: impl Fn(&CallRow) -> bool,
    ) -> Result<Option<SystemError>, HistoryError> {
        let Some(proxy) = &self.proxy else { return Ok(None) };
        let why = proxy.all_failed(open.record.folder(), counts)?;
        Ok(why.map(|why| self.driver.error(op, FailureKind::Fatal, why)))
    }

    fn tell(&mut self, open: &OpenCase, at: usize) {
        let sessions = open.sessions.len();
        if let Some(progress) = &mut self.progress {
            progress(Progress { case: &open.id, done: at.min(sessions), sessions });
        }
    }

    /// Restores the last saved state, or resets. Returns the number of sessions in the store; `None` if the system was lost.
    fn restore(&mut self, open: &OpenCase, writing: &mut Writing) -> Result<Option<usize>, HistoryError> {
        let save = last_save(open.record.folder(), open.record.sessions().count());
        if let Some((sessions, folder)) = save.filter(|_| self.driver.hello.can(Capability::Save)) {
            let about = open.name(sessions.saturating_sub(1));
            match self.call(open, "load", &about, |system, scope| system.load(scope, &folder)) {
                Ok(()) => return Ok(Some(sessions)),
                Err(error) => {
                    tracing::warn!("{error}; the sessions are written again instead");
                    remove_folder(&folder)?;
                    if !self.driver.running {
                        return Ok(None);
                    }
                }
            }
        }
        match self.call(open, "reset", &open.name(0), |system, scope| system.reset(scope)) {
            Ok(()) => Ok(Some(0)),
            // A crash between sessions is charged to neither.
            Err(error) if error.kind == FailureKind::Dead && writing.died.insert(usize::MAX) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Ingests session `at`, or finishes, and completes the events. `None` if neither the system nor a dump reports changes.
    fn write(&mut self, open: &mut OpenCase, at: usize) -> Result<Option<Vec<EventRow>>, HistoryError> {
        let name = open.name(at);
        let session = open.sessions.get(at);
        let op = session.map_or(FINISH, |_| "ingest");
        let told = self.call(open, op, &name, |system, scope| match session {
            Some(session) => system.ingest(scope, session),
            None => system.finish(scope),
        })?;
        let dumps = self.driver.hello.can(Capability::Dump) && (told.is_none() || session.is_none());
        let dump = dumps.then(|| self.call(open, "dump", &name, |system, scope| system.dump(scope)));
        let dump = dump.transpose()?;
        let sources = told.iter().flatten().map(|event| &event.sources);
        self.check(open, op, sources.chain(dump.iter().flatten().map(|memory| &memory.sources)))?;
        let (events, way) = match (told, &dump) {
            (Some(events), _) => (events, Provenance::Events),
            (None, Some(dump)) => (open.sources.difference(dump), Provenance::Dump),
            (None, None) => return Ok(None),
        };
        let complete = |event: WriteEvent| open.sources.event(&name, event, way);
        let rows = events.into_iter().map(complete).collect();
        if name == FINISH
            && let Some(mut memories) = dump
        {
            open.sources.complete(&mut memories);
            open.record.write_dump(&memories)?;
        }
        Ok(Some(rows))
    }

    /// Rejects sources with unknown session ids.
    fn check<'a>(
        &self,
        open: &OpenCase,
        op: &'static str,
        sources: impl IntoIterator<Item = &'a Option<Vec<Source>>>,
    ) -> SystemResult<()> {
        let Some(session) = open.sources.stranger(sources) else { return Ok(()) };
        let message = format!(
            "it names the source `{session}`, which is no session of this history; sources repeat the ids that `ingest` sends"
        );
        Err(self.driver.error(op, FailureKind::Nonsense, message))
    }

    /// The failure to record for session `at`; `None` if ingestion must restart.
    fn note_failure(
        &mut self,
        open: &mut OpenCase,
        writing: &mut Writing,
        at: usize,
        error: SystemError,
    ) -> Result<Option<Failure>, HistoryError> {
        if error.kind == FailureKind::Dead && writing.died.insert(at) {
            tracing::warn!("{}: {error}; started again", open.name(at));
            return Ok(None);
        }
        let failure = Failure::from(&error);
        let is_lost = |at: &usize| writing.failed.get(at).is_some_and(|failure| failure.kind.is_lost());
        let in_a_row = (0..at).rev().take_while(is_lost).count() + 1;
        let given_up = match error.kind {
            FailureKind::Fatal => Some(error),
            kind if kind.is_lost() && in_a_row >= LOST_IN_A_ROW => Some(SystemError {
                kind: FailureKind::Fatal,
                message: format!(
                    "{LOST_IN_A_ROW} sessions in a row could not be written, so that the history is given up; the last: {}",
                    error.message
                ),
                ..error
            }),
            _ => None,
        };
        if let Some(error) = given_up {
            // The failure is on disk; a later process resumes from the sessions before.
            open.record.end_session(&open.name(at), None, Some((&error).into()))?;
            return Err(error.into());
        }
        writing.failed.insert(at, failure.clone());
        Ok(self.driver.running.then_some(failure))
    }

    fn save(&mut self, open: &OpenCase, sessions: usize) -> Result<bool, HistoryError> {
        let folder = open.record.begin_save()?;
        let about = open.name(sessions - 1);
        let saved = self.call(open, "save", &about, |system, scope| system.save(scope, &folder));
        match &saved {
            Ok(()) => open.record.end_save(sessions)?,
            Err(error) => tracing::warn!("{error}; nothing more is saved of this history"),
        }
        Ok(saved.is_ok())
    }

    /// Runs an operation on the frozen store; ingests the history first if the system does not hold it. Retried once after a crash.
    fn ask<T>(
        &mut self,
        open: &mut OpenCase,
        phase: &'static str,
        about: &str,
        mut operation: impl FnMut(&mut dyn MemorySystem, &str) -> SystemResult<T>,
    ) -> Result<T, HistoryError> {
        self.ready(open)?;
        match self.call(open, phase, about, &mut operation) {
            Err(error) if error.kind == FailureKind::Dead => {
                tracing::warn!("{about}: {error}; started again");
                self.ready(open)?;
                Ok(self.call(open, phase, about, &mut operation)?)
            }
            done => Ok(done?),
        }
    }

    fn search(
        &mut self,
        open: &mut OpenCase,
        case: &Case,
        probe: &Probe,
        wanted: Wanted,
    ) -> Result<SearchRow, HistoryError> {
        let (about, query, k) = (probe.id.as_str(), probe.query.as_str(), wanted.k);
        let as_of = case.history.query_time.map(|time| time.to_string());
        let as_of = as_of.as_deref();
        let before = self.fingerprint(open, about)?;
        // Search with the largest k; smaller ones truncate it.
        let found = self.ask(open, "search", about, |system, scope| system.search(scope, query, k, as_of))?;
        let mut memories = found.memories;
        if memories.len() > k {
            let (name, many) = (&self.driver.name, memories.len());
            tracing::warn!(
                "memory system {name}: search: {many} memories where {k} were asked for; the first {k} are taken"
            );
            memories.truncate(k);
        }
        self.check(open, "search", memories.iter().map(|memory| &memory.sources))?;
        let provenance = open.sources.complete(&mut memories);
        // Ask for the system's own answer before it learns the evidence.
        let answer = |system: &mut dyn MemorySystem, scope: &str| system.answer(scope, query, as_of);
        let answer = wanted.answer.then(|| self.ask(open, "answer", about, answer));
        let (answer, answer_failed) = parted(answer)?;
        let readback = wanted.readback.then(|| self.readback(open, case, probe));
        let (readback, readback_failed) = parted(readback)?;
        if let Some(error) = self.all_calls_failed(open, "search", |row| row.about == about)? {
            return Err(error.into());
        }
        // Detect writes during reading.
        let after = self.fingerprint(open, about)?;
        open.fingerprint.clone_from(&after);
        Ok(SearchRow {
            probe: probe.id.clone(),
            query: probe.query.clone(),
            k,
            memories,
            parts: found.parts,
            readback,
            readback_failed,
            answer: answer.map(|answer| answer.text),
            answer_failed,
            provenance,
            failed: None,
            changed: before.zip(after).map(|(before, after)| before != after),
        })
    }

    /// Fingerprint of the frozen store, or a digest of its dump.
    fn fingerprint(&mut self, open: &mut OpenCase, about: &str) -> Result<Option<String>, HistoryError> {
        self.ready(open)?;
        if let Some(known) = open.fingerprint.take() {
            return Ok(Some(known));
        }
        const OP: &str = "fingerprint";
        let taken = if self.driver.hello.can(Capability::Fingerprint) {
            self.call(open, OP, about, |system, scope| system.fingerprint(scope))
        } else if self.driver.hello.can(Capability::Dump) {
            let dump = self.call(open, OP, about, |system, scope| system.dump(scope));
            dump.map(|memories| digest(&memories))
        } else {
            return Ok(None);
        };
        Ok(taken.inspect_err(|error| tracing::warn!("{about}: {error}")).ok())
    }

    /// All memories written from a probe's evidence: by `readback`, otherwise from the dump.
    fn readback(
        &mut self,
        open: &mut OpenCase,
        case: &Case,
        probe: &Probe,
    ) -> Result<Vec<Memory>, HistoryError> {
        const OP: &str = "readback";
        let segments = case.history.segments.iter();
        let held = segments.filter(|one| case.evidence_of(probe).any(|e| e.place.segment == one.index));
        let sessions: Vec<String> = held.map(Segment::label).collect();
        let is_evidence = |source: &Source| sessions.contains(&source.session);
        let why = if sessions.is_empty() {
            "the data names no evidence of this question, so nothing can be read back"
        } else if self.driver.hello.can(Capability::Readback) {
            let mut memories =
                self.ask(open, OP, &probe.id, |system, scope| system.readback(scope, &sessions))?;
            self.check(open, OP, memories.iter().map(|memory| &memory.sources))?;
            open.sources.complete(&mut memories);
            return Ok(memories);
        } else if let Some(mut memories) = open.record.dump()? {
            if memories.is_empty() || memories.iter().any(|memory| memory.sources.is_some()) {
                memories.retain(|memory| memory.sources.iter().flatten().any(is_evidence));
                return Ok(memories);
            }
            "the sources of its memories are unknown, so a session's memories are unknown"
        } else {
            "it offers neither `readback` nor `dump`, so a session's memories are unknown"
        };
        Err(self.driver.error(OP, FailureKind::Unsupported, why.to_owned()).into())
    }
}

fn check_same(record: &CaseRecord, sessions: &[SessionInput]) -> Result<(), HistoryError> {
    let wanted = sessions.iter().map(|session| session.id.as_str()).chain([FINISH]);
    let mut pairs = record.sessions().map(|row| row.session.as_str()).zip(wanted);
    match pairs.find(|(there, wanted)| there != wanted) {
        None => Ok(()),
        Some((there, wanted)) => Err(HistoryError::Other {
            folder: record.folder().to_owned(),
            there: there.to_owned(),
            wanted: wanted.to_owned(),
        }),
    }
}

/// True if a recorded row covers the request. Unsupported parts are not requested again.
fn holds(row: &SearchRow, wanted: Wanted) -> bool {
    let lasting = |failure: &Option<Failure>| {
        failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Unsupported)
    };
    let readback = !wanted.readback || row.readback.is_some() || lasting(&row.readback_failed);
    let answer = !wanted.answer || row.answer.is_some() || lasting(&row.answer_failed);
    row.failed.is_none() && row.k >= wanted.k && readback && answer
}

fn parted<T>(part: Option<Result<T, HistoryError>>) -> Result<(Option<T>, Option<Failure>), HistoryError> {
    Ok(match part {
        None => (None, None),
        Some(Ok(part)) => (Some(part), None),
        Some(Err(error)) => (None, Some(error.of_system()?)),
    })
}
