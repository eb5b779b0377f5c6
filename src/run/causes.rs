//! Effect of each session on an answer: its path to the question and the answer is blocked, and the answer read again.
//!
//! Called by `palimpsest causes` on a finished run. The attention files hold the prompts' tokens, their spans and what was
//! generated, so that no data set is needed. The history's cache is made once a case; of each reading only the tokens from the
//! question on are computed, those of many readings together. Beside the sessions a pool of random stretches is blocked as controls
//! ([`super::control_pool`]). Rows go to `causes.jsonl` in the run's folder, which is appended to and gone on with.
//!
//! Direct paths alone are blocked: what other sessions took over from a blocked one still arrives.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::cause_rows::open_log;
pub use super::cause_rows::{CAUSES, CauseLine, CauseRow, ControlRow, Effect, read_causes, read_controls};
use super::control_pool::pool;
use super::error::RunError;
pub use super::forced::{Answer, History, Said};
use super::rows::{AnswerKey, AnswerRow};
use super::session_measures::{SessionMeasures, measures_path, sessions};
use super::store::RunFolder;
use crate::benchmarks::QUERY;
use crate::ground::jsonl::JsonlError;
use crate::progress::Steps;
use palimpsest_core::attention::{AttentionStore, Hole, LayerHoles, LayerKind};
use palimpsest_core::engine::{EngineError, LocalModel, RequestError};
use palimpsest_core::span::Span;

/// Which paths to block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CauseOptions {
    /// Seed of the controls' pool.
    pub seed: u64,
    /// Layers of a window, of which each is blocked by itself; all layers at once where absent.
    pub windows: Option<usize>,
    /// True if only the softmax layers of a model with linear-attention layers are blocked.
    pub softmax_only: bool,
    /// Stretches of the pool of controls of a case: a reading each of every answer and window.
    pub controls: usize,
}

/// Why causes cannot be measured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages print
pub enum CauseError {
    /// The folder or the disk.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A file of rows.
    #[error(transparent)]
    Rows(#[from] JsonlError),
    /// A linear-attention layer among those to block.
    #[error(
        "layer {layer} is a linear-attention layer, which keeps no keys that could be hidden; block the softmax layers alone with \
         --softmax-only"
    )]
    Linear { layer: usize },
    /// An attention file without what is needed.
    #[error("case {case}, probe {probe}: {why}")]
    Unusable { case: String, probe: String, why: &'static str },
    /// The neutral text that stands in the place of sessions.
    #[error("the neutral text cannot be tokenised for this model: {0}")]
    Neutral(palimpsest_core::text::TextError),
    /// The model.
    #[error("case {case}: {source}")]
    Model { case: String, source: anyhow::Error },
}

/// Progress of a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    /// Rows that were there already.
    pub skipped: usize,
    /// Rows that were added.
    pub done: usize,
    /// True if a stop was asked for before the end.
    pub stopped: bool,
    /// Of histories: seconds and tokens.
    pub histories: (f64, usize),
    /// Of readings with paths blocked: seconds and tokens.
    pub readings: (f64, usize),
}

impl Measured {
    pub(super) fn stopped(self) -> Self {
        Measured { stopped: true, ..self }
    }
}

/// The outcome of a reading for a case; `None` where it was interrupted.
pub(super) fn unless_stopped<T>(case: &str, read: Result<T, RequestError>) -> Result<Option<T>, CauseError> {
    match read {
        Err(RequestError::Engine(EngineError::Interrupted)) => Ok(None),
        read => {
            read.map(Some).map_err(|error| CauseError::Model { case: case.to_owned(), source: error.into() })
        }
    }
}

/// The layers to block, window by window; a window without softmax layers is left out.
///
/// # Errors
/// [`CauseError::Linear`].
pub fn windows(kinds: &[LayerKind], options: CauseOptions) -> Result<Vec<Option<Range<usize>>>, CauseError> {
    let linear = kinds.iter().position(|kind| *kind == LayerKind::Linear);
    if let Some(layer) = linear.filter(|_| !options.softmax_only) {
        return Err(CauseError::Linear { layer });
    }
    let Some(width) = options.windows else { return Ok(vec![None]) };
    let all = (0..kinds.len()).step_by(width.max(1)).map(|start| start..(start + width).min(kinds.len()));
    let softmax = |layers: &Range<usize>| kinds[layers.clone()].iter().any(|kind| *kind != LayerKind::Linear);
    Ok(all.filter(softmax).map(Some).collect())
}

/// Keys of an answer's history that may be blocked.
enum Keys<'a> {
    Session(&'a Span),
    /// One of the pool of controls, by its number.
    Stretch(usize, Range<usize>),
}

impl Keys<'_> {
    fn range(&self) -> Range<usize> {
        match self {
            Keys::Session(span) => span.range(),
            Keys::Stretch(_, range) => range.clone(),
        }
    }
}

/// A path that may be blocked: from the question on to some keys, at some layers or all.
struct Path<'a> {
    keys: Keys<'a>,
    layers: Option<Range<usize>>,
}

/// An answer, a session (empty for a control's stretch), its tokens, the layers, and the seed.
type Key = (AnswerKey, String, [usize; 2], Option<[usize; 2]>, u64);

fn key(line: &CauseLine) -> Option<Key> {
    match line {
        CauseLine::Blocked(CauseRow { case, probe, condition, span, tokens, layers, seed, .. }) => {
            let answer = AnswerKey::of(case, probe, condition).owned();
            Some((answer, span.clone(), *tokens, *layers, *seed))
        }
        CauseLine::Control(ControlRow { case, probe, condition, tokens, layers, seed, .. }) => {
            let answer = AnswerKey::of(case, probe, condition).owned();
            Some((answer, String::new(), *tokens, *layers, *seed))
        }
        _ => None,
    }
}

struct RowsOfAnswer<'a> {
    store: &'a AttentionStore,
    kinds: &'a [LayerKind],
    seed: u64,
}

impl RowsOfAnswer<'_> {
    fn key(&self, path: &Path<'_>) -> Key {
        let span = match &path.keys {
            Keys::Session(span) => span.label.clone(),
            Keys::Stretch(..) => String::new(),
        };
        let range = path.keys.range();
        let layers = path.layers.as_ref().map(|layers| [layers.start, layers.end]);
        (AnswerKey::of_store(self.store).owned(), span, [range.start, range.end], layers, self.seed)
    }

    fn row(&self, path: &Path<'_>, answer: &Answer<'_>, effect: Effect) -> CauseLine {
        let (AnswerKey { case, probe, condition }, span, tokens, layers, seed) = self.key(path);
        let softmax_only = self.kinds.contains(&LayerKind::Linear);
        let (answer_tokens, log_p) = (answer.answer_tokens(), answer.log_p());
        match &path.keys {
            Keys::Session(session) => CauseLine::Blocked(CauseRow {
                case,
                probe,
                condition,
                span,
                role: session.role.clone(),
                tokens,
                layers,
                seed,
                softmax_only,
                layers_open: layers_open(self.kinds, path.layers.as_ref()),
                answer_tokens,
                thought_tokens: answer.thought_tokens(),
                log_p,
                effect,
            }),
            Keys::Stretch(stretch, _) => CauseLine::Control(ControlRow {
                case,
                probe,
                condition,
                stretch: *stretch,
                tokens,
                layers,
                seed,
                softmax_only,
                answer_tokens,
                log_p,
                effect,
            }),
        }
    }
}

/// Of some layers, or all, the share that are linear-attention layers, through which everything is still seen; `None` where none is.
pub(super) fn layers_open(kinds: &[LayerKind], layers: Option<&Range<usize>>) -> Option<f64> {
    let named = layers.map_or(kinds, |layers| kinds.get(layers.clone()).unwrap_or_default());
    let open = named.iter().filter(|kind| **kind == LayerKind::Linear).count();
    (open > 0).then(|| open as f64 / named.len() as f64)
}

/// Measures what `folder` still lacks, and appends it. `model` must be the run's. `stop` is looked at after each group of readings.
///
/// # Errors
/// [`CauseError`]; a stop is none.
pub fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    options: CauseOptions,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Measured, CauseError> {
    let kinds = model.engine().decoder().spec().layer_kinds();
    let windows = windows(&kinds, options)?;
    let mut log = open_log(&folder.dir)?;
    let mut there: BTreeSet<Key> = log.rows.iter().filter_map(key).collect();
    let asked = asked(folder);
    let (mut measured, mut steps) = (Measured::default(), Steps::new("answers", asked.len(), show_progress));
    for rows in asked.chunk_by(|a, b| a.case == b.case) {
        // The answers to a case, whose prompts begin alike.
        let mut held = false;
        let before = measured.histories.0;
        let stores = answered(folder, rows)?;
        let shared = shared(&stores);
        for store in &stores {
            let name = super::condition::named(&store.probe, &store.condition);
            let query =
                store.keys.iter().find(|span| span.is(QUERY)).ok_or_else(|| unusable(store, NO_QUERY))?;
            let ranges: Vec<Range<usize>> = sessions(store).map(Span::range).collect();
            let stretches = pool((options.controls, options.seed), &store.case, &ranges, &taken(&store.keys));
            let paths = windows.iter().flat_map(|layers| {
                let stretches = stretches.iter().cloned().enumerate();
                let all = sessions(store)
                    .map(Keys::Session)
                    .chain(stretches.map(|(nth, range)| Keys::Stretch(nth, range)));
                all.map(move |keys| Path { keys, layers: layers.clone() })
            });
            let rows = RowsOfAnswer { store, kinds: &kinds, seed: options.seed };
            let (done, missing): (Vec<_>, Vec<_>) = paths.partition(|path| there.contains(&rows.key(path)));
            measured.skipped += done.len();
            let measures = measures_path(&folder.dir, &store.case, &store.probe, &store.condition);
            let has_measures = SessionMeasures::is_there(&measures);
            if missing.is_empty() && has_measures {
                steps.step(&format!("{} {name}", store.case), None);
                continue;
            }

            let status = steps.status();
            status.begin(&format!("{} {name}", store.case), "prefill");
            let session = model.session();
            let (begun, mut read) = (Instant::now(), 0);
            let histories = &mut measured.histories;
            let mut go_on = |tokens: usize| {
                // The first tokens are the history's, where it is not in the cache.
                let history = if held { 0 } else { shared };
                if read < history {
                    histories.0 = before + begun.elapsed().as_secs_f64();
                    histories.1 += tokens.min(history - read);
                    read += tokens;
                    status.prefill(read.min(history), history);
                }
                !stop.load(Ordering::Relaxed)
            };

            // 1. What the answer as it was reads of each session, and the history before it, once a case.
            if !has_measures {
                let read = SessionMeasures::read(session, store, shared, &mut go_on);
                let Some(read) = unless_stopped(&store.case, read)? else { return Ok(measured.stopped()) };
                read.save(&measures, store)?;
            }

            // 2. Its probability, then with each path blocked.
            let history = History { tokens: store.tokens[..shared].into(), rest: &store.tokens[shared..] };
            let answer = Answer::read(session, &history, said(store), &mut go_on);
            let Some(answer) = unless_stopped(&store.case, answer)? else { return Ok(measured.stopped()) };
            held = true;
            status.begin(&format!("{} {name}", store.case), "blocking");
            let hide = |path: &Path<'_>| {
                let layers = path.layers.clone().unwrap_or(0..kinds.len());
                let hole = Hole { rows: query.start..usize::MAX, keys: path.keys.range() };
                LayerHoles::at_softmax(&layers, &kinds, vec![hole])
            };
            let holes: Vec<LayerHoles> = missing.iter().map(hide).collect();
            let begun = Instant::now();
            let (mut stored, mut blocked) = (Ok(()), 0);
            let mut take = |nth: usize, effect: Effect| {
                let path = &missing[nth];
                there.insert(rows.key(path));
                stored =
                    std::mem::replace(&mut stored, Ok(())).and(log.append(rows.row(path, &answer, effect)));
                blocked += 1;
                status.prefill(blocked, missing.len());
                stored.is_ok() && !stop.load(Ordering::Relaxed)
            };
            let mut heard = |_: usize| !stop.load(Ordering::Relaxed);
            let read = answer.effects(session, &history, &holes, &mut heard, &mut take);
            measured.readings.0 += begun.elapsed().as_secs_f64();
            measured.readings.1 += blocked * answer.tokens();
            measured.done += blocked;
            stored?;
            if unless_stopped(&store.case, read)?.is_none() || stop.load(Ordering::Relaxed) {
                return Ok(measured.stopped());
            }
            steps.step(&format!("{} {name}", store.case), None);
        }
    }
    Ok(measured)
}

const NO_ANSWER: &str = "its attention file has no tokens of the answer; it is of a version that did not record them, so run it again";
pub(super) const NO_QUERY: &str =
    "its attention file has no span `query`, from which on sessions could be blocked";

pub(super) fn unusable(store: &AttentionStore, why: &'static str) -> CauseError {
    CauseError::Unusable { case: store.case.clone(), probe: store.probe.clone(), why }
}

/// The answers whose causes are measured: those with an attention file and tokens of their own, under conditions that block nothing.
pub fn asked(folder: &RunFolder) -> Vec<&AnswerRow> {
    let has_tokens = |row: &&AnswerRow| row.completion_tokens.is_none_or(|tokens| tokens > 0);
    open(folder).filter(has_tokens).collect()
}

/// Those with an attention file, under conditions that block nothing.
pub fn open(folder: &RunFolder) -> impl Iterator<Item = &AnswerRow> {
    let conditions = folder.header.identity.conditions_or_plain();
    let open = move |row: &&AnswerRow| {
        conditions.iter().any(|condition| condition.name == row.condition && condition.knockout.is_none())
    };
    let answered = |row: &&AnswerRow| row.error.is_none() && row.attention.is_some();
    folder.answers.iter().filter(open).filter(answered)
}

/// The attention files of answers, but of those that are nothing behind their thought.
///
/// # Errors
/// [`CauseError::Unusable`] of one that lacks what is read again, and those of the files.
pub(super) fn answered(folder: &RunFolder, rows: &[&AnswerRow]) -> Result<Vec<AttentionStore>, CauseError> {
    let stores = rows.iter().map(|row| folder.attention(row));
    let mut stores: Vec<AttentionStore> =
        stores.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    for store in &stores {
        if store.generated.is_empty() {
            return Err(unusable(store, NO_ANSWER));
        }
        if !store.keys.iter().any(|span| span.is(QUERY)) {
            return Err(unusable(store, NO_QUERY));
        }
    }
    stores.retain(|store| store.thought() < store.generated.len());
    Ok(stores)
}

/// The tokens generated for a probe.
pub fn said(store: &AttentionStore) -> Said<'_> {
    Said { tokens: &store.generated, thought: store.thought() }
}

/// Common prefix of a case's prompts, in tokens, before the first question.
pub fn shared(stores: &[impl Borrow<AttentionStore>]) -> usize {
    let stores: Vec<&AttentionStore> = stores.iter().map(Borrow::borrow).collect();
    let Some((first, others)) = stores.split_first() else { return 0 };
    let alike =
        |other: &&AttentionStore| first.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
    let before = |store: &AttentionStore| store.keys.iter().filter(|s| s.is(QUERY)).map(|s| s.start).min();
    let least = others.iter().map(alike).min().unwrap_or(first.tokens.len());
    stores.iter().copied().filter_map(before).min().unwrap_or(0).min(least)
}

/// Ranges that controls must not touch: all spans with a role, but the question.
pub fn taken(spans: &[Span]) -> Vec<Range<usize>> {
    spans.iter().filter(|span| span.role.is_some() && !span.is(QUERY)).map(Span::range).collect()
}
