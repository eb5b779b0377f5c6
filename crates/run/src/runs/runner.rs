//! The runner: asks the planned probes and stores each answer before the next one starts.
//!
//! Models stand behind [`Subject`]. Errors of single probes become rows; only errors that would repeat (full disk, unreachable endpoint)
//! end the run.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::condition::{Condition, Question};
use super::cost::{Cost, CostRow};
use super::error::RunError;
use super::plan::{PlannedCase, PlannedProbe};
use super::rows::{AnswerKey, AnswerRow, NoAnswer};
use super::store::{RunStore, ShownCase, ShownSegment};
use crate::chat::StopReason;
use crate::memory::{Memory, View};
use crate::progress::{Status, StepSeconds, Steps, note};
use palimpsest_core::attention::AttentionStore;
use palimpsest_data::case::{Case, Probe};
use palimpsest_data::prompt::SegmentNumbers;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProbeOutcome {
    /// Without the question, which the runner fills in.
    pub row: AnswerRow,
    pub attention: Option<AttentionStore>,
    pub cost: Option<Cost>,
    /// Not asked, since the prompt lacks a span of the condition's knock-out. The rest is empty.
    pub left_out: bool,
}

/// Receives one outcome or error; it is on disk when the call returns.
pub type Sink<'a> = dyn FnMut(Question<'_>, Result<ProbeOutcome, NoAnswer>) -> Result<(), RunError> + 'a;

pub trait Subject {
    /// Called before a case with the next one, which can be prepared in parallel.
    fn prepare(&mut self, _next: &Arc<Case>) {}

    /// Answers `questions` on `case` in order, passing each outcome to `sink` immediately.
    ///
    /// Return errors of `sink` at once (`?`): the run ends. Unanswerable probes are passed as `Err` to `sink`; [`RunError::GaveUp`] is for
    /// errors that every further probe would hit. Answers must not depend on the selection of questions. `status` receives progress.
    fn answer_case(
        &mut self,
        case: &Case,
        questions: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError>;
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Planned answers or verdicts, one per case, probe and condition.
    pub planned: usize,
    pub skipped: usize,
    pub done: usize,
    /// Error rows of this process (for a judge, including missing answers); a rerun retries them.
    pub errors: usize,
    pub stopped: bool,
    /// Old error rows that were not retried: generation ended inside the thought.
    pub cut: usize,
    pub broken: usize,
    pub settled: usize,
    /// Questions skipped because prompts lack a span of a knock-out ([`PlannedProbe::left_out`]).
    pub left_out: usize,
}

/// Answers the unanswered part of `store`'s plan, under each condition with the context from `memory`. `cases` yields sound cases in
/// dataset order; at most two are in memory. Broken rows get error rows. `stop` is checked after each write.
///
/// Calls [`RunStore::finish`] at the end. A stop is no error: all rows are on disk.
pub fn run(
    store: &mut RunStore,
    cases: impl IntoIterator<Item = Result<Case, RunError>>,
    memory: &mut Memory,
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
    let conditions = store.header().identity.conditions_or_plain().to_vec();
    let planned = store.planned();
    let left_out = plan.iter().flat_map(|case| &case.probes).map(|probe| probe.left_out.len()).sum();
    let summary = Summary { planned, skipped: clean.len(), cut: cut.len(), left_out, ..Summary::default() };
    let progress = Steps::new("answers", planned - settled.len(), show_progress);
    let mut job = RunState { store, stop, progress, summary, lost: None, lacking: BTreeSet::new() };
    let done = (|| {
        for planned in broken {
            job.refuse(planned, &conditions)?;
        }
        // Held back until its successor is known, which can then be prepared in parallel.
        let mut held: Option<SharedHistory> = None;
        for case in cases {
            // Skips unplanned cases, and ends after the last planned one.
            if missing.is_empty() {
                break;
            }
            let case = case?;
            let Some(planned) = missing.remove(case.id.as_str()) else { continue };
            let whole = Arc::new(case);
            let shown = shown(memory, planned, &whole, &conditions, &settled);
            if shown.is_empty() {
                job.show(&whole)?;
                continue;
            }
            for next in shown {
                if let Some(current) = held.replace(next) {
                    job.answer(&current, held.as_ref(), subject)?;
                }
            }
        }
        if let Some(last) = held {
            job.answer(&last, None, subject)?;
        }
        match plan.iter().find(|case| missing.contains_key(case.case.as_str())) {
            Some(case) => Err(RunError::GaveUp(format!(
                "case `{}` of the plan is not in the dataset; give the dataset that the run was begun with",
                case.case
            ))),
            None => Ok(()),
        }
    })();
    let RunState { store, progress, mut summary, lost, lacking, .. } = job;
    drop(progress);
    summary.planned -= lacking.len();
    summary.left_out += lacking.len();
    store.leave_out(&lacking)?;
    match done {
        Ok(()) => store.finish()?,
        Err(RunError::Stopped) => {
            summary.stopped = true;
            lost.iter().for_each(note);
        }
        Err(error) => return Err(error),
    }
    Ok(summary)
}

struct SharedHistory<'a> {
    planned: &'a PlannedCase,
    whole: Arc<Case>,
    shown: Arc<Case>,
    view: View,
    /// Index of the probe in the view, and the condition.
    wanted: Vec<(usize, &'a Condition)>,
    /// First and last view of the case.
    ends: (bool, bool),
}

impl SharedHistory<'_> {
    fn questions(&self) -> Vec<Question<'_>> {
        let probes = &self.shown.probes;
        let of = |&(at, condition): &(usize, _)| Some(Question { probe: probes.get(at)?, condition });
        self.wanted.iter().filter_map(of).collect()
    }
}

/// Open questions grouped by shared history: conditions with one setting together.
fn shown<'a>(
    memory: &mut Memory,
    planned: &'a PlannedCase,
    case: &Arc<Case>,
    conditions: &'a [Condition],
    settled: &BTreeSet<AnswerKey>,
) -> Vec<SharedHistory<'a>> {
    let is_wanted = |probe: &Probe, condition: &Condition| {
        planned.probes.iter().any(|p| p.id == probe.id && p.is_asked_under(&condition.name))
            && !settled.contains(&AnswerKey::of(&planned.case, &probe.id, &condition.name).owned())
    };
    let mut all: Vec<SharedHistory<'a>> = Vec::new();
    let mut rest = conditions;
    while let Some(first) = rest.first() {
        let count = rest.iter().take_while(|other| other.shows_as(first)).count();
        let (together, others) = rest.split_at(count);
        rest = others;
        if !case.probes.iter().any(|probe| together.iter().any(|condition| is_wanted(probe, condition))) {
            continue;
        }
        // Memory systems search separately for each probe.
        let mut asked = Arc::clone(case);
        if first.memory.is_some() {
            let is_asked = |probe: &Probe| together.iter().any(|condition| is_wanted(probe, condition));
            Arc::make_mut(&mut asked).probes.retain(is_asked);
        }
        for mut view in first.views(memory, &asked) {
            let shown = Arc::new(std::mem::take(&mut view.case));
            let probes = shown.probes.iter().enumerate();
            let wanted: Vec<_> = probes
                .flat_map(|(at, probe)| together.iter().map(move |condition| (at, probe, condition)))
                .filter(|(_, probe, condition)| is_wanted(probe, condition))
                .map(|(at, _, condition)| (at, condition))
                .collect();
            if !wanted.is_empty() {
                let (whole, ends) = (Arc::clone(case), (false, false));
                all.push(SharedHistory { planned, whole, shown, view, wanted, ends });
            }
        }
    }
    all.first_mut().into_iter().for_each(|first| first.ends.0 = true);
    all.last_mut().into_iter().for_each(|last| last.ends.1 = true);
    all
}

struct RunState<'a> {
    store: &'a mut RunStore,
    stop: &'a AtomicBool,
    progress: Steps,
    summary: Summary,
    /// Error of a question lost to a stop.
    lost: Option<String>,
    /// Questions that are left out.
    lacking: BTreeSet<AnswerKey>,
}

impl RunState<'_> {
    fn show(&self, case: &Case) -> Result<(), RunError> {
        if self.store.has_shown(&case.id) { Ok(()) } else { write_shown(self.store, case) }
    }

    fn refuse(&mut self, planned: &PlannedCase, conditions: &[Condition]) -> Result<(), RunError> {
        let reason = format!("not asked: {}", planned.broken.as_deref().unwrap_or_default());
        for PlannedProbe { id, query, .. } in &planned.probes {
            let probe = Probe { id: id.clone(), query: query.clone(), ..Probe::default() };
            for condition in conditions {
                let question = Question { probe: &probe, condition };
                self.record(
                    planned,
                    question,
                    &View::default(),
                    Err(reason.clone().into()),
                    &mut vec![question],
                )?;
                self.summary.broken += 1;
            }
        }
        Ok(())
    }

    /// Answers the open questions of a view; `next` is prepared in parallel.
    fn answer(
        &mut self,
        current: &SharedHistory<'_>,
        next: Option<&SharedHistory<'_>>,
        subject: &mut dyn Subject,
    ) -> Result<(), RunError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(RunError::Stopped);
        }
        let SharedHistory { planned, whole, view, ends: (first, last), .. } = current;
        if *first {
            // Removed until the case is complete, so that a kill leaves no outdated file.
            self.store.remove_shown(&whole.id)?;
        }
        if let Some(next) = next.filter(|next| next.view.refused.is_none()) {
            subject.prepare(&next.shown);
        }
        let questions = current.questions();
        self.progress.begin_group(questions.len());
        let mut missing = questions.clone();
        let mut record = |job: &mut Self, question: Question<'_>, outcome: Result<ProbeOutcome, NoAnswer>| {
            job.record(planned, question, view, outcome, &mut missing)
        };
        if let Some(why) = &view.refused {
            for &question in &questions {
                record(self, question, Err(why.clone().into()))?;
            }
        } else if let Some(answer) = &view.answered {
            let stop = Some(StopReason::EndOfTurn);
            let row = AnswerRow { answer: Some(answer.clone()), stop, ..AnswerRow::default() };
            let outcome = ProbeOutcome { row, ..ProbeOutcome::default() };
            for &question in &questions {
                record(self, question, Ok(outcome.clone()))?;
            }
        } else {
            let status = self.progress.status();
            let answered =
                subject.answer_case(&current.shown, &questions, &status, &mut |question, outcome| {
                    record(self, question, outcome)
                });
            if let (Err(RunError::Stopped), lost @ 1..) = (&answered, status.lost()) {
                self.lost = Some(format!(
                    "{lost} of {} answers of case {} were under way and will be asked again",
                    questions.len(),
                    planned.case
                ));
            }
            answered?;
        }
        for question in missing.clone() {
            let nothing = Err("the model gave no answer".to_owned().into());
            self.record(planned, question, view, nothing, &mut missing)?;
        }
        if *last { write_shown(self.store, whole) } else { Ok(()) }
    }

    /// Stores one outcome. Duplicate or unrequested outcomes are dropped: the first one stands.
    fn record(
        &mut self,
        planned: &PlannedCase,
        question: Question<'_>,
        view: &View,
        outcome: Result<ProbeOutcome, NoAnswer>,
        missing: &mut Vec<Question<'_>>,
    ) -> Result<(), RunError> {
        let Some(at) = missing.iter().position(|other| *other == question) else { return Ok(()) };
        missing.remove(at);
        let ProbeOutcome { row, attention, cost, left_out } = outcome.unwrap_or_else(|error| ProbeOutcome {
            row: AnswerRow { too_long: error.too_long, error: Some(error.message), ..AnswerRow::default() },
            ..ProbeOutcome::default()
        });
        if left_out {
            let key = AnswerKey::of(&planned.case, &question.probe.id, &question.condition.name);
            self.lacking.insert(key.owned());
            self.progress.step(&format!("{} {question}", planned.case), None);
            return Ok(());
        }
        let mut row = AnswerRow {
            case: planned.case.clone(),
            probe: question.probe.id.clone(),
            condition: question.condition.name.clone(),
            labels: planned.labels.clone(),
            query: question.probe.query.clone(),
            ..row
        };
        if row.error.is_none() {
            row.context.clone_from(&view.segments);
            let ranks = |ids: &Vec<String>| {
                let shown = ids.iter().enumerate().filter(|(rank, _)| !row.dropped_sessions.contains(rank));
                shown.map(|(_, id)| id.clone()).collect()
            };
            row.memories = view.memories.as_ref().map(ranks);
        }
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
        let took = cost.map(|cost| StepSeconds {
            before: cost.prefill_seconds.unwrap_or(0.0),
            own: cost.decode_seconds,
        });
        self.progress.measured_step(&format!("{} {question}", planned.case), error.as_deref(), took);
        if error.is_some() {
            self.summary.errors += 1;
        } else {
            self.summary.done += 1;
        }
        if self.stop.load(Ordering::Relaxed) { Err(RunError::Stopped) } else { Ok(()) }
    }
}

/// [`ShownSegment::number`] of the segment at `place`.
fn stored_number(numbers: SegmentNumbers, place: usize, index: usize) -> Option<usize> {
    numbers.of(place, index).filter(|number| *number != index + 1)
}

/// Refuses to resume truncated runs of version 0.1.0: their segment numbers had gaps under the same identity.
fn check_numbers(store: &RunStore) -> Result<(), RunError> {
    let answers = store.answers();
    // Rows of version 0.1.0 have no token counts, and its conditions no settings.
    let is_cut = |row: &&AnswerRow| row.was_cut_to_fit() && row.dropped_tokens == 0 && row.error.is_none();
    if !store.header().identity.conditions.iter().all(|condition| condition.setting.is_none()) {
        return Ok(());
    }
    let Some(cut) = answers.iter().find(is_cut) else {
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
         finish the run with that version, or start again in another --out",
        cut.case
    )))
}

/// Writes the segments that the case's answered probes were shown, from the rows.
fn write_shown(store: &RunStore, case: &Case) -> Result<(), RunError> {
    let answered: Vec<AnswerRow> =
        store.answers().into_iter().filter(|row| row.case == case.id && row.error.is_none()).collect();
    if answered.is_empty() {
        return Ok(());
    }
    let shown: Vec<_> =
        case.history.segments.iter().filter(|s| answered.iter().any(|row| row.shows(s.index))).collect();
    // With one history for all probes, its numbers apply to each.
    let one_history = answered.windows(2).all(|pair| {
        let of = |row: &AnswerRow| (row.context.clone(), row.dropped_sessions.clone());
        matches!(pair, [a, b] if of(a) == of(b))
    });
    let numbers = store.header().identity.context.numbers;
    let segments = shown.into_iter().enumerate().map(|(place, s)| ShownSegment {
        kind: s.kind.clone(),
        index: s.index,
        number: stored_number(numbers, place, s.index).filter(|_| one_history),
        time: s.time,
        turns: s.turns.clone(),
    });
    let segments = segments.collect();
    store.write_shown(&ShownCase { case: case.id.clone(), query_time: case.history.query_time, segments })
}
