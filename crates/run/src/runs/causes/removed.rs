//! The total effect of each session on each answer of a run: the session is removed, or neutral text is put in its place, and the rest
//! read again.
//!
//! Called by `palimpsest causes --total` and `--replace`. A blocked path says what a question and its answer owe to a session directly; this
//! says what they owe to it altogether, what later sessions took over from it included. It costs a prefill of what comes after the session.

use palimpsest_core::ablate::{EffectRow, Metric, neutral};
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::engine::Session;
use palimpsest_core::span::Span;

use super::case::{Ablated, CaseAnswers, ReadingCost, SessionChoice};
use super::contrast_rows::AblationKind;
use super::log::{Ablation, CauseLog};
use super::{CauseError, Measured, Task};
use crate::progress::Steps;

/// The sessions that are left out, and the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovalOptions {
    pub sessions: SessionChoice,
    /// True if neutral text stands in a session's place, so that nothing moves; else it is removed.
    pub replace: bool,
}

pub(super) fn measure(
    task: &Task<'_>,
    session: &mut Session,
    RemovalOptions { sessions, replace }: RemovalOptions,
) -> Result<Measured, CauseError> {
    let kind = if replace { AblationKind::Replaced } else { AblationKind::Removed };
    let mut log = CauseLog::open(task)?;
    let text = if replace { Some(neutral(&task.text).map_err(CauseError::Neutral)?) } else { None };
    let missing = |case: &CaseAnswers<'_>, log: &CauseLog| {
        let is_there =
            |store: &AttentionStore, span: &Span| log.drop(store, &Ablation::of(kind, span)).is_some();
        case.missing(sessions, is_there)
    };
    let cases = || task.cases().map(|case| Ok::<_, CauseError>(case?.replacing(text.clone())));
    let mut all = ReadingCost::default();
    for case in cases() {
        let case = case?;
        all += case.cost(&missing(&case, &log).0);
    }
    let mut measured = Measured::default();
    let (what, how) =
        if replace { ("replacements", "with neutral text for") } else { ("removals", "without") };
    all.announce(what);
    let mut steps = Steps::new(what, all.readings, task.show);
    for case in cases() {
        let case = case?;
        let (missing, found) = missing(&case, &log);
        measured.skipped += found;
        if missing.is_empty() {
            continue;
        }
        let status = steps.status();
        let mut go_on = task.hears(steps.status(), case.cost(&missing).prefill);
        let mut sink = |ablated: &Ablated, metric: &Metric, row: EffectRow| {
            let (store, span) = (&case.answers[ablated.answer], case.sessions(ablated.answer)[ablated.nth]);
            log.append(store, &Ablation::of(kind, span), metric, row)?;
            measured.done += 1;
            steps.step(&format!("{} {} {how} {}", store.case, store.probe, span.label), None);
            Ok(task.goes_on())
        };
        status.begin(case.id(), "prefill");
        if !case.read_ablated(session, &missing, &mut go_on, &mut sink)? {
            return Ok(measured.stopped());
        }
    }
    Ok(measured)
}
