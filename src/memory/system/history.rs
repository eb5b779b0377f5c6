//! Drives a memory system through a run's cases: histories in, memories out, everything kept.
//!
//! A case's history is written once, session by session, whatever the number of its probes and of memories asked for; each probe is
//! searched for once. Owns retries, restarts, and the return to where a killed process was: the last saved state where the system saves,
//! else an empty store and the sessions again. A session that fails is a row, and the next one goes on. Evidence is named to the system in
//! `readback` alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use super::operation::{InFlight, Operation, Progress, Retries, Wanted};
use super::protocol::{
    Capability, FailureKind, Hello, Memory, MemorySystem, SessionInput, Source, SystemError, WriteEvent,
};
use super::record::{CaseRecord, FINISH, case_folder};
use super::rows::{EventRow, Failure, Provenance, SearchRow};
use super::sent::{digest, evidence_sessions, sessions_of};
use super::sources::Sources;
use crate::data::{Case, Probe};
use crate::ground::file_stem::file_stem;
use crate::ground::jsonl::JsonlError;

/// Sessions in a row that a system may hang at, die at or answer with nonsense before the history is given up.
const LOST_IN_A_ROW: usize = 3;

/// A state is saved once its last saving was less than one part in this many of the time since.
const SAVE_SHARE: u32 = 100;

/// Hears how far a history is.
type Told = dyn FnMut(Progress<'_>) + Send;

/// A memory system in a run.
pub struct SystemRun {
    name: String,
    run: PathBuf,
    system: Box<dyn MemorySystem>,
    hello: Hello,
    retries: Retries,
    running: bool,
    /// Why it could not be started again: not tried once more in this process.
    broken: Option<SystemError>,
    /// Scopes whose whole history the running system holds, the oldest first.
    live: Vec<String>,
    /// Histories that could not be written, by scope.
    given_up: BTreeMap<String, SystemError>,
    case: Option<OpenCase>,
    operation: Operation,
    /// [`InFlight::serial`] of the last operation.
    serial: u64,
    progress: Option<Box<Told>>,
    stop: Arc<AtomicBool>,
}

struct OpenCase {
    id: String,
    scope: String,
    record: CaseRecord,
    sources: Sources,
    /// Of the frozen store, as long as nothing was asked since.
    fingerprint: Option<String>,
}

/// A history that is not written for a reason that is not the system's.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error(transparent)]
    Files(#[from] JsonlError),
    /// The folder was written for a case of the same id with another history.
    #[error(
        "{folder} holds another history of this case: {there} where the case has {wanted}; give each its own --out, or remove the folder"
    )]
    Other { folder: PathBuf, there: String, wanted: String },
    /// A stop was asked for; all sessions up to here are on the disk.
    #[error("stopped; the same command goes on from here")]
    Stopped,
}

/// The reason why an operation on a case ended.
enum Halt {
    /// The run, not the system.
    Run(HistoryError),
    System(SystemError),
}

impl From<JsonlError> for Halt {
    fn from(error: JsonlError) -> Self {
        Halt::Run(error.into())
    }
}

impl From<HistoryError> for Halt {
    fn from(error: HistoryError) -> Self {
        Halt::Run(error)
    }
}

impl From<SystemError> for Halt {
    fn from(error: SystemError) -> Self {
        Halt::System(error)
    }
}

/// The end of an attempt to write a history.
#[derive(PartialEq, Eq)]
enum Attempt {
    Done,
    /// The system was lost on the way, and what it was at is noted.
    Again,
}

/// The state of writing one history.
struct Writing<'a> {
    case: &'a str,
    sessions: Vec<SessionInput>,
    /// Sessions that are not tried again, by their number; the end of the writing is one after the last.
    failed: BTreeMap<usize, Failure>,
    deaths: BTreeMap<usize, usize>,
    saves: bool,
}

impl Writing<'_> {
    fn name(&self, at: usize) -> &str {
        self.sessions.get(at).map_or(FINISH, |session| &session.id)
    }

    /// Notes a death. Is it the first one there?
    fn first_death(&mut self, at: usize) -> bool {
        let deaths = self.deaths.entry(at).or_default();
        *deaths += 1;
        *deaths == 1
    }
}

impl SystemRun {
    /// Starts a system, called `name` in the run folder `run`.
    pub fn start(name: &str, mut system: Box<dyn MemorySystem>, run: &Path) -> Result<Self, SystemError> {
        let hello = system.hello()?;
        Ok(SystemRun {
            name: name.to_owned(),
            run: run.to_owned(),
            system,
            hello,
            retries: Retries::default(),
            running: true,
            broken: None,
            live: Vec::new(),
            given_up: BTreeMap::new(),
            case: None,
            operation: Operation::default(),
            serial: 0,
            progress: None,
            stop: Arc::default(),
        })
    }

    /// With other retries.
    #[must_use]
    pub fn with_retries(self, retries: Retries) -> Self {
        SystemRun { retries, ..self }
    }

    /// With somebody who watches the operation under way.
    #[must_use]
    pub fn watched(self, operation: Operation) -> Self {
        SystemRun { operation, ..self }
    }

    /// With somebody who is told how far a history is.
    #[must_use]
    pub fn told(self, progress: impl FnMut(Progress<'_>) + Send + 'static) -> Self {
        SystemRun { progress: Some(Box::new(progress)), ..self }
    }

    /// With a flag that ends the writing after the session under way.
    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        SystemRun { stop, ..self }
    }

    /// Its name in the run.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its answer to `hello`, part of a run's identity.
    pub fn identity(&self) -> &Hello {
        &self.hello
    }

    /// A probe's memories: from the run's files where they are there, else by a search, before which the history is written where it is
    /// not. A system that fails is a row, [`SearchRow::failed`], which the next call tries again.
    pub fn searched(
        &mut self,
        case: &Case,
        probe: &Probe,
        wanted: Wanted,
    ) -> Result<SearchRow, HistoryError> {
        let kept = self.open(case)?.record.search(&probe.id).filter(|row| holds(row, wanted));
        if let Some(row) = kept {
            return Ok(row.clone());
        }
        let row = match self.search(case, probe, wanted) {
            Ok(row) => row,
            Err(Halt::Run(error)) => return Err(error),
            Err(Halt::System(error)) => failed_row(probe, wanted, &error),
        };
        self.open(case)?.record.put_search(row.clone())?;
        Ok(row)
    }

    /// Writes a case's history, where it is not written.
    pub fn prepare(&mut self, case: &Case) -> Result<(), HistoryError> {
        if self.open(case)?.record.is_complete() {
            return Ok(());
        }
        match self.ready(case) {
            Err(Halt::Run(error)) => Err(error),
            Ok(()) | Err(Halt::System(_)) => Ok(()),
        }
    }

    /// Ends the system.
    pub fn close(&mut self) {
        self.running = false;
        self.live.clear();
        self.system.close();
    }

    fn open(&mut self, case: &Case) -> Result<&mut OpenCase, HistoryError> {
        let open = match self.case.take().filter(|open| open.id == case.id) {
            Some(open) => open,
            None => {
                let record = CaseRecord::open(case_folder(&self.run, &self.name, &case.id))?;
                let sessions = sessions_of(case);
                check_same(&record, &sessions)?;
                let mut sources = Sources::new(self.hello.provenance, &sessions);
                record.events().for_each(|row| sources.follow(row));
                let scope = file_stem(&case.id);
                OpenCase { id: case.id.clone(), scope, record, sources, fingerprint: None }
            }
        };
        Ok(self.case.insert(open))
    }

    /// Calls the system, again where an error may pass, and notes whether it is lost.
    fn call<T>(
        &mut self,
        case: &Case,
        phase: &'static str,
        about: &str,
        mut operation: impl FnMut(&mut dyn MemorySystem, &str) -> Result<T, SystemError>,
    ) -> Result<T, Halt> {
        let open = self.open(case)?;
        let (folder, scope) = (open.record.folder().to_owned(), open.scope.clone());
        let mut delay = self.retries.delay;
        let mut attempt = 0;
        loop {
            self.serial += 1;
            self.under_way(Some(InFlight {
                folder: folder.clone(),
                phase,
                about: about.to_owned(),
                attempt,
                serial: self.serial,
            }));
            let done = operation(self.system.as_mut(), &scope);
            self.under_way(None);
            match done {
                Err(error) if error.kind == FailureKind::Transient && attempt < self.retries.most => {
                    tracing::warn!("{about}: {error}; tried again in {:.1} s", delay.as_secs_f64());
                    thread::sleep(delay);
                    attempt += 1;
                    delay *= 2;
                }
                Err(error) => {
                    if error.kind.is_lost() {
                        self.running = false;
                        self.live.clear();
                    }
                    return Err(Halt::System(error));
                }
                Ok(done) => return Ok(done),
            }
        }
    }

    fn under_way(&self, operation: Option<InFlight>) {
        *self.operation.lock().unwrap_or_else(PoisonError::into_inner) = operation;
    }

    /// Starts a lost system again.
    fn revive(&mut self) -> Result<(), SystemError> {
        if self.running {
            return Ok(());
        }
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let started = self.system.hello().and_then(|hello| match hello == self.hello {
            true => Ok(()),
            false => Err(SystemError {
                system: self.name.clone(),
                op: "hello",
                kind: FailureKind::Fatal,
                message: "started again, it says other than at first of itself (versions, packages, capabilities); a run needs one and the \
                          same system"
                    .to_owned(),
            }),
        });
        self.running = started.is_ok();
        self.broken = started.clone().err();
        started
    }

    /// Sees to it that the running system holds the case's whole history.
    fn ready(&mut self, case: &Case) -> Result<(), Halt> {
        let scope = self.open(case)?.scope.clone();
        if self.running && self.live.contains(&scope) {
            return Ok(());
        }
        if let Some(error) = self.given_up.get(&scope) {
            return Err(error.clone().into());
        }
        let mut writing = Writing {
            case: &case.id,
            sessions: sessions_of(case),
            failed: self.open(case)?.record.failed().collect(),
            deaths: BTreeMap::new(),
            saves: self.hello.can(Capability::Save),
        };
        loop {
            self.revive()?;
            self.make_room();
            match self.attempt(case, &mut writing) {
                Ok(Attempt::Again) => {}
                Ok(Attempt::Done) => {
                    self.live.push(scope);
                    return Ok(());
                }
                Err(Halt::System(error)) => {
                    self.given_up.insert(scope, error.clone());
                    return Err(error.into());
                }
                Err(files) => return Err(files),
            }
        }
    }

    /// Empties the oldest scopes, so that another one fits.
    fn make_room(&mut self) {
        while self.running && self.live.len() >= self.hello.scopes.max(1) {
            let oldest = self.live.remove(0);
            if let Err(error) = self.system.reset(&oldest) {
                tracing::warn!("{error}");
                self.running = !error.kind.is_lost();
            }
        }
    }

    /// Goes back to the last state that is known, and writes from there.
    fn attempt(&mut self, case: &Case, writing: &mut Writing<'_>) -> Result<Attempt, Halt> {
        let Some(mut at) = self.restore(case, writing)? else { return Ok(Attempt::Again) };
        let claim = self.hello.provenance;
        let open = self.open(case)?;
        open.record.keep(at)?;
        open.fingerprint = None;
        open.sources = Sources::new(claim, &writing.sessions);
        open.record.events().for_each(|row| open.sources.follow(row));
        let mut saved = (Instant::now(), Duration::ZERO);
        while at <= writing.sessions.len() {
            self.tell(writing, at);
            if self.stop.load(Ordering::Relaxed) {
                return Err(HistoryError::Stopped.into());
            }
            let (rows, failed) = match writing.failed.get(&at) {
                Some(failure) => (None, Some(failure.clone())),
                None => match self.write(case, writing, at) {
                    Ok(rows) => (rows, None),
                    Err(Halt::Run(error)) => return Err(Halt::Run(error)),
                    Err(Halt::System(error)) => match self.note_failure(case, writing, at, error)? {
                        Some(failure) => (None, Some(failure)),
                        None => return Ok(Attempt::Again),
                    },
                },
            };
            let open = self.open(case)?;
            open.record.end_session(writing.name(at), rows, failed)?;
            at += 1;
            let last = at > writing.sessions.len();
            if writing.saves && (last || saved.0.elapsed() >= saved.1 * SAVE_SHARE) {
                let begun = Instant::now();
                writing.saves = self.save(case, writing, at)?;
                if !self.running {
                    return Ok(Attempt::Again);
                }
                saved = (Instant::now(), begun.elapsed());
            }
        }
        self.tell(writing, at);
        Ok(Attempt::Done)
    }

    fn tell(&mut self, writing: &Writing<'_>, at: usize) {
        let sessions = writing.sessions.len();
        if let Some(progress) = &mut self.progress {
            progress(Progress { case: writing.case, done: at.min(sessions), sessions });
        }
    }

    /// The number of sessions that the store holds after it: those of the last saved state, or none. `None` where the system was lost.
    fn restore(&mut self, case: &Case, writing: &mut Writing<'_>) -> Result<Option<usize>, Halt> {
        let save = self.open(case)?.record.last_save().filter(|_| self.hello.can(Capability::Save));
        if let Some((sessions, folder)) = save {
            let about = writing.name(sessions.saturating_sub(1)).to_owned();
            match self.call(case, "load", &about, |system, scope| system.load(scope, &folder)) {
                Ok(()) => return Ok(Some(sessions)),
                Err(Halt::Run(error)) => return Err(Halt::Run(error)),
                Err(Halt::System(error)) => {
                    tracing::warn!("{error}; the sessions are written again instead");
                    self.open(case)?.record.drop_save(&folder)?;
                    if !self.running {
                        return Ok(None);
                    }
                }
            }
        }
        let first = writing.name(0).to_owned();
        match self.call(case, "reset", &first, |system, scope| system.reset(scope)) {
            Ok(()) => Ok(Some(0)),
            // A death between two sessions is noted at neither.
            Err(Halt::System(error))
                if error.kind == FailureKind::Dead && writing.first_death(usize::MAX) =>
            {
                Ok(None)
            }
            Err(halt) => Err(halt),
        }
    }

    /// Writes session `at`, or ends the writing, and completes the events; `None` where neither the system nor a dump tells any.
    fn write(
        &mut self,
        case: &Case,
        writing: &Writing<'_>,
        at: usize,
    ) -> Result<Option<Vec<EventRow>>, Halt> {
        let name = writing.name(at).to_owned();
        let told = match writing.sessions.get(at) {
            Some(session) => {
                self.call(case, "ingest", &name, |system, scope| system.ingest(scope, session))?
            }
            None => self.call(case, FINISH, &name, |system, scope| system.finish(scope))?,
        };
        let dumps = self.hello.can(Capability::Dump);
        let dump = match dumps && (told.is_none() || name == FINISH) {
            true => Some(self.call(case, "dump", &name, |system, scope| system.dump(scope))?),
            false => None,
        };
        let op = if name == FINISH { FINISH } else { "ingest" };
        let sources = told.iter().flatten().map(|event| &event.sources);
        let dumped = dump.iter().flatten().map(|memory| &memory.sources);
        self.check(case, op, sources.chain(dumped))?;
        let open = self.open(case)?;
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

    /// Refuses sources that name sessions which the system was never sent.
    fn check<'a>(
        &mut self,
        case: &Case,
        op: &'static str,
        sources: impl IntoIterator<Item = &'a Option<Vec<Source>>>,
    ) -> Result<(), Halt> {
        match self.open(case)?.sources.stranger(sources) {
            None => Ok(()),
            Some(session) => Err(Halt::System(SystemError {
                system: self.name.clone(),
                op,
                kind: FailureKind::Nonsense,
                message: format!(
                    "it names the source `{session}`, which is no session of this history; sources repeat the ids that `ingest` sends"
                ),
            })),
        }
    }

    /// The failure to keep of session `at`; `None` where the history is to be written again first, up to it or without it.
    fn note_failure(
        &mut self,
        case: &Case,
        writing: &mut Writing<'_>,
        at: usize,
        error: SystemError,
    ) -> Result<Option<Failure>, Halt> {
        if error.kind == FailureKind::Dead && writing.first_death(at) {
            tracing::warn!("{}: {error}; started again", writing.name(at));
            return Ok(None);
        }
        let failure = Failure::from(&error);
        let before = (0..at)
            .rev()
            .take_while(|at| writing.failed.get(at).is_some_and(|failure| failure.kind.is_lost()));
        let in_a_row = before.count() + 1;
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
            // The file says why; a later process goes on from the sessions before.
            let name = writing.name(at).to_owned();
            let open = self.open(case)?;
            open.record.end_session(&name, None, Some((&error).into()))?;
            return Err(error.into());
        }
        writing.failed.insert(at, failure.clone());
        Ok(self.running.then_some(failure))
    }

    /// Saves the state after `sessions` sessions. Does saving work? Without it the sessions are written again after a kill.
    fn save(&mut self, case: &Case, writing: &Writing<'_>, sessions: usize) -> Result<bool, Halt> {
        let folder = self.open(case)?.record.begin_save()?;
        let about = writing.name(sessions - 1).to_owned();
        match self.call(case, "save", &about, |system, scope| system.save(scope, &folder)) {
            Ok(()) => {
                self.open(case)?.record.end_save(sessions)?;
                Ok(true)
            }
            Err(Halt::System(error)) => {
                tracing::warn!("{error}; nothing more is saved of this history");
                Ok(false)
            }
            Err(files) => Err(files),
        }
    }

    /// An operation on the frozen store, whose history is written first where the running system does not hold it. A system that dies is
    /// asked once more.
    fn ask<T>(
        &mut self,
        case: &Case,
        phase: &'static str,
        about: &str,
        mut operation: impl FnMut(&mut dyn MemorySystem, &str) -> Result<T, SystemError>,
    ) -> Result<T, Halt> {
        self.ready(case)?;
        match self.call(case, phase, about, &mut operation) {
            Err(Halt::System(error)) if error.kind == FailureKind::Dead => {
                tracing::warn!("{about}: {error}; started again");
                self.ready(case)?;
                self.call(case, phase, about, &mut operation)
            }
            done => done,
        }
    }

    fn search(&mut self, case: &Case, probe: &Probe, wanted: Wanted) -> Result<SearchRow, Halt> {
        let about = probe.id.as_str();
        let as_of = case.history.query_time.map(|time| time.to_string());
        let as_of = as_of.as_deref();
        let before = self.fingerprint(case, about)?;
        // 1. The search, from which every smaller number of memories is cut.
        let found = self.ask(case, "search", about, |system, scope| {
            system.search(scope, &probe.query, wanted.k, as_of)
        })?;
        let mut memories = found.memories;
        if memories.len() > wanted.k {
            let (name, many, k) = (&self.name, memories.len(), wanted.k);
            tracing::warn!(
                "memory system {name}: search: {many} memories where {k} were asked for; the first {k} are taken"
            );
            memories.truncate(wanted.k);
        }
        self.check(case, "search", memories.iter().map(|memory| &memory.sources))?;
        let provenance = self.open(case)?.sources.complete(&mut memories);
        // 2. Its own answer, before anything is said of evidence.
        let answer = match wanted.answer {
            true => Some(
                self.ask(case, "answer", about, |system, scope| system.answer(scope, &probe.query, as_of)),
            ),
            false => None,
        };
        let (answer, answer_failed) = parted(answer)?;
        // 3. Perfect retrieval.
        let readback = wanted.readback.then(|| self.readback(case, probe));
        let (readback, readback_failed) = parted(readback)?;
        // 4. Reading must not have written.
        let after = self.fingerprint(case, about)?;
        self.open(case)?.fingerprint.clone_from(&after);
        let changed = before.zip(after).map(|(before, after)| before != after);
        Ok(SearchRow {
            probe: probe.id.clone(),
            query: probe.query.clone(),
            k: wanted.k,
            memories,
            parts: found.parts,
            readback,
            readback_failed,
            answer: answer.map(|answer| answer.text),
            answer_failed,
            provenance,
            failed: None,
            changed,
        })
    }

    /// The frozen store's fingerprint; of a system that has none but dumps, the dump's digest.
    fn fingerprint(&mut self, case: &Case, about: &str) -> Result<Option<String>, Halt> {
        self.ready(case)?;
        if let Some(known) = self.open(case)?.fingerprint.take() {
            return Ok(Some(known));
        }
        const OP: &str = "fingerprint";
        let taken = if self.hello.can(Capability::Fingerprint) {
            self.call(case, OP, about, |system, scope| system.fingerprint(scope))
        } else if self.hello.can(Capability::Dump) {
            let dump = self.call(case, OP, about, |system, scope| system.dump(scope));
            dump.map(|memories| digest(&memories))
        } else {
            return Ok(None);
        };
        match taken {
            Ok(fingerprint) => Ok(Some(fingerprint)),
            Err(Halt::System(error)) => {
                tracing::warn!("{about}: {error}");
                Ok(None)
            }
            Err(files) => Err(files),
        }
    }

    /// All memories written from a probe's evidence: by the system's word, else those of the dump.
    fn readback(&mut self, case: &Case, probe: &Probe) -> Result<Vec<Memory>, Halt> {
        const OP: &str = "readback";
        let refused = |system: &str, message: &str| {
            let kind = FailureKind::Unsupported;
            Halt::System(SystemError { system: system.to_owned(), op: OP, kind, message: message.to_owned() })
        };
        let sessions = evidence_sessions(case, probe);
        if sessions.is_empty() {
            return Err(refused(
                &self.name,
                "the data names no evidence of this question, so nothing can be read back",
            ));
        }
        if self.hello.can(Capability::Readback) {
            let mut memories =
                self.ask(case, OP, &probe.id, |system, scope| system.readback(scope, &sessions))?;
            self.check(case, OP, memories.iter().map(|memory| &memory.sources))?;
            self.open(case)?.sources.complete(&mut memories);
            return Ok(memories);
        }
        let Some(memories) = self.open(case)?.record.dump()? else {
            return Err(refused(
                &self.name,
                "it offers neither `readback` nor `dump`, so its memories of a session cannot be told",
            ));
        };
        if !memories.is_empty() && memories.iter().all(|memory| memory.sources.is_none()) {
            return Err(refused(
                &self.name,
                "the sources of its memories are unknown, so those of a session cannot be told",
            ));
        }
        let is_evidence = |source: &Source| sessions.contains(&source.session);
        let from_evidence =
            |memory: &Memory| memory.sources.as_ref().is_some_and(|all| all.iter().any(is_evidence));
        Ok(memories.into_iter().filter(from_evidence).collect())
    }
}

/// Refuses a record of other sessions than these.
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

/// Does a kept row hold what is wanted? A part that the system does not have at all is not asked for again.
fn holds(row: &SearchRow, wanted: Wanted) -> bool {
    let lasting = |failure: &Option<Failure>| {
        failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Unsupported)
    };
    let readback = !wanted.readback || row.readback.is_some() || lasting(&row.readback_failed);
    let answer = !wanted.answer || row.answer.is_some() || lasting(&row.answer_failed);
    row.failed.is_none() && row.k >= wanted.k && readback && answer
}

fn failed_row(probe: &Probe, wanted: Wanted, error: &SystemError) -> SearchRow {
    SearchRow {
        probe: probe.id.clone(),
        query: probe.query.clone(),
        k: wanted.k,
        failed: Some(error.into()),
        ..SearchRow::default()
    }
}

/// A part of a row and, in its place, the failure.
fn parted<T>(part: Option<Result<T, Halt>>) -> Result<(Option<T>, Option<Failure>), HistoryError> {
    match part {
        None => Ok((None, None)),
        Some(Ok(part)) => Ok((Some(part), None)),
        Some(Err(Halt::System(error))) => Ok((None, Some((&error).into()))),
        Some(Err(Halt::Run(error))) => Err(error),
    }
}
