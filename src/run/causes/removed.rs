//! The total effect of each session on each answer of a run: the session is removed, or neutral text is put in its place, and the rest
//! read again.
//!
//! Called by `palimpsest causes --total` and `--replace`. Where a blocked path says what a question and its answer owe to a session directly,
//! this says what they owe to it altogether, what later sessions took over from it included. It costs a prefill of what comes after the
//! session.

use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_core::attention::AttentionStore;
use palimpsest_core::engine::{LocalModel, ModelText};
use palimpsest_core::span::Span;

use super::case::{Ablated, CaseAnswers, ReadingCost, SessionChoice, cases, goes_back};
use super::log::{Ablation, CauseLog, Keys, Leaving};
use super::metric::{Change, Metric};
use super::replacement::neutral;
use super::{CauseError, Measured};
use crate::progress::Steps;
use crate::run::causes::metric::Measure;
use crate::run::store::RunFolder;

/// The sessions that are left out, and the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovalOptions {
    pub sessions: SessionChoice,
    /// True if neutral text stands in a session's place, so that nothing moves; else it is removed.
    pub replace: bool,
}

impl RemovalOptions {
    /// The case with neutral text in the place of sessions, where that is wanted.
    fn of_case(self, case: CaseAnswers, text: &ModelText) -> Result<CaseAnswers, CauseError> {
        Ok(case.replacing(self.replace.then(|| neutral(text)).transpose()?))
    }

    fn ablation(self, span: &Span) -> Ablation {
        let leaving = if self.replace { Leaving::Replaced } else { Leaving::Removed };
        Ablation { keys: Keys::Session(span.clone()), leaving }
    }

    fn missing(self, case: &CaseAnswers, log: &CauseLog) -> (Vec<Ablated>, usize) {
        let is_there = |store: &AttentionStore, span: &Span| log.drop(store, &self.ablation(span)).is_some();
        case.missing(self.sessions, is_there)
    }
}

/// Measures what `folder` still lacks, and appends it. `model` must be the run's. `stop` is looked at after each chunk and reading.
pub(super) fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    (options, of): (RemovalOptions, Measure),
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Measured, CauseError> {
    let kinds = model.engine().decoder().spec().layer_kinds();
    let mut log = CauseLog::open(&folder.dir, of, &kinds)?;
    let text = model.text().clone();
    let mut all = ReadingCost::default();
    for case in cases(folder, of, &text) {
        let case = options.of_case(case?, &text)?;
        all += case.cost(&options.missing(&case, &log).0, goes_back(&kinds));
    }
    let mut measured = Measured::default();
    let (what, how) =
        if options.replace { ("replacements", "with neutral text for") } else { ("removals", "without") };
    all.announce(what);
    let mut steps = Steps::new(what, all.readings, show_progress);
    for case in cases(folder, of, &text) {
        let case = options.of_case(case?, &text)?;
        let (missing, found) = options.missing(&case, &log);
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
        let mut sink = |ablated: &Ablated, metric: &Metric, change: Change| {
            let (store, span) = (&case.answers[ablated.answer], case.sessions(ablated.answer)[ablated.nth]);
            log.append(store, &options.ablation(span), metric, change)?;
            measured.done += 1;
            steps.step(&format!("{} {} {how} {}", store.case, store.probe, span.label), None);
            Ok(!stop.load(Ordering::Relaxed))
        };
        status.begin(case.id(), "prefill");
        if !case.read_ablated(model.session(), &missing, &mut go_on, &mut sink)? {
            return Ok(measured.stopped());
        }
    }
    Ok(measured)
}
