//! Carriers: the later sessions that hold what an answer owes to an earlier one indirectly.
//!
//! Called by `palimpsest causes --carriers`. A session of the evidence is hidden from everything from the question on, which leaves what later
//! positions took over from it; then it is hidden from the rows of one later session as well, which is read again with everything after it.
//! The effect beyond the first is what that session carried. First it is hidden from all later rows at once: where that takes less than
//! [`LEAST`], no single carrier is looked for. The paths are blocked exactly, in all softmax layers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use palimpsest_core::ablate::{EffectRow, Metric, Reading, hide};
use palimpsest_core::attention::LayerHoles;
use palimpsest_core::engine::Session;
use palimpsest_core::span::Span;

use super::case::{CaseAnswers, ReadingCost, SessionChoice, goes_back};
use super::contrast_rows::AblationKind;
use super::log::{Ablation, CauseLog};
use super::{CauseError, Measured, Task, unless_stopped, windows};
use crate::progress::Steps;

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
struct CarrierPath {
    /// The number of the answer among the case's.
    answer: usize,
    span: Span,
    /// The name of the carrier; empty where nothing but the direct path is blocked.
    carrier: String,
    rows: Range<usize>,
}

impl CarrierPath {
    /// All later rows of a session at once.
    fn all(case: &CaseAnswers<'_>, answer: usize, span: &Span) -> Self {
        let rows = span.end..case.prompt(answer).question;
        CarrierPath { answer, span: span.clone(), carrier: ALL.to_owned(), rows }
    }

    fn direct(&self) -> Self {
        CarrierPath { carrier: String::new(), rows: 0..0, ..self.clone() }
    }

    /// `direct` is the drop by the direct path alone.
    fn ablation(&self, direct: f64) -> Ablation {
        let carrier = Some((self.carrier.clone(), self.rows.clone()));
        Ablation { carrier, direct, ..Ablation::of(AblationKind::Carried, &self.span) }
    }

    /// The loss that was measured, beyond that by the direct path alone.
    fn carried(&self, case: &CaseAnswers<'_>, log: &CauseLog) -> Option<f64> {
        log.drop(&case.answers[self.answer], &self.ablation(0.0))
    }

    fn holes(&self, case: &CaseAnswers<'_>) -> LayerHoles {
        let (prompt, keys) = (case.prompt(self.answer), [self.span.range()]);
        let from_question = prompt.hidden(&keys, None);
        match self.rows.is_empty() {
            true => from_question,
            false => hide(self.rows.clone(), &keys, None, prompt.kinds).joined(&from_question),
        }
    }
}

/// The later sessions, and the positions between the last one and the question.
fn singles(case: &CaseAnswers<'_>, answer: usize, span: &Span) -> Vec<CarrierPath> {
    let (sessions, question) = (case.sessions(answer), case.prompt(answer).question);
    let last = sessions.last().map_or(0, |last| last.end);
    let path =
        |carrier: &str, rows| CarrierPath { answer, span: span.clone(), carrier: carrier.to_owned(), rows };
    let later = sessions.iter().filter(|later| later.start >= span.end);
    let between = (last < question).then(|| path(BETWEEN, last..question));
    later.map(|later| path(&later.label, later.range())).chain(between).collect()
}

/// Paths that are still to be read of a case, as far as is known before they are: of an answer and a session of the evidence, all later rows
/// at once and single carriers.
fn missing(case: &CaseAnswers<'_>, log: &CauseLog, least: f64) -> (Vec<CarrierPath>, usize) {
    let (mut missing, mut found) = (Vec::new(), 0);
    for answer in 0..case.answers.len() {
        for span in case.sessions(answer).into_iter().filter(|span| SessionChoice::Evidence.holds(span)) {
            let all = CarrierPath::all(case, answer, span);
            let looked_for = all.carried(case, log).is_none_or(|carried| carried.abs() >= least);
            let single = if looked_for { singles(case, answer, span) } else { Vec::new() };
            let (done, left): (Vec<_>, Vec<_>) =
                std::iter::once(all).chain(single).partition(|path| path.carried(case, log).is_some());
            found += done.len();
            missing.extend(left);
        }
    }
    (missing, found)
}

/// The cost of these paths of a case, at most.
fn cost_of(missing: &[CarrierPath], case: &CaseAnswers<'_>, goes_back: bool) -> ReadingCost {
    let mut cost = ReadingCost { readings: missing.len(), ..ReadingCost::default() };
    let mut histories: Vec<(&[u32], &Range<usize>, usize)> = Vec::new();
    for path in missing {
        let prompt = case.prompt(path.answer);
        let cut = prompt.cut;
        cost.histories = cost.histories.max(cut);
        cost.answers += case.own_tokens(path.answer);
        let history = (&case.answers[path.answer].tokens[..cut], &path.rows, path.span.start);
        if !histories.contains(&history) {
            histories.push(history);
            cost.prefill += cut - if goes_back { path.rows.start.min(cut) } else { 0 };
        }
    }
    // The whole history, and again behind the rows that were read first.
    cost.prefill += 2 * cost.histories;
    cost
}

/// Takes a path and its effect; returns whether to go on.
type TakeRow<'a> = &'a mut dyn FnMut(&CarrierPath, EffectRow) -> Result<bool, CauseError>;

/// Reads paths in an order in which what is read again of a history is shared by answers, and begins earlier and earlier.
fn read_paths(
    case: &CaseAnswers<'_>,
    metrics: &[Metric],
    paths: &[CarrierPath],
    session: &mut Session,
    go_on: &mut dyn FnMut(usize) -> bool,
    take: TakeRow<'_>,
) -> Result<bool, CauseError> {
    let history = |path: &CarrierPath| case.prompt(path.answer).history();
    // Only rows of the history make it another one.
    let inside = |path: &CarrierPath| {
        let cut = case.prompt(path.answer).cut;
        match path.rows.is_empty() {
            true => (cut, 0..0, 0),
            false => (path.rows.start.min(cut), path.rows.clone(), path.span.start),
        }
    };
    let alike =
        |a: &CarrierPath, b: &CarrierPath| inside(a) == inside(b) && history(a).tokens == history(b).tokens;
    let mut sorted: Vec<&CarrierPath> = paths.iter().collect();
    sorted.sort_by_cached_key(|path| {
        let (first, rows, span) = inside(path);
        (case.prompt(path.answer).cut, Reverse(first), rows.end, span, path.answer)
    });
    for group in sorted.chunk_by(|a, b| alike(a, b)) {
        let Some(first) = group.first() else { continue };
        let holes: Vec<LayerHoles> = group.iter().map(|path| path.holes(case)).collect();
        let reading = |(path, holes): (&&CarrierPath, _)| -> Reading<'_> {
            (&metrics[path.answer], history(path).rest, holes)
        };
        let readings: Vec<_> = group.iter().zip(&holes).map(reading).collect();
        let mut stored = Ok(true);
        let mut hear = |nth: usize, row: EffectRow| {
            if matches!(stored, Ok(true)) {
                stored = take(group[nth], row);
            }
            matches!(stored, Ok(true))
        };
        let read = Metric::effects_together(session, &history(first).tokens, &readings, go_on, &mut hear);
        let go_on = stored?;
        if unless_stopped(case.id(), read)?.is_none() || !go_on {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn measure(
    task: &Task<'_>,
    session: &mut Session,
    CarrierOptions { softmax_only, least }: CarrierOptions,
) -> Result<Measured, CauseError> {
    let goes_back = goes_back(&task.kinds);
    let mut log = CauseLog::open(task)?;
    let mut all = ReadingCost::default();
    for case in task.cases() {
        let case = case?;
        all += cost_of(&missing(&case, &log, least).0, &case, goes_back);
    }
    all.announce(
        "readings of carriers at most, fewer where hiding a session from all of them changes nothing",
    );
    windows(&task.kinds, (None, softmax_only))?;
    let mut steps = Steps::new("carriers", all.readings, task.show);
    let mut measured = Measured::default();
    for case in task.cases() {
        let case = case?;
        let (missing, found) = missing(&case, &log, least);
        measured.skipped += found;
        if missing.is_empty() {
            continue;
        }
        steps.status().begin(case.id(), "prefill");
        let mut go_on = task.hears(steps.status(), cost_of(&missing, &case, goes_back).prefill);

        // 1. The answers with nothing blocked.
        session.take_usage();
        let begun = Instant::now();
        let plain =
            |answer| Metric::read(session, &case.prompt(answer).history(), case.target(answer), &mut go_on);
        let metrics: Result<Vec<Metric>, _> = (0..case.answers.len()).map(plain).collect();
        let Some(metrics) = unless_stopped(case.id(), metrics)? else { return Ok(measured.stopped()) };
        measured.histories.0 += begun.elapsed().as_secs_f64();
        measured.histories.1 += session.take_usage().0;

        // 2. The direct path alone; all later rows at once; one later session after the other, where all at once changed something.
        let begun = Instant::now();
        let mut direct: Vec<CarrierPath> = missing.iter().map(CarrierPath::direct).collect();
        direct.dedup();
        let mut lost: BTreeMap<(usize, String), f64> = BTreeMap::new();
        let mut whole = read_paths(&case, &metrics, &direct, session, &mut go_on, &mut |path, row| {
            lost.insert((path.answer, path.span.label.clone()), metrics[path.answer].lost(&row));
            Ok(true)
        })?;
        let (at_once, single): (Vec<_>, Vec<_>) = missing.into_iter().partition(|path| path.carrier == ALL);
        for (nth, paths) in [at_once, single].into_iter().enumerate() {
            let holds = |path: &CarrierPath| {
                let all = CarrierPath::all(&case, path.answer, &path.span);
                nth == 0 || all.carried(&case, &log).is_some_and(|carried| carried.abs() >= least)
            };
            let paths: Vec<CarrierPath> = paths.into_iter().filter(holds).collect();
            let mut take = |path: &CarrierPath, row: EffectRow| {
                let direct = lost.get(&(path.answer, path.span.label.clone())).copied().unwrap_or(f64::NAN);
                let store = &case.answers[path.answer];
                log.append(store, &path.ablation(direct), &metrics[path.answer], row)?;
                measured.done += 1;
                let (id, probe) = (&store.case, &store.probe);
                steps.step(&format!("{id} {probe} {} by {}", path.span.label, path.carrier), None);
                Ok(task.goes_on())
            };
            whole = whole && read_paths(&case, &metrics, &paths, session, &mut go_on, &mut take)?;
        }
        measured.readings.0 += begun.elapsed().as_secs_f64();
        measured.readings.1 += session.take_usage().0;
        if !whole {
            return Ok(measured.stopped());
        }
    }
    Ok(measured)
}
