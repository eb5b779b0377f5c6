//! The runner: puts the planned probes to the subject and stores each answer before the next is begun.
//!
//! Called by `palimpsest run`. It knows neither models nor HTTP: the local engine, which shares a prefix over the probes
//! of a case, and endpoints stand behind [`Subject`]. Errors of single probes become rows; only what makes going on
//! pointless (a full disk, an endpoint that is gone) ends the run.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use super::condition::{Condition, Question};
use super::cost::{Cost, CostRow};
use super::error::RunError;
use super::plan::{PlannedCase, PlannedProbe};
use super::rows::AnswerRow;
use super::store::{RunStore, ShownCase, ShownSegment};
use crate::attention::AttentionStore;
use crate::chat::StopReason;
use crate::data::{Case, Probe};
use crate::progress::{Status, Steps};
use crate::prompt::SegmentNumbers;

/// What came of one probe.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeOutcome {
    /// The answer's text; empty where `stop` says that there is none.
    pub answer: String,
    /// What the model thought before it.
    pub thought: Option<String>,
    /// Most tokens of a thought, where there was such a limit.
    pub max_thinking: Option<usize>,
    /// Why generation ended.
    pub stop: StopReason,
    /// Tokens of the prompt, where known.
    pub prompt_tokens: Option<usize>,
    /// Tokens generated, where known.
    pub completion_tokens: Option<usize>,
    /// Original indices of the segments that truncation dropped, ascending.
    pub dropped: Vec<usize>,
    /// Those of them that are immediate neighbours of evidence.
    pub dropped_neighbours: Vec<usize>,
    /// The attention masses, where they were recorded.
    pub attention: Option<AttentionStore>,
    /// What it cost, where that was measured.
    pub cost: Option<Cost>,
}

/// Takes the outcome of one question, or why there is none, and has it on the disk when it returns.
pub type Sink<'a> = dyn FnMut(Question<'_>, Result<ProbeOutcome, String>) -> Result<(), RunError> + 'a;

/// The model under test.
pub trait Subject {
    /// Told, before a case is answered, which one comes after it, so that what needs no model can be done meanwhile.
    fn prepare(&mut self, _next: &Case) {}

    /// Answers `questions` on `case` one after the other, handing each outcome to `sink` as soon as it is there.
    ///
    /// An error of `sink` is to be passed on at once (`?`): it means that the run ends here. A probe that cannot be
    /// answered is an `Err` handed to `sink`; [`RunError::GaveUp`] is for what makes every further probe fail too.
    /// Answers must not depend on which other questions on the case are asked. `status` is told how far the probe under
    /// way is, which at long contexts takes minutes.
    fn answer_case(
        &mut self,
        case: &Case,
        questions: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError>;
}

/// What a run or its judging, or a part of one, came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Answers or verdicts that the plan asks for: one a case, probe and condition.
    pub planned: usize,
    /// Already there when this process started.
    pub skipped: usize,
    /// Answered or judged by this process.
    pub done: usize,
    /// Ended as error rows in this process (for a judge, missing answers included); the same command tries them again.
    pub errors: usize,
    /// Whether a stop was asked for before the end.
    pub stopped: bool,
    /// Error rows from before that were left as they are, because generation ended inside the thought and would again.
    pub cut: usize,
    /// Of the errors, those of broken rows, which no model is asked.
    pub broken: usize,
}

/// Answers what `store` still lacks of its plan. `cases` are the dataset's sound ones, in its order, or why one cannot be read: two
/// of them are in memory at a time. Planned cases that are broken rows get error rows at once. `stop` is looked at after each
/// write.
///
/// When all is answered, [`RunStore::finish`] has been called. A stop leaves everything on the disk and is no error.
pub fn run(
    store: &mut RunStore,
    cases: impl IntoIterator<Item = Result<Case, RunError>>,
    subject: &mut dyn Subject,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Summary, RunError> {
    check_numbers(store)?;
    let plan = store.plan().to_vec();
    let (broken, sound): (Vec<&PlannedCase>, Vec<&PlannedCase>) =
        plan.iter().partition(|case| case.broken.is_some());
    let mut missing: HashMap<&str, &PlannedCase> =
        sound.into_iter().map(|case| (case.case.as_str(), case)).collect();
    let clean = store.clean_answers();
    let cut = store.cut_answers();
    let settled: BTreeSet<_> = clean.union(&cut).cloned().collect();
    let conditions = match store.header().identity.conditions.clone() {
        none if none.is_empty() => vec![Condition::default()],
        some => some,
    };
    let planned = store.planned();
    let summary = Summary { planned, skipped: clean.len(), cut: cut.len(), ..Summary::default() };
    let progress = Steps::new("answers", planned - settled.len(), show_progress);
    let mut job = Job { store, stop, progress, summary };
    let done = (|| {
        for planned in broken {
            job.refuse(planned, &conditions)?;
        }
        // The case whose turn it is: it waits until the one after it is known, which can then be prepared meanwhile.
        let mut held: Option<(Case, &PlannedCase)> = None;
        for case in cases {
            // What no probe of is planned is not looked at, nor is what comes after the last case of the plan.
            if missing.is_empty() {
                break;
            }
            let case = case?;
            let Some(planned) = missing.remove(case.id.as_str()) else { continue };
            if wanted(planned, &case, &conditions, &settled).is_empty() {
                job.show(&case)?;
                continue;
            }
            if let Some((current, planned)) = held.replace((case, planned)) {
                let next = held.as_ref().map(|(next, _)| next);
                let wanted = wanted(planned, &current, &conditions, &settled);
                job.answer(&Asked { planned, case: &current, wanted }, next, subject)?;
            }
        }
        if let Some((last, planned)) = held {
            let wanted = wanted(planned, &last, &conditions, &settled);
            job.answer(&Asked { planned, case: &last, wanted }, None, subject)?;
        }
        match plan.iter().find(|case| missing.contains_key(case.case.as_str())) {
            Some(case) => Err(RunError::GaveUp(format!(
                "case `{}` of the plan is not in the dataset; give the dataset that the run was begun with",
                case.case
            ))),
            None => Ok(()),
        }
    })();
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
    wanted: Vec<Question<'a>>,
}

/// What is planned of a case and not settled.
fn wanted<'a>(
    planned: &PlannedCase,
    case: &'a Case,
    conditions: &'a [Condition],
    settled: &BTreeSet<(String, String, String)>,
) -> Vec<Question<'a>> {
    let probes = planned.probes.iter().filter_map(|p| case.probes.iter().find(|probe| probe.id == p.id));
    let all = probes.flat_map(|probe| conditions.iter().map(move |condition| Question { probe, condition }));
    let key = |q: &Question<'_>| (planned.case.clone(), q.probe.id.clone(), q.condition.name.clone());
    all.filter(|question| !settled.contains(&key(question))).collect()
}

/// A run under way.
struct Job<'a> {
    store: &'a mut RunStore,
    stop: &'a AtomicBool,
    progress: Steps,
    summary: Summary,
}

impl Job<'_> {
    /// Writes what was shown of a case all of whose answers are there, where a kill came between its last row and this file.
    fn show(&self, case: &Case) -> Result<(), RunError> {
        if self.store.has_shown(&case.id) { Ok(()) } else { write_shown(self.store, case) }
    }

    /// Answers all that is planned of a broken row by an error: nothing of it can be asked.
    fn refuse(&mut self, planned: &PlannedCase, conditions: &[Condition]) -> Result<(), RunError> {
        let reason = format!("not asked: {}", planned.broken.as_deref().unwrap_or_default());
        for PlannedProbe { id, query, .. } in &planned.probes {
            let probe = Probe { id: id.clone(), query: query.clone(), ..Probe::default() };
            for condition in conditions {
                let question = Question { probe: &probe, condition };
                self.record(planned, question, Err(reason.clone()), &mut vec![question])?;
                self.summary.broken += 1;
            }
        }
        Ok(())
    }

    /// Has what is not clean of one case answered, before `next`.
    fn answer(
        &mut self,
        Asked { planned, case, wanted }: &Asked<'_>,
        next: Option<&Case>,
        subject: &mut dyn Subject,
    ) -> Result<(), RunError> {
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
        subject.answer_case(case, wanted, &status, &mut |question, outcome| {
            self.record(planned, question, outcome, &mut missing)
        })?;
        for question in missing.clone() {
            self.record(planned, question, Err("the model gave no answer".to_owned()), &mut missing)?;
        }
        write_shown(self.store, case)
    }

    /// Stores one outcome. Duplicate or unrequested outcomes are dropped: the first one stands.
    fn record(
        &mut self,
        planned: &PlannedCase,
        question: Question<'_>,
        outcome: Result<ProbeOutcome, String>,
        missing: &mut Vec<Question<'_>>,
    ) -> Result<(), RunError> {
        let Some(at) = missing.iter().position(|other| *other == question) else { return Ok(()) };
        missing.remove(at);
        let cost = outcome.as_ref().ok().and_then(|outcome| outcome.cost);
        let (row, attention) = answer_row(planned, question, outcome);
        let error = row.error.clone();
        self.store.append_answer(row, attention.as_ref())?;
        if let Some(cost) = cost {
            self.store.append_cost(CostRow {
                case: planned.case.clone(),
                probes: vec![question.probe.id.clone()],
                condition: question.condition.name.clone(),
                judge: None,
                cost,
            })?;
        }
        self.progress.step(&format!("{} {question}", planned.case), error.as_deref());
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
    Question { probe, condition }: Question<'_>,
    outcome: Result<ProbeOutcome, String>,
) -> (AnswerRow, Option<AttentionStore>) {
    let mut row = AnswerRow {
        case: planned.case.clone(),
        probe: probe.id.clone(),
        condition: condition.name.clone(),
        labels: planned.labels.clone(),
        query: probe.query.clone(),
        ..AnswerRow::default()
    };
    match outcome {
        Ok(outcome) => {
            row.thought = outcome.thought;
            row.prompt_tokens = outcome.prompt_tokens;
            row.completion_tokens = outcome.completion_tokens;
            row.dropped_sessions = outcome.dropped;
            row.dropped_neighbours = outcome.dropped_neighbours;
            row.error = outcome.stop.without_answer(outcome.max_thinking);
            row.cut = row.error.is_some();
            if row.cut {
                return (row, None);
            }
            row.answer = Some(outcome.answer);
            row.stop = Some(outcome.stop);
            (row, outcome.attention)
        }
        Err(error) => {
            row.error = Some(error);
            (row, None)
        }
    }
}

/// [`ShownSegment::number`] of the segment at `place` of what is shown.
fn stored_number(numbers: SegmentNumbers, place: usize, index: usize) -> Option<usize> {
    numbers.of(place, index).filter(|number| *number != index + 1)
}

/// Refuses a run that was begun by version 0.1.0 and has histories cut by it: their numbers had gaps, and the identity of both
/// versions is the same, so that runs of histories that fit can go on.
fn check_numbers(store: &RunStore) -> Result<(), RunError> {
    let answers = store.answers();
    let Some(cut) = answers.iter().find(|row| row.error.is_none() && !row.dropped_sessions.is_empty()) else {
        return Ok(());
    };
    let numbers = store.header().identity.context.numbers;
    let segments = store.shown(&cut.case)?.map(|shown| shown.segments).unwrap_or_default();
    let as_now = |(place, s): (usize, &ShownSegment)| s.number == stored_number(numbers, place, s.index);
    if segments.iter().enumerate().all(as_now) {
        return Ok(());
    }
    Err(RunError::GaveUp(format!(
        "the histories that were cut here (case `{}`, for one) were shown under the numbers of the whole history, as version 0.1.0 did; \
         finish the run with that version, or begin anew in another --out",
        cut.case
    )))
}

/// Writes the segments that at least one answered probe of the case was shown. Decided from the rows, so that it does
/// not depend on which of them this process wrote.
fn write_shown(store: &RunStore, case: &Case) -> Result<(), RunError> {
    let answered: Vec<AnswerRow> =
        store.answers().into_iter().filter(|row| row.case == case.id && row.error.is_none()).collect();
    if answered.is_empty() {
        return Ok(());
    }
    let shown = case.history.segments.iter();
    let shown = shown.filter(|s| answered.iter().any(|row| !row.dropped_sessions.contains(&s.index)));
    // All probes of a case share their history, so this is what each of them was shown.
    let numbers = store.header().identity.context.numbers;
    let segments = shown.enumerate().map(|(place, s)| ShownSegment {
        kind: s.kind.clone(),
        index: s.index,
        number: stored_number(numbers, place, s.index),
        time: s.time,
        turns: s.turns.clone(),
    });
    let segments = segments.collect();
    store.write_shown(&ShownCase { case: case.id.clone(), query_time: case.history.query_time, segments })
}
