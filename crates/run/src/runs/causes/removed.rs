//! Total effect of each session: it is removed, or replaced by neutral text, and the rest recomputed.
//!
//! Called by `palimpsest causes --total` and `--replace`. Unlike blocking, this includes indirect effects through later sessions. It costs
//! a prefill of everything after the session.

use palimpsest_core::ablate::{EffectRow, Metric};
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::engine::Session;
use palimpsest_core::span::Span;

use super::case::{Ablated, CaseAnswers, SessionChoice};
use super::contrast_rows::AblationKind;
use super::log::{Ablation, CauseLog};
use super::{Measured, Task};
use crate::progress::{Steps, Work};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovalOptions {
    pub sessions: SessionChoice,
    /// Replace by neutral text, so that positions stay; otherwise remove.
    pub replace: bool,
}

pub(super) fn measure(
    task: &Task<'_>,
    session: &mut Session,
    RemovalOptions { sessions, replace }: RemovalOptions,
) -> anyhow::Result<Measured> {
    let (kind, what, how) = match replace {
        true => (AblationKind::Replaced, "replacements", "with neutral text for"),
        false => (AblationKind::Removed, "removals", "without"),
    };
    let mut log = CauseLog::open(task)?;
    let missing = |case: &CaseAnswers<'_>, log: &CauseLog| {
        let is_there =
            |store: &AttentionStore, span: &Span| log.drop(store, &Ablation::of(kind, span)).is_some();
        case.missing(sessions, is_there)
    };
    let mut left = task.announced(what, |case| case.cost(&missing(case, &log).0))?;
    let mut measured = Measured::default();
    let mut steps = Steps::new(what, left.readings, task.show).brief(true);
    for case in task.cases() {
        let case = case?;
        let (missing, found) = missing(&case, &log);
        measured.skipped += found;
        if missing.is_empty() {
            continue;
        }
        let status = steps.status();
        let mut go_on = task.hears(steps.status(), &mut left, case.cost(&missing));
        let mut sink = |ablated: &Ablated, metric: &Metric, row: EffectRow| {
            let (store, span) = (&case.answers[ablated.answer], case.sessions(ablated.answer)[ablated.nth]);
            log.append(store, &Ablation::of(kind, span), metric, row)?;
            measured.done += 1;
            status.did(Work::Answer, case.own_tokens(ablated.answer));
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
