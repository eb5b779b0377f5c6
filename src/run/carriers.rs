//! Carriers: the later sessions that hold what an answer owes to an earlier one indirectly.
//!
//! Called by `palimpsest causes --carriers`, for answers here and for contrasts in [`super::contrast_carriers`]. A session of the evidence is
//! hidden from everything from the question on, which leaves what later positions took over from it; then it is hidden from the rows of one
//! later session as well, which is read again with everything after it. What that takes from the answer beyond the first is what that session
//! carried. First it is hidden from all later rows at once: where that takes less than [`LEAST`], no single carrier is looked for. The paths
//! are blocked exactly, in all softmax layers. Rows go to `causes.jsonl` and are gone on with.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use palimpsest_core::attention::{Hole, LayerHoles, LayerKind};
use palimpsest_core::engine::{LocalModel, RequestError, Session};
use palimpsest_core::span::Span;

use super::cause_rows::{CarrierRow, CauseLine, Effect, open_log};
use super::causes::{Answer, CauseError, CauseOptions, Measured, layers_open, said, unless_stopped, windows};
use super::forced::effects_together;
use super::removal::{CaseAnswers, ReadingCost, SessionChoice, cases, goes_back};
use super::rows::AnswerKey;
use super::store::RunFolder;
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

/// An answer, the session that is hidden, and the carrier.
pub(super) type PathKey = (AnswerKey, String, String);

/// The loss by hiding a session from a carrier, beyond hiding it from the question on.
pub(super) type Carried = BTreeMap<PathKey, f64>;

/// Rows before the question from which a session is hidden, beside those from the question on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CarrierPath {
    /// The number of the answer among the case's.
    pub answer: usize,
    /// The session that is hidden.
    pub span: Span,
    /// The name of the carrier; empty where nothing but the direct path is blocked.
    pub carrier: String,
    /// Its tokens.
    pub rows: Range<usize>,
}

impl CarrierPath {
    pub(super) fn key(&self, case: &CaseAnswers) -> PathKey {
        let answer = AnswerKey::of_store(&case.answers[self.answer]).owned();
        (answer, self.span.label.clone(), self.carrier.clone())
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

/// Reads answers, or values in their place, with keys hidden.
pub(super) trait PathReader {
    /// An outcome of a reading.
    type Read;

    /// Reads answers after a history that they share: their numbers, the rest of their prompts, and the holes.
    fn read(
        &self,
        session: &mut Session,
        history: &Arc<[u32]>,
        readings: &[(usize, &[u32], &LayerHoles)],
        go_on: &mut dyn FnMut(usize) -> bool,
        sink: &mut dyn FnMut(usize, Self::Read) -> bool,
    ) -> Result<(), RequestError>;

    /// The loss by an outcome of an answer's reading: plain minus changed, in nats.
    fn lost(&self, answer: usize, read: &Self::Read) -> f64;
}

/// A path, what is lost by the direct path alone, and the outcome of its reading; returns whether to go on.
pub(super) type CarrierSink<'a, T> = &'a mut dyn FnMut(&CarrierPath, f64, T) -> Result<bool, CauseError>;

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
fn missing(case: &CaseAnswers, there: &Carried, least: f64) -> (Vec<CarrierPath>, usize) {
    let (mut missing, mut found) = (Vec::new(), 0);
    for answer in 0..case.answers.len() {
        for span in evidence(case, answer) {
            let all = all(case, answer, &span);
            let known = there.get(&all.key(case)).copied();
            let looked_for = known.is_none_or(|carried| carried.abs() >= least);
            let single = if looked_for { singles(case, answer, &span) } else { Vec::new() };
            let (done, left): (Vec<_>, Vec<_>) =
                std::iter::once(all).chain(single).partition(|path| there.contains_key(&path.key(case)));
            found += done.len();
            missing.extend(left);
        }
    }
    (missing, found)
}

/// Readings that the carriers of a case still take, at most.
fn cost_of_case(case: &CaseAnswers, (there, least): (&Carried, f64), goes_back: bool) -> ReadingCost {
    let (missing, _) = missing(case, there, least);
    let mut cost = ReadingCost { readings: missing.len(), ..ReadingCost::default() };
    let mut histories: Vec<(&[u32], &Range<usize>, usize)> = Vec::new();
    for path in &missing {
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

/// Reads the carriers of a case's answers as far as they are not there. Returns whether it came to the end.
///
/// # Errors
/// The model failed, or `sink` did.
pub(super) fn read_case<R: PathReader>(
    case: &CaseAnswers,
    (reader, kinds): (&R, &[LayerKind]),
    (there, least): (&Carried, f64),
    session: &mut Session,
    go_on: &mut dyn FnMut(usize) -> bool,
    sink: CarrierSink<'_, R::Read>,
) -> Result<bool, CauseError> {
    let (missing, _) = missing(case, there, least);
    let mut carried = there.clone();

    // 1. The direct path alone.
    let mut paths: Vec<CarrierPath> = missing.iter().map(|path| direct(path.answer, &path.span)).collect();
    paths.dedup();
    let mut lost: BTreeMap<PathKey, f64> = BTreeMap::new();
    let read = read_paths(case, (reader, kinds), &paths, session, go_on, &mut |path, read| {
        lost.insert(path.key(case), reader.lost(path.answer, &read));
        Ok(true)
    });
    if !read? {
        return Ok(false);
    }
    let directly = |path: &CarrierPath| {
        lost.get(&direct(path.answer, &path.span).key(case)).copied().unwrap_or(f64::NAN)
    };
    let mut take = |path: &CarrierPath, read: R::Read| {
        let direct = directly(path);
        carried.insert(path.key(case), reader.lost(path.answer, &read) - direct);
        sink(path, direct, read)
    };

    // 2. All later rows at once.
    let (all, single): (Vec<_>, Vec<_>) = missing.into_iter().partition(|path| path.carrier == ALL);
    if !read_paths(case, (reader, kinds), &all, session, go_on, &mut take)? {
        return Ok(false);
    }

    // 3. One later session after the other, where all at once changed something.
    let of_all = |path: &CarrierPath| CarrierPath { carrier: ALL.to_owned(), ..path.clone() }.key(case);
    let holds =
        |path: &&CarrierPath| carried.get(&of_all(path)).is_some_and(|carried| carried.abs() >= least);
    let single: Vec<CarrierPath> = single.iter().filter(holds).cloned().collect();
    let mut take = |path: &CarrierPath, read: R::Read| sink(path, directly(path), read);
    read_paths(case, (reader, kinds), &single, session, go_on, &mut take)
}

/// Takes the outcome of a path's reading; returns whether to go on.
type TakeRead<'a, T> = &'a mut dyn FnMut(&CarrierPath, T) -> Result<bool, CauseError>;

/// Reads paths in an order in which what is read again of a history is shared by answers, and begins earlier and earlier.
fn read_paths<R: PathReader>(
    case: &CaseAnswers,
    (reader, kinds): (&R, &[LayerKind]),
    paths: &[CarrierPath],
    session: &mut Session,
    go_on: &mut dyn FnMut(usize) -> bool,
    take: TakeRead<'_, R::Read>,
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
            (path.answer, &case.answers[path.answer].tokens[case.cut(path.answer)..], holes)
        };
        let readings: Vec<_> = group.iter().copied().zip(&holes).map(reading).collect();
        let mut stored = Ok(true);
        let mut hear = |nth: usize, read: R::Read| {
            stored = std::mem::replace(&mut stored, Ok(true)).and_then(|_| take(group[nth], read));
            matches!(stored, Ok(true))
        };
        let read = reader.read(session, &history(first).into(), &readings, go_on, &mut hear);
        let go_on = stored?;
        if unless_stopped(case.id(), read)?.is_none() || !go_on {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Answers of a case, with nothing blocked.
struct Answers<'a>(Vec<Answer<'a>>);

impl PathReader for Answers<'_> {
    type Read = Effect;

    fn read(
        &self,
        session: &mut Session,
        history: &Arc<[u32]>,
        readings: &[(usize, &[u32], &LayerHoles)],
        go_on: &mut dyn FnMut(usize) -> bool,
        sink: &mut dyn FnMut(usize, Effect) -> bool,
    ) -> Result<(), RequestError> {
        let of_answers = readings.iter().map(|&(answer, rest, holes)| (&self.0[answer], rest, holes));
        let readings: Vec<_> = of_answers.collect();
        effects_together(session, history, &readings, go_on, sink)
    }

    fn lost(&self, _: usize, read: &Effect) -> f64 {
        read.log_p_drop
    }
}

fn there<'a>(lines: impl IntoIterator<Item = &'a CauseLine>) -> Carried {
    let of = |line: &CauseLine| match line {
        CauseLine::Carrier(row) => {
            let answer = AnswerKey::of(&row.case, &row.probe, &row.condition).owned();
            Some(((answer, row.span.clone(), row.carrier.clone()), row.effect.log_p_drop - row.direct))
        }
        _ => None,
    };
    lines.into_iter().filter_map(of).collect()
}

/// A measurement of carriers, case by case, whatever is read.
pub(super) struct CarrierMeasurement<'a> {
    kinds: Vec<LayerKind>,
    there: Carried,
    least: f64,
    stop: &'a AtomicBool,
    steps: Steps,
    pub measured: Measured,
}

impl<'a> CarrierMeasurement<'a> {
    /// Of the cases, as far as rows are not `there`.
    ///
    /// # Errors
    /// A case cannot be read; [`CauseError::Linear`] where linear-attention layers are to be blocked.
    pub(super) fn new(
        cases: impl Iterator<Item = Result<CaseAnswers, CauseError>>,
        model: &LocalModel,
        (there, CarrierOptions { softmax_only, least }): (Carried, CarrierOptions),
        stop: &'a AtomicBool,
        show_progress: bool,
    ) -> Result<Self, CauseError> {
        let kinds = model.engine().decoder().spec().layer_kinds();
        let mut all = ReadingCost::default();
        for case in cases {
            all += cost_of_case(&case?, (&there, least), goes_back(&kinds));
        }
        all.announce(
            "readings of carriers at most, fewer where hiding a session from all of them changes nothing",
        );
        windows(&kinds, CauseOptions { softmax_only, ..CauseOptions::default() })?;
        let steps = Steps::new("carriers", all.readings, show_progress);
        Ok(CarrierMeasurement { kinds, there, least, stop, steps, measured: Measured::default() })
    }

    /// Measures what a case still lacks: `plain` reads all of its answers with nothing blocked, `append` stores the row of a path. Returns
    /// whether it came to the end.
    ///
    /// # Errors
    /// The model failed, or the row could not be stored.
    pub(super) fn measure<R: PathReader>(
        &mut self,
        case: &CaseAnswers,
        session: &mut Session,
        plain: impl FnOnce(&mut Session, &mut dyn FnMut(usize) -> bool) -> Result<R, RequestError>,
        mut append: impl FnMut(&R, &CarrierPath, f64, R::Read) -> Result<(), CauseError>,
    ) -> Result<bool, CauseError> {
        let CarrierMeasurement { kinds, there, least, stop, steps, measured } = self;
        let (missing, found) = missing(case, there, *least);
        measured.skipped += found;
        if missing.is_empty() {
            return Ok(true);
        }
        let status = steps.status();
        status.begin(case.id(), "prefill");
        let cost = cost_of_case(case, (there, *least), goes_back(kinds));
        let mut read = 0;
        let mut go_on = |tokens: usize| {
            read += tokens;
            status.prefill(read.min(cost.prefill), cost.prefill);
            !stop.load(Ordering::Relaxed)
        };
        session.take_usage();
        let begun = Instant::now();
        let Some(reader) = unless_stopped(case.id(), plain(session, &mut go_on))? else { return Ok(false) };
        measured.histories.0 += begun.elapsed().as_secs_f64();
        measured.histories.1 += session.take_usage().0;
        let begun = Instant::now();
        let mut sink = |path: &CarrierPath, direct: f64, read: R::Read| {
            append(&reader, path, direct, read)?;
            let AnswerKey { case, probe, .. } = AnswerKey::of_store(&case.answers[path.answer]);
            measured.done += 1;
            steps.step(&format!("{case} {probe} {} by {}", path.span.label, path.carrier), None);
            Ok(!stop.load(Ordering::Relaxed))
        };
        let whole = read_case(case, (&reader, kinds), (there, *least), session, &mut go_on, &mut sink)?;
        measured.readings.0 += begun.elapsed().as_secs_f64();
        measured.readings.1 += session.take_usage().0;
        Ok(whole)
    }
}

/// Measures what `folder` still lacks, and appends it. `model` must be the run's. `stop` is looked at after each chunk and reading.
///
/// # Errors
/// [`CauseError`], [`CauseError::Linear`] where linear-attention layers are to be blocked; a stop is none.
pub fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    options: CarrierOptions,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Measured, CauseError> {
    let mut log = open_log(&folder.dir)?;
    let there = (there(&log.rows), options);
    let mut all = CarrierMeasurement::new(cases(folder), model, there, stop, show_progress)?;
    let open = layers_open(&all.kinds, None);
    for case in cases(folder) {
        let case = case?;
        let plain = |session: &mut Session, go_on: &mut dyn FnMut(usize) -> bool| {
            let read = |(at, store)| Answer::read(session, &case.whole(at), said(store), go_on);
            case.answers.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>().map(Answers)
        };
        let append = |answers: &Answers<'_>, path: &CarrierPath, direct: f64, effect: Effect| {
            let (store, answer) = (&case.answers[path.answer], &answers.0[path.answer]);
            let row = CarrierRow {
                case: store.case.clone(),
                probe: store.probe.clone(),
                condition: store.condition.clone(),
                span: path.span.label.clone(),
                role: path.span.role.clone(),
                tokens: [path.span.start, path.span.end],
                carrier: path.carrier.clone(),
                carrier_tokens: [path.rows.start, path.rows.end],
                softmax_only: open.is_some(),
                layers_open: open,
                answer_tokens: answer.answer_tokens(),
                thought_tokens: answer.thought_tokens(),
                log_p: answer.log_p(),
                direct,
                effect,
            };
            Ok(log.append(CauseLine::Carrier(row))?)
        };
        if !all.measure(&case, model.session(), plain, append)? {
            return Ok(all.measured.stopped());
        }
    }
    Ok(all.measured)
}
