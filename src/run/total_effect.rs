//! The total effect of each session on each answer of a run: the session is removed, or neutral text is put in its place, and the rest
//! read again.
//!
//! Called by `palimpsest causes --total` and `--replace`. Where a blocked path says what a question and its answer owe to a session directly,
//! this says what they owe to it altogether, what later sessions took over from it included. It costs a prefill of what comes after the
//! session. Rows go to `causes.jsonl` and are gone on with.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cause_rows::{CauseLine, Effect, TotalEffect, TotalRow, open_log};
use super::causes::{Answer, CauseError, Measured};
use super::removal::{Ablated, CaseAnswers, ReadingCost, SessionChoice, cases, goes_back};
use super::replacement::{NEUTRAL, neutral};
use super::rows::AnswerKey;
use super::store::RunFolder;
use crate::progress::Steps;
use palimpsest_core::engine::{LocalModel, ModelText};

/// The sessions that are left out, and the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TotalOptions {
    /// Which, each by itself.
    pub sessions: SessionChoice,
    /// True if neutral text stands in a session's place, so that nothing moves; else it is removed.
    pub replace: bool,
}

impl TotalOptions {
    /// The case with neutral text in the place of sessions, where that is wanted.
    pub(super) fn of_case(self, case: CaseAnswers, text: &ModelText) -> Result<CaseAnswers, CauseError> {
        Ok(case.replacing(self.replace.then(|| neutral(text)).transpose()?))
    }
}

/// An answer and the span that was removed.
type Key = (AnswerKey, String);

fn there<'a>(lines: impl IntoIterator<Item = &'a CauseLine>, replace: bool) -> BTreeSet<Key> {
    let made_so = |line: &'a CauseLine| match line {
        CauseLine::Total(row) if !replace => Some(row),
        CauseLine::Replaced(row) if replace && row.neutral.as_deref() == Some(NEUTRAL) => Some(row),
        _ => None,
    };
    let answer = |row: &TotalRow| AnswerKey::of(&row.case, &row.probe, &row.condition).owned();
    lines.into_iter().filter_map(made_so).map(|row| (answer(row), row.span.clone())).collect()
}

fn missing(case: &CaseAnswers, there: &BTreeSet<Key>, chosen: SessionChoice) -> (Vec<Ablated>, usize) {
    case.missing(chosen, |store, span| {
        there.contains(&(AnswerKey::of_store(store).owned(), span.label.clone()))
    })
}

/// Measures what `folder` still lacks, and appends it. `model` must be the run's. `stop` is looked at after each chunk and reading.
///
/// # Errors
/// [`CauseError`]; a stop is none.
pub fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    options: TotalOptions,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Measured, CauseError> {
    let mut log = open_log(&folder.dir)?;
    let there = there(&log.rows, options.replace);
    let kinds = model.engine().decoder().spec().layer_kinds();
    let mut all = ReadingCost::default();
    for case in cases(folder) {
        let case = options.of_case(case?, model.text())?;
        all += case.cost(&missing(&case, &there, options.sessions).0, goes_back(&kinds));
    }
    let mut measured = Measured::default();
    let (what, how) =
        if options.replace { ("replacements", "with neutral text for") } else { ("removals", "without") };
    all.announce(what);
    let mut steps = Steps::new(what, all.readings, show_progress);
    for case in cases(folder) {
        let case = options.of_case(case?, model.text())?;
        let (missing, found) = missing(&case, &there, options.sessions);
        measured.skipped += found;
        if missing.is_empty() {
            continue;
        }
        let status = steps.status();
        let cost = case.cost(&missing, goes_back(&kinds));
        let mut read = 0;
        let mut go_on = |tokens: usize| {
            read += tokens;
            status.prefill(read, cost.prefill);
            !stop.load(Ordering::Relaxed)
        };
        let mut sink = |ablated: &Ablated, answer: &Answer<'_>, effect: Effect| {
            let total =
                if options.replace { TotalEffect::Replaced(effect) } else { TotalEffect::Total(effect) };
            let row = row(&case, ablated, answer, total);
            let step = format!("{} {} {how} {}", row.case, row.probe, row.span);
            log.append(if options.replace { CauseLine::Replaced(row) } else { CauseLine::Total(row) })?;
            measured.done += 1;
            steps.step(&step, None);
            Ok(!stop.load(Ordering::Relaxed))
        };
        status.begin(case.id(), "prefill");
        if !case.read(model.session(), &missing, &mut go_on, &mut sink)? {
            return Ok(measured.stopped());
        }
    }
    Ok(measured)
}

fn row(case: &CaseAnswers, ablated: &Ablated, answer: &Answer<'_>, total: TotalEffect) -> TotalRow {
    let store = &case.answers[ablated.answer];
    let span = case.sessions(ablated.answer)[ablated.nth];
    TotalRow {
        case: store.case.clone(),
        probe: store.probe.clone(),
        condition: store.condition.clone(),
        span: span.label.clone(),
        role: span.role.clone(),
        tokens: [span.start, span.end],
        neutral: matches!(total, TotalEffect::Replaced(_)).then(|| NEUTRAL.to_owned()),
        answer_tokens: answer.answer_tokens(),
        thought_tokens: answer.thought_tokens(),
        log_p: answer.log_p(),
        total,
    }
}
