//! The runner: puts the planned probes to whoever answers and stores each answer before the next is begun.
//!
//! Called by `palimpsest run`. It knows neither models nor HTTP: the local engine, which shares a prefix over the probes
//! of a case, and endpoints stand behind [`Subject`]. Errors of single probes become rows; only what makes going on
//! pointless (a full disk, an endpoint that is gone) ends the run.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::error::RunError;
use super::plan::PlannedCase;
use super::rows::AnswerRow;
use super::store::{RunStore, ShownCase, ShownSession};
use crate::attention::AttentionStore;
use crate::chat::StopReason;
use crate::data::{Case, Probe};
use crate::progress::{Status, Steps, note};

/// What came of one probe.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeOutcome {
    /// The answer's text.
    pub answer: String,
    /// Why generation ended.
    pub stop: StopReason,
    /// Tokens of the prompt, where known.
    pub prompt_tokens: Option<usize>,
    /// Tokens generated, where known.
    pub completion_tokens: Option<usize>,
    /// Original indices of the sessions that truncation dropped, ascending.
    pub dropped_sessions: Vec<usize>,
    /// The attention masses, where they were recorded.
    pub attention: Option<AttentionStore>,
}

/// Takes the outcome of one probe, or why there is none, and has it on the disk when it returns.
pub type Sink<'a> = dyn FnMut(&Probe, Result<ProbeOutcome, String>) -> Result<(), RunError> + 'a;

/// Whoever answers.
pub trait Subject {
    /// Told, before a case is answered, which one comes after it, so that what needs no model can be done meanwhile.
    fn prepare(&mut self, _next: &Case) {}

    /// Answers `probes` of `case` one after the other, handing each outcome to `sink` as soon as it is there.
    ///
    /// An error of `sink` is to be passed on at once (`?`): it means that the run ends here. A probe that cannot be
    /// answered is an `Err` handed to `sink`; [`RunError::GaveUp`] is for what makes every further probe fail too.
    /// Answers must not depend on which other probes of the case are asked for. `status` is told how far the probe under
    /// way is, which at long contexts takes minutes.
    fn answer_case(
        &mut self,
        case: &Case,
        probes: &[&Probe],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError>;
}

/// What a run or its judging, or a part of one, came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// (case, probe) pairs in the plan.
    pub planned: usize,
    /// Already there when this process started.
    pub skipped: usize,
    /// Answered or judged by this process.
    pub done: usize,
    /// Ended as error rows in this process (for a judge, missing answers included); the same command tries them again.
    pub errors: usize,
    /// Whether a stop was asked for before the end.
    pub stopped: bool,
}

/// Answers what `store` still lacks of its plan. `cases` are the dataset's; `stop` is looked at after each write.
///
/// When all is answered, [`RunStore::finish`] has been called. A stop leaves everything on the disk and is no error.
pub fn run(
    store: &mut RunStore,
    cases: &[Case],
    subject: &mut dyn Subject,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Summary, RunError> {
    let by_id: HashMap<&str, &Case> = cases.iter().map(|case| (case.id.as_str(), case)).collect();
    let plan = store.plan().to_vec();
    let clean = store.clean_answers();
    let asked = plan.iter().map(|planned| match by_id.get(planned.case.as_str()) {
        Some(case) => Ok(Asked { planned, case, wanted: wanted(planned, case, &clean) }),
        None => Err(RunError::GaveUp(format!(
            "case `{}` of the plan is not in the dataset; give the dataset that the run was begun with",
            planned.case
        ))),
    });
    let asked = asked.collect::<Result<Vec<_>, _>>()?;
    let planned: usize = plan.iter().map(|case| case.probes.len()).sum();
    let summary = Summary { planned, skipped: clean.len(), done: 0, errors: 0, stopped: false };
    let progress = Steps::new("answers", planned - clean.len(), show_progress);
    let mut job = Job { store, stop, progress, summary };
    let done = asked.iter().enumerate().try_for_each(|(at, one)| {
        let next = asked[at + 1..].iter().find(|later| !later.wanted.is_empty());
        job.answer(one, next.map(|next| next.case), subject)
    });
    match done {
        Ok(()) => job.store.finish()?,
        Err(RunError::Stopped) => job.summary.stopped = true,
        Err(error) => return Err(error),
    }
    Ok(job.summary)
}

/// A case, and what of it is still to be answered.
struct Asked<'a> {
    planned: &'a PlannedCase,
    case: &'a Case,
    wanted: Vec<&'a Probe>,
}

/// The planned probes of a case that are not clean.
fn wanted<'a>(planned: &PlannedCase, case: &'a Case, clean: &BTreeSet<(String, String)>) -> Vec<&'a Probe> {
    let left = planned.probes.iter().filter(|p| !clean.contains(&(planned.case.clone(), p.id.clone())));
    left.filter_map(|p| case.probes.iter().find(|probe| probe.id == p.id)).collect()
}

/// A run under way.
struct Job<'a> {
    store: &'a mut RunStore,
    stop: &'a AtomicBool,
    progress: Steps,
    summary: Summary,
}

impl Job<'_> {
    /// Has what is not clean of one case answered, before `next`.
    fn answer(
        &mut self,
        Asked { planned, case, wanted }: &Asked<'_>,
        next: Option<&Case>,
        subject: &mut dyn Subject,
    ) -> Result<(), RunError> {
        if wanted.is_empty() {
            // Killed after the last row of the case and before this file.
            return if self.store.has_shown(&case.id) { Ok(()) } else { write_shown(self.store, case) };
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(RunError::Stopped);
        }
        // Until the case is through again, so that a kill in between cannot leave an outdated one.
        self.store.remove_shown(&case.id)?;
        if let Some(next) = next {
            subject.prepare(next);
        }
        let mut missing = wanted.clone();
        let status = self.progress.status();
        subject.answer_case(case, wanted, &status, &mut |probe, outcome| {
            self.record(planned, probe, outcome, &mut missing)
        })?;
        for probe in missing.clone() {
            self.record(planned, probe, Err("the model gave no answer".to_owned()), &mut missing)?;
        }
        write_shown(self.store, case)
    }

    /// Stores one outcome. An answer that was not asked for, or came before, is let fall: the first one stands.
    fn record(
        &mut self,
        planned: &PlannedCase,
        probe: &Probe,
        outcome: Result<ProbeOutcome, String>,
        missing: &mut Vec<&Probe>,
    ) -> Result<(), RunError> {
        let Some(at) = missing.iter().position(|p| p.id == probe.id) else { return Ok(()) };
        missing.remove(at);
        let error = outcome.as_ref().err().cloned();
        let (row, attention) = answer_row(planned, probe, outcome);
        self.store.append_answer(row, attention.as_ref())?;
        self.progress.step(&format!("{} {}", planned.case, probe.id), error.as_deref());
        if error.is_some() {
            self.summary.errors += 1;
        } else {
            self.summary.done += 1;
        }
        if self.stop.load(Ordering::Relaxed) { Err(RunError::Stopped) } else { Ok(()) }
    }
}

fn answer_row(
    planned: &PlannedCase,
    probe: &Probe,
    outcome: Result<ProbeOutcome, String>,
) -> (AnswerRow, Option<AttentionStore>) {
    let mut row = AnswerRow {
        case: planned.case.clone(),
        probe: probe.id.clone(),
        labels: planned.labels.clone(),
        query: probe.query.clone(),
        answer: None,
        stop: None,
        prompt_tokens: None,
        completion_tokens: None,
        dropped_sessions: Vec::new(),
        attention: None,
        error: None,
    };
    match outcome {
        Ok(outcome) => {
            row.answer = Some(outcome.answer);
            row.stop = Some(outcome.stop);
            row.prompt_tokens = outcome.prompt_tokens;
            row.completion_tokens = outcome.completion_tokens;
            row.dropped_sessions = outcome.dropped_sessions;
            (row, outcome.attention)
        }
        Err(error) => {
            row.error = Some(error);
            (row, None)
        }
    }
}

/// Writes the sessions that at least one answered probe of the case was shown. Decided from the rows, so that it does
/// not depend on which of them this process wrote.
fn write_shown(store: &RunStore, case: &Case) -> Result<(), RunError> {
    let answered: Vec<AnswerRow> =
        store.answers().into_iter().filter(|row| row.case == case.id && row.error.is_none()).collect();
    if answered.is_empty() {
        return Ok(());
    }
    let sessions = case
        .history
        .sessions
        .iter()
        .filter(|session| answered.iter().any(|row| !row.dropped_sessions.contains(&session.index)))
        .map(|s| ShownSession { index: s.index, time: s.time, turns: s.turns.clone() })
        .collect();
    store.write_shown(&ShownCase { case: case.id.clone(), query_time: case.history.query_time, sessions })
}

/// A flag that Ctrl-C (or a polite kill) sets. The first one lets the current write finish; the second ends the process
/// at once, which loses nothing but the answer under way.
pub fn stop_on_interrupt() -> Result<Arc<AtomicBool>, RunError> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(flag) = FLAG.get() {
        return Ok(Arc::clone(flag));
    }
    let flag = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            note("stopped; the same command goes on from here");
            std::process::exit(INTERRUPTED);
        }
        note("stopping after the answer under way; press Ctrl-C again to stop at once");
    })
    .map_err(|e| RunError::GaveUp(format!("cannot watch for Ctrl-C: {e}")))?;
    Ok(Arc::clone(FLAG.get_or_init(|| flag)))
}

/// The exit code of a run that was stopped by Ctrl-C.
pub const INTERRUPTED: i32 = 130;
