//! Carriers: the later sessions that hold what an answer owes to an earlier one indirectly.
//!
//! Called by `palimpsest causes --carriers`. A session of the evidence is hidden from everything from the question on, which leaves what later
//! positions took over from it; then it is hidden from the rows of one later session as well, which is read again with everything after it.
//! What that takes from the answer beyond the first is what that session carried. First it is hidden from all later rows at once: where that
//! takes less than [`LEAST`], no single carrier is looked for. The paths are blocked exactly, in all softmax layers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use palimpsest_core::attention::{Hole, LayerHoles, LayerKind};
use palimpsest_core::engine::{LocalModel, Session};
use palimpsest_core::span::Span;

use super::case::{CaseAnswers, ReadingCost, SessionChoice, cases, goes_back};
use super::log::{Ablation, CauseLog, Keys, Leaving};
use super::metric::{Change, Metric};
use super::{CauseError, Measured, unless_stopped, windows};
use crate::progress::Steps;
use crate::run::causes::metric::Measure;
use crate::run::store::RunFolder;

/// All positions after the session, as rows name them.
pub const ALL: &str = "all";
/// The positions between the last session and the question.
pub const BETWEEN: &str = "between";
/// The least loss in nats (of an answer a token) by hiding a session from all later rows, beyond hiding it from the question on, for
/// which single carriers are read, unless told otherwise.
pub const LEAST: f64 = 0.01;

/// The carriers that are looked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CarrierOptions {
    /// True if only the softmax layers of a model with linear-attention layers are blocked.
    pub softmax_only: bool,
    /// As [`LEAST`].
    pub least: f64,
}

/// Rows before the question from which a session is hidden, beside those from the question on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CarrierPath {
    /// The number of the answer among the case's.
    pub answer: usize,
    pub span: Span,
    /// The name of the carrier; empty where nothing but the direct path is blocked.
    pub carrier: String,
    pub rows: Range<usize>,
}

impl CarrierPath {
    /// `direct` is what is lost by the direct path alone.
    fn ablation(&self, direct: f64) -> Ablation {
        let leaving = Leaving::Carried { carrier: self.carrier.clone(), rows: self.rows.clone(), direct };
        Ablation { keys: Keys::Session(self.span.clone()), leaving }
    }

    /// The loss that was measured, beyond that by the direct path alone.
    fn carried(&self, case: &CaseAnswers, log: &CauseLog) -> Option<f64> {
        log.drop(&case.answers[self.answer], &self.ablation(0.0))
    }

    fn holes(&self, question: usize, kinds: &[LayerKind]) -> LayerHoles {
        let hidden_from = |rows| Hole { rows, keys: self.span.range() };
        let holes = match self.rows.is_empty() {
            true => vec![hidden_from(question..usize::MAX)],
            false => vec![hidden_from(self.rows.clone()), hidden_from(question..usize::MAX)],
        };
        LayerHoles::at_softmax(&(0..kinds.len()), kinds, holes)
    }
}

/// The sessions whose carriers are looked for: the evidence before the last session.
fn evidence(case: &CaseAnswers, answer: usize) -> Vec<Span> {
    case.sessions(answer).into_iter().filter(|span| SessionChoice::Evidence.holds(span)).cloned().collect()
}

fn direct(answer: usize, span: &Span) -> CarrierPath {
    CarrierPath { answer, span: span.clone(), carrier: String::new(), rows: 0..0 }
}

fn all(case: &CaseAnswers, answer: usize, span: &Span) -> CarrierPath {
    let rows = span.end..case.question(answer);
    CarrierPath { answer, span: span.clone(), carrier: ALL.to_owned(), rows }
}

/// The later sessions, and the positions between the last one and the question.
fn singles(case: &CaseAnswers, answer: usize, span: &Span) -> Vec<CarrierPath> {
    let sessions = case.sessions(answer);
    let last = sessions.last().map_or(0, |last| last.end);
    let path =
        |carrier: &str, rows| CarrierPath { answer, span: span.clone(), carrier: carrier.to_owned(), rows };
    let later = sessions.iter().filter(|later| later.start >= span.end);
    let mut paths: Vec<CarrierPath> = later.map(|later| path(&later.label, later.range())).collect();
    if last < case.question(answer) {
        paths.push(path(BETWEEN, last..case.question(answer)));
    }
    paths
}

/// Paths that are still to be read of a case, as far as is known before they are: of an answer and session, all later rows at once and
/// single carriers.
fn missing(case: &CaseAnswers, log: &CauseLog, least: f64) -> (Vec<CarrierPath>, usize) {
    let (mut missing, mut found) = (Vec::new(), 0);
    for answer in 0..case.answers.len() {
        for span in evidence(case, answer) {
            let all = all(case, answer, &span);
            let looked_for = all.carried(case, log).is_none_or(|carried| carried.abs() >= least);
            let single = if looked_for { singles(case, answer, &span) } else { Vec::new() };
            let (done, left): (Vec<_>, Vec<_>) =
                std::iter::once(all).chain(single).partition(|path| path.carried(case, log).is_some());
            found += done.len();
            missing.extend(left);
        }
    }
    (missing, found)
}

/// The cost of these paths of a case, at most.
fn cost_of(missing: &[CarrierPath], case: &CaseAnswers, goes_back: bool) -> ReadingCost {
    let mut cost = ReadingCost { readings: missing.len(), ..ReadingCost::default() };
    let mut histories: Vec<(&[u32], &Range<usize>, usize)> = Vec::new();
    for path in missing {
        let (store, cut) = (&case.answers[path.answer], case.cut(path.answer));
        cost.histories = cost.histories.max(cut);
        cost.answers += store.tokens.len() - cut + store.generated.len().saturating_sub(1);
        let history = (&store.tokens[..cut], &path.rows, path.span.start);
        if !histories.contains(&history) {
            histories.push(history);
            cost.prefill += cut - if goes_back { path.rows.start.min(cut) } else { 0 };
        }
    }
    // The whole history, and again behind the rows that were read first.
    cost.prefill += 2 * cost.histories;
    cost
}

/// Takes a path and the change by it; returns whether to go on.
type TakeChange<'a> = &'a mut dyn FnMut(&CarrierPath, Change) -> Result<bool, CauseError>;

/// Reads paths in an order in which what is read again of a history is shared by answers, and begins earlier and earlier.
fn read_paths(
    case: &CaseAnswers,
    (metrics, kinds): (&[Metric], &[LayerKind]),
    paths: &[CarrierPath],
    session: &mut Session,
    go_on: &mut dyn FnMut(usize) -> bool,
    take: TakeChange<'_>,
) -> Result<bool, CauseError> {
    let history = |path: &CarrierPath| &case.answers[path.answer].tokens[..case.cut(path.answer)];
    // Only rows of the history make it another one.
    let inside = |path: &CarrierPath| match path.rows.is_empty() {
        true => (case.cut(path.answer), 0..0, 0),
        false => (path.rows.start.min(case.cut(path.answer)), path.rows.clone(), path.span.start),
    };
    let alike = |a: &CarrierPath, b: &CarrierPath| history(a) == history(b) && inside(a) == inside(b);
    let mut sorted: Vec<&CarrierPath> = paths.iter().collect();
    sorted.sort_by_cached_key(|path| {
        let (first, rows, span) = inside(path);
        (case.cut(path.answer), Reverse(first), rows.end, span, path.answer)
    });
    for group in sorted.chunk_by(|a, b| alike(a, b)) {
        let Some(first) = group.first() else { continue };
        let holes: Vec<LayerHoles> =
            group.iter().map(|path| path.holes(case.question(path.answer), kinds)).collect();
        let reading = |(path, holes)| {
            let path: &CarrierPath = path;
            (&metrics[path.answer], &case.answers[path.answer].tokens[case.cut(path.answer)..], holes)
        };
        let readings: Vec<_> = group.iter().copied().zip(&holes).map(reading).collect();
        let mut stored = Ok(true);
        let mut hear = |nth: usize, change: Change| {
            if matches!(stored, Ok(true)) {
                stored = take(group[nth], change);
            }
            matches!(stored, Ok(true))
        };
        let read = Metric::changes_together(session, &history(first).into(), &readings, go_on, &mut hear);
        let go_on = stored?;
        if unless_stopped(case.id(), read)?.is_none() || !go_on {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Measures what `folder` still lacks, and appends it. `model` must be the run's. `stop` is looked at after each chunk and reading.
pub(super) fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    (CarrierOptions { softmax_only, least }, of): (CarrierOptions, Measure),
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Measured, CauseError> {
    let kinds = model.engine().decoder().spec().layer_kinds();
    let goes_back = goes_back(&kinds);
    let mut log = CauseLog::open(&folder.dir, of, &kinds)?;
    let text = model.text().clone();
    let mut all = ReadingCost::default();
    for case in cases(folder, of, &text) {
        let case = case?;
        all += cost_of(&missing(&case, &log, least).0, &case, goes_back);
    }
    all.announce(
        "readings of carriers at most, fewer where hiding a session from all of them changes nothing",
    );
    windows(&kinds, (None, softmax_only))?;
    let mut steps = Steps::new("carriers", all.readings, show_progress);
    let mut measured = Measured::default();
    for case in cases(folder, of, &text) {
        let case = case?;
        let (missing, found) = missing(&case, &log, least);
        measured.skipped += found;
        if missing.is_empty() {
            continue;
        }
        let status = steps.status();
        status.begin(case.id(), "prefill");
        let cost = cost_of(&missing, &case, goes_back);
        let mut read = 0;
        let mut go_on = |tokens: usize| {
            read += tokens;
            status.prefill(read.min(cost.prefill), cost.prefill);
            !stop.load(Ordering::Relaxed)
        };

        // 1. The answers with nothing blocked.
        let session = model.session();
        session.take_usage();
        let begun = Instant::now();
        let answers = 0..case.answers.len();
        let metrics: Result<Vec<Metric>, _> = answers
            .map(|answer| Metric::read(session, &case.whole(answer), case.target(answer), &mut go_on))
            .collect();
        let Some(metrics) = unless_stopped(case.id(), metrics)? else { return Ok(measured.stopped()) };
        measured.histories.0 += begun.elapsed().as_secs_f64();
        measured.histories.1 += session.take_usage().0;

        // 2. The direct path alone; all later rows at once; one later session after the other, where all at once changed something.
        let begun = Instant::now();
        let mut direct: Vec<CarrierPath> =
            missing.iter().map(|path| self::direct(path.answer, &path.span)).collect();
        direct.dedup();
        let mut lost: BTreeMap<(usize, String), f64> = BTreeMap::new();
        let with = (metrics.as_slice(), kinds.as_slice());
        let mut whole = read_paths(&case, with, &direct, session, &mut go_on, &mut |path, change| {
            lost.insert((path.answer, path.span.label.clone()), metrics[path.answer].lost(&change));
            Ok(true)
        })?;
        let (at_once, single): (Vec<_>, Vec<_>) = missing.into_iter().partition(|path| path.carrier == ALL);
        for (nth, paths) in [at_once, single].into_iter().enumerate() {
            let holds = |path: &CarrierPath| {
                let all = self::all(&case, path.answer, &path.span);
                nth == 0 || all.carried(&case, &log).is_some_and(|carried| carried.abs() >= least)
            };
            let paths: Vec<CarrierPath> = paths.into_iter().filter(holds).collect();
            let mut take = |path: &CarrierPath, change: Change| {
                let direct = lost.get(&(path.answer, path.span.label.clone())).copied().unwrap_or(f64::NAN);
                let store = &case.answers[path.answer];
                log.append(store, &path.ablation(direct), &metrics[path.answer], change)?;
                measured.done += 1;
                let (id, probe) = (&store.case, &store.probe);
                steps.step(&format!("{id} {probe} {} by {}", path.span.label, path.carrier), None);
                Ok(!stop.load(Ordering::Relaxed))
            };
            whole = whole && read_paths(&case, with, &paths, session, &mut go_on, &mut take)?;
        }
        measured.readings.0 += begun.elapsed().as_secs_f64();
        measured.readings.1 += session.take_usage().0;
        if !whole {
            return Ok(measured.stopped());
        }
    }
    Ok(measured)
}
