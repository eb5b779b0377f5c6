//! Carriers: later sessions that pass on the indirect effect of an evidence session.
//!
//! Called by `palimpsest causes --carriers`. A session is hidden from the question on, then also from the rows of one later session, which
//! is recomputed with everything after it. The additional drop is the part carried by that later session. If hiding it from all later rows
//! adds less than [`LEAST`], single carriers are skipped. Blocking is exact and covers all softmax layers.

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
use super::{Measured, Task, all_read, unless_stopped, windows};
use crate::progress::{Steps, Work};

/// Carrier name: all positions after the session.
pub const ALL: &str = "all";
/// Carrier name: the positions between the last session and the question.
pub const BETWEEN: &str = "between";
/// Default threshold in nats per answer token: single carriers are read only if hiding a session from all later rows adds at least this
/// drop.
pub const LEAST: f64 = 0.01;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CarrierOptions {
    pub softmax_only: bool,
    pub least: f64,
}

/// Rows before the question from which a session is hidden, in addition to those from the question on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CarrierPath {
    answer: usize,
    span: Span,
    /// Carrier name; empty for the direct path alone.
    carrier: String,
    rows: Range<usize>,
}

impl CarrierPath {
    fn all(case: &CaseAnswers<'_>, answer: usize, span: &Span) -> Self {
        let rows = span.end..case.prompt(answer).question;
        CarrierPath { answer, span: span.clone(), carrier: ALL.to_owned(), rows }
    }

    fn direct(&self) -> Self {
        CarrierPath { carrier: String::new(), rows: 0..0, ..self.clone() }
    }

    /// `direct`: drop by the direct path alone.
    fn ablation(&self, direct: f64) -> Ablation {
        let carrier = Some((self.carrier.clone(), self.rows.clone()));
        Ablation { carrier, direct, ..Ablation::of(AblationKind::Carried, &self.span) }
    }

    /// Measured drop beyond the direct path's.
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

/// Each later session, and the positions between the last one and the question.
fn singles(case: &CaseAnswers<'_>, answer: usize, span: &Span) -> Vec<CarrierPath> {
    let (sessions, question) = (case.sessions(answer), case.prompt(answer).question);
    let last = sessions.last().map_or(0, |last| last.end);
    let path =
        |carrier: &str, rows| CarrierPath { answer, span: span.clone(), carrier: carrier.to_owned(), rows };
    let later = sessions.iter().filter(|later| later.start >= span.end);
    let between = (last < question).then(|| path(BETWEEN, last..question));
    later.map(|later| path(&later.label, later.range())).chain(between).collect()
}

/// Remaining paths of a case, as far as known before reading: all later rows and single carriers per answer and evidence session. Also
/// returns the number already measured.
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

/// Upper bound.
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
    cost.prefill += 2 * cost.histories;
    cost
}

type TakeRow<'a> = &'a mut dyn FnMut(&CarrierPath, EffectRow) -> anyhow::Result<bool>;

/// Reads paths ordered so that answers share recomputed histories and the start of recomputation moves backwards.
fn read_paths(
    case: &CaseAnswers<'_>,
    metrics: &[Metric],
    paths: &[CarrierPath],
    session: &mut Session,
    go_on: &mut dyn FnMut(usize) -> bool,
    take: TakeRow<'_>,
) -> anyhow::Result<bool> {
    let history = |path: &CarrierPath| case.prompt(path.answer).history();
    // Only blocked rows inside the history change it.
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
        let whole = all_read(case.id(), &mut |nth, row| take(group[nth], row), |sink| {
            Metric::effects_together(session, &history(first).tokens, &readings, go_on, sink)
        })?;
        if !whole {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn measure(
    task: &Task<'_>,
    session: &mut Session,
    CarrierOptions { softmax_only, least }: CarrierOptions,
) -> anyhow::Result<Measured> {
    let goes_back = goes_back(&task.kinds);
    let mut log = CauseLog::open(task)?;
    let what = "forward passes at most (fewer if hiding a session from all later ones changes nothing)";
    let mut left = task.announced(what, |case| cost_of(&missing(case, &log, least).0, case, goes_back))?;
    windows(&task.kinds, (None, softmax_only))?;
    let mut steps = Steps::new("carriers", left.readings, task.show).brief(true);
    let mut measured = Measured::default();
    for case in task.cases() {
        let case = case?;
        let (missing, found) = missing(&case, &log, least);
        measured.skipped += found;
        if missing.is_empty() {
            continue;
        }
        let status = steps.status();
        status.begin(case.id(), "prefill");
        let mut go_on = task.hears(steps.status(), &mut left, cost_of(&missing, &case, goes_back));

        session.take_usage();
        let begun = Instant::now();
        let plain =
            |answer| Metric::read(session, &case.prompt(answer).history(), case.target(answer), &mut go_on);
        let metrics: Result<Vec<Metric>, _> = (0..case.answers.len()).map(plain).collect();
        let Some(metrics) = unless_stopped(case.id(), metrics)? else { return Ok(measured.stopped()) };
        measured.histories.0 += begun.elapsed().as_secs_f64();
        measured.histories.1 += session.take_usage().0;

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
                status.did(Work::Answer, case.own_tokens(path.answer));
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
