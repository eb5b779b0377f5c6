//! What an answer owes to each session: its path to the question and the answer is blocked, and the answer read again.
//!
//! Called by `palimpsest causes` on a finished run. The attention files hold the prompts' tokens, their spans and what was
//! generated, so that no data set is needed. The history's cache is made once a case; of each reading only the tokens from the
//! question on are computed, those of many readings together. Rows go to `causes.jsonl` in the run's folder, which is appended
//! to and gone on with.
//!
//! Direct paths alone are blocked: what other sessions took over from a blocked one still arrives.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub use super::cause_rows::{CAUSES, CauseLine, CauseRow, Control, Effect, read_causes};
use super::error::RunError;
use super::jsonl::RowLog;
use super::rows::AnswerRow;
use super::session_measures::{SessionMeasures, measures_path, sessions};
use super::store::RunFolder;
use crate::attention::{AttentionStore, Hole, LayerHoles, LayerKind, NoObserver};
use crate::benchmarks::QUERY;
use crate::data::draw::Draws;
use crate::engine::{Engine, EngineError, Likelihood, LocalModel, Parts};
use crate::model::Cache;
use crate::progress::Steps;
use crate::prompt::Span;
use candle_core::Tensor;
use rayon::prelude::*;

/// Which paths to block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CauseOptions {
    /// Seed of the controls.
    pub seed: u64,
    /// Layers of a window, of which each is blocked by itself; all layers at once where absent.
    pub windows: Option<usize>,
    /// Whether only the softmax layers of a model with linear-attention layers are blocked.
    pub softmax_only: bool,
    /// Which sessions get a control.
    pub controls: Controls,
}

/// Which sessions have a random stretch of as many tokens blocked beside them, at the cost of a reading more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Controls {
    /// Every session.
    #[default]
    All,
    /// Those that play a part.
    Evidence,
    /// None.
    No,
}

impl Controls {
    fn has(self, session: &Span) -> bool {
        match self {
            Controls::All => true,
            Controls::Evidence => session.role.is_some(),
            Controls::No => false,
        }
    }
}

/// Why causes cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum CauseError {
    /// The folder or the disk.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A linear-attention layer among those to block.
    #[error(
        "layer {layer} is a linear-attention layer, which keeps no keys that could be hidden; block the softmax layers alone with \
         --softmax-only"
    )]
    Linear {
        /// The first such layer.
        layer: usize,
    },
    /// An attention file without what is needed.
    #[error("case {case}, probe {probe}: {why}")]
    Unusable {
        /// The case's id.
        case: String,
        /// The probe's id.
        probe: String,
        /// What is missing.
        why: &'static str,
    },
    /// The model.
    #[error("case {case}: {source}")]
    Model {
        /// The case's id.
        case: String,
        /// What failed.
        source: anyhow::Error,
    },
}

/// How far it came.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    /// Rows that were there already.
    pub skipped: usize,
    /// Rows that were added.
    pub done: usize,
    /// Whether a stop was asked for before the end.
    pub stopped: bool,
    /// Of histories: seconds and tokens.
    pub histories: (f64, usize),
    /// Of readings with paths blocked: seconds and tokens.
    pub readings: (f64, usize),
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

/// An answer under teacher forcing, with nothing blocked.
pub struct Answer<'a> {
    /// What is read after the cache: the prompt's rest, and the answer without its last token.
    tokens: Vec<u32>,
    generated: &'a [u32],
    /// Of the first token.
    first: Vec<f64>,
    log_p: f64,
    likeliest: Vec<bool>,
}

/// What a reading tells of an answer.
struct Read {
    first: Vec<f64>,
    sum: f64,
    likeliest: Vec<bool>,
}

impl<'a> Answer<'a> {
    /// The answer `generated` to the prompt whose last tokens are `rest` and whose others are in the cache.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn read(
        engine: &Engine,
        cache: &mut Cache,
        (rest, generated): (&[u32], &'a [u32]),
    ) -> Result<Self, EngineError> {
        let (_, before) = generated.split_last().unwrap_or((&0, &[]));
        let tokens = [rest, before].concat();
        let none = [LayerHoles::default()];
        let read = readings(engine, cache, (&tokens, generated), &none, &mut |_| true)?;
        let Some(Read { first, sum, likeliest }) = read.into_iter().next() else {
            return Err(EngineError::EmptyPrompt);
        };
        let log_p = sum / generated.len().max(1) as f64;
        Ok(Answer { tokens, generated, first, log_p, likeliest })
    }

    /// Its natural-log probability, mean per token.
    pub fn log_p(&self) -> f64 {
        self.log_p
    }

    /// Tokens that a reading computes.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// What each of `holes` changes. The cache is as it was for [`Answer::read`].
    ///
    /// # Errors
    /// Those of the engine.
    pub fn effects(
        &self,
        engine: &Engine,
        cache: &mut Cache,
        holes: &[LayerHoles],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Effect>, EngineError> {
        let read = readings(engine, cache, (&self.tokens, self.generated), holes, progress)?;
        let effect = |read: Read| Effect {
            log_p: read.sum / self.generated.len().max(1) as f64 - self.log_p,
            kl: self.first.iter().zip(&read.first).map(|(p, q)| p.exp() * (p - q)).sum::<f64>().max(0.0),
            changed: read.likeliest != self.likeliest,
        };
        Ok(read.into_iter().map(effect).collect())
    }
}

/// Reads `tokens` under each of `holes`; their last positions predict `generated`.
fn readings(
    engine: &Engine,
    cache: &mut Cache,
    (tokens, generated): (&[u32], &[u32]),
    holes: &[LayerHoles],
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Vec<Read>, EngineError> {
    let new = || Read { first: Vec::new(), sum: 0.0, likeliest: Vec::new() };
    let mut read: Vec<Read> = holes.iter().map(|_| new()).collect();
    let mut take = |nth: usize, at: usize, logits: &Tensor| {
        let logits: Vec<Vec<f32>> = logits.to_vec2()?;
        let Some(read) = read.get_mut(nth) else { return Ok(()) };
        // Vocabularies are large: a position a core.
        let of = |(logits, token): (&Vec<f32>, &u32)| {
            (Likelihood::of(*token, logits, 0).log_p, is_likeliest(*token, logits))
        };
        let told = generated.get(at..).unwrap_or_default();
        let positions: Vec<(f64, bool)> = logits.par_iter().zip(told).map(of).collect();
        for (log_p, likeliest) in positions {
            read.sum += log_p;
            read.likeliest.push(likeliest);
        }
        if let (0, Some(first)) = (at, logits.first()) {
            read.first = log_probabilities(first);
        }
        Ok(())
    };
    engine.read_variants(cache, (tokens, generated.len()), holes, &mut take, progress)?;
    Ok(read)
}

/// Whether no logit is above the token's, and of those before it none is as high.
fn is_likeliest(token: u32, logits: &[f32]) -> bool {
    let token = token as usize;
    logits.get(token).is_some_and(|own| {
        logits[..token].iter().all(|other| other < own) && logits[token..].iter().all(|other| other <= own)
    })
}

/// Natural-log probabilities from finite logits.
fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - greatest).exp()).sum();
    let all = f64::from(greatest) + sum.ln();
    logits.iter().map(|&x| f64::from(x) - all).collect()
}

/// A stretch of `length` tokens of `history` that touches none of `taken`, drawn evenly; `None` where there is no room.
pub fn control(
    length: usize,
    history: Range<usize>,
    taken: &[Range<usize>],
    draws: &mut Draws,
) -> Option<Range<usize>> {
    let starts = history.start..(history.end + 1).saturating_sub(length);
    let free = |start: &usize| taken.iter().all(|range| range.end <= *start || start + length <= range.start);
    let free: Vec<usize> = starts.filter(free).collect();
    let start = *free.get(draws.index(free.len().max(1)))?;
    Some(start..start + length)
}

/// A path still to be blocked.
struct Blocked<'a> {
    span: &'a Span,
    layers: Option<Range<usize>>,
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
    let mut log: RowLog<CauseLine> = RowLog::open(folder.dir.join(CAUSES))?;
    let key = |row: &CauseRow| {
        let CauseRow { case, probe, condition, span, layers, seed, .. } = row.clone();
        (case, probe, condition, span, layers, seed)
    };
    let blocked = |line: &CauseLine| if let CauseLine::Blocked(row) = line { Some(key(row)) } else { None };
    let mut there: BTreeSet<_> = log.rows.iter().filter_map(blocked).collect();
    let asked = asked(folder);
    let (mut measured, mut steps) = (Measured::default(), Steps::new("answers", asked.len(), show_progress));
    let mut at = 0;
    while let Some(first) = asked.get(at) {
        // The answers to a case, whose prompts begin alike.
        let count = asked[at..].iter().take_while(|row| row.case == first.case).count();
        let mut held: Option<Vec<u32>> = None;
        let stores = asked[at..at + count].iter().map(|row| folder.attention(row));
        let stores: Vec<AttentionStore> =
            stores.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        at += count;
        let shared = shared(&stores);
        for store in &stores {
            let name = super::condition::named(&store.probe, &store.condition);
            let failed = |source: anyhow::Error| CauseError::Model { case: store.case.clone(), source };
            if store.generated.is_empty() {
                return Err(unusable(store, NO_ANSWER));
            }
            let query =
                store.keys.iter().find(|span| span.is(QUERY)).ok_or_else(|| unusable(store, NO_QUERY))?;
            let paths: Vec<Blocked<'_>> = windows
                .iter()
                .flat_map(|layers| sessions(store).map(move |span| Blocked { span, layers: layers.clone() }))
                .collect();
            let row = |path: &Blocked<'_>, effect: Effect, log_p: f64, control: Option<Control>| CauseRow {
                case: store.case.clone(),
                probe: store.probe.clone(),
                condition: store.condition.clone(),
                span: path.span.label.clone(),
                role: path.span.role.clone(),
                tokens: [path.span.start, path.span.end],
                layers: path.layers.as_ref().map(|l| [l.start, l.end]),
                seed: options.seed,
                answer_tokens: store.generated.len(),
                log_p,
                effect,
                control,
            };
            let nothing = Effect { log_p: 0.0, kl: 0.0, changed: false };
            let (missing, done): (Vec<_>, Vec<_>) =
                paths.into_iter().partition(|path| !there.contains(&key(&row(path, nothing, 0.0, None))));
            measured.skipped += done.len();
            let measures = measures_path(&folder.dir, &store.case, &store.probe, &store.condition);
            if missing.is_empty() && measures.is_file() {
                steps.step(&format!("{} {name}", store.case), None);
                continue;
            }

            // 1. The history, once a case.
            let status = steps.status();
            status.begin(&format!("{} {name}", store.case), "prefill");
            let keep = held.as_ref().map_or(0, Vec::len);
            let Parts { engine, cache, .. } = model.parts(keep).map_err(|e| failed(e.into()))?;
            let prefix = &store.tokens[..shared];
            if held.as_deref() != Some(prefix) || cache.len() != shared {
                cache.truncate(0).map_err(|e| failed(e.into()))?;
                let (begun, mut read) = (Instant::now(), 0);
                let mut go_on = |tokens| {
                    read += tokens;
                    status.prefill(read, shared);
                    !stop.load(Ordering::Relaxed)
                };
                match engine.fill_cache(cache, prefix, &mut NoObserver, &mut go_on) {
                    Err(EngineError::Interrupted) => return Ok(Measured { stopped: true, ..measured }),
                    done => done.map_err(|e| failed(e.into()))?,
                }
                cache.mark().map_err(|e| failed(e.into()))?;
                measured.histories.0 += begun.elapsed().as_secs_f64();
                measured.histories.1 += shared;
                held = Some(prefix.to_vec());
            }

            // 2. What the answer as it was reads of each session.
            if !measures.is_file() {
                status.begin(&format!("{} {name}", store.case), "measuring");
                let read = SessionMeasures::read(engine, cache, store).map_err(|e| failed(e.into()))?;
                read.save(&measures, store)?;
            }

            // 3. Its probability, then with each path blocked beside its control.
            status.begin(&format!("{} {name}", store.case), "blocking");
            let own = (&store.tokens[shared..], store.generated.as_slice());
            let answer = Answer::read(engine, cache, own).map_err(|e| failed(e.into()))?;
            let taken = taken(&store.keys);
            let segments = || store.keys.iter().filter(|span| span.segment().is_some());
            let from = segments().map(|span| span.start).min().unwrap_or(0);
            let history = from..segments().map(|span| span.end).max().unwrap_or(0).min(query.start);
            let hide = |keys: Range<usize>, layers: &Option<Range<usize>>| {
                let layers = layers.clone().unwrap_or(0..kinds.len());
                LayerHoles::at_softmax(&layers, &kinds, vec![Hole { rows: query.start..usize::MAX, keys }])
            };
            let group = (engine.variants_together(answer.tokens()) / 2).max(1);
            for (nth, paths) in missing.chunks(group).enumerate() {
                let controls: Vec<Option<Range<usize>>> = paths
                    .iter()
                    .map(|path| {
                        if !options.controls.has(path.span) {
                            return None;
                        }
                        let name = format!("{} {} {}", store.case, store.probe, path.span.label);
                        let mut draws = Draws::new("knock-out control", options.seed, &name);
                        let taken = [&taken[..], &[path.span.range()]].concat();
                        control(path.span.len(), history.clone(), &taken, &mut draws)
                    })
                    .collect();
                let holes: Vec<LayerHoles> = (paths.iter().map(|path| hide(path.span.range(), &path.layers)))
                    .chain(
                        paths
                            .iter()
                            .zip(&controls)
                            .filter_map(|(path, control)| Some(hide(control.clone()?, &path.layers))),
                    )
                    .collect();
                let begun = Instant::now();
                let effects =
                    answer.effects(engine, cache, &holes, &mut |_| true).map_err(|e| failed(e.into()))?;
                measured.readings.0 += begun.elapsed().as_secs_f64();
                measured.readings.1 += holes.len() * answer.tokens();
                let (of_paths, of_controls) = effects.split_at(paths.len());
                let mut of_controls = of_controls.iter();
                for ((path, effect), control) in paths.iter().zip(of_paths).zip(controls) {
                    let control = control.and_then(|tokens| {
                        Some(Control { tokens: [tokens.start, tokens.end], effect: *of_controls.next()? })
                    });
                    let row = row(path, *effect, answer.log_p(), control);
                    there.insert(key(&row));
                    log.append(CauseLine::Blocked(row))?;
                    measured.done += 1;
                }
                status.prefill((nth * group + paths.len()).min(missing.len()), missing.len());
                if stop.load(Ordering::Relaxed) {
                    return Ok(Measured { stopped: true, ..measured });
                }
            }
            steps.step(&format!("{} {name}", store.case), None);
        }
    }
    Ok(measured)
}

pub(super) const NO_ANSWER: &str = "its attention file has no tokens of the answer; it is of a version that did not record them, so run it again";
pub(super) const NO_QUERY: &str =
    "its attention file has no span `query`, from which on sessions could be blocked";

pub(super) fn unusable(store: &AttentionStore, why: &'static str) -> CauseError {
    CauseError::Unusable { case: store.case.clone(), probe: store.probe.clone(), why }
}

/// The answers whose causes are measured: those with an attention file and tokens of their own, under conditions that block nothing.
pub fn asked(folder: &RunFolder) -> Vec<&AnswerRow> {
    let conditions = folder.header.identity.conditions_or_plain();
    let open = |row: &&AnswerRow| {
        conditions.iter().any(|condition| condition.name == row.condition && condition.knockout.is_none())
    };
    let answered = |row: &&AnswerRow| {
        row.error.is_none()
            && row.attention.is_some()
            && row.completion_tokens.is_none_or(|tokens| tokens > 0)
    };
    folder.answers.iter().filter(open).filter(answered).collect()
}

/// How many tokens the prompts of a case all begin with, before the first question.
pub(super) fn shared(stores: &[AttentionStore]) -> usize {
    let Some((first, others)) = stores.split_first() else { return 0 };
    let alike =
        |other: &AttentionStore| first.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
    let before = |store: &AttentionStore| store.keys.iter().filter(|s| s.is(QUERY)).map(|s| s.start).min();
    let least = others.iter().map(alike).min().unwrap_or(first.tokens.len());
    stores.iter().filter_map(before).min().unwrap_or(0).min(least)
}

/// What a control must not touch: all that plays a part, but the question.
fn taken(spans: &[Span]) -> Vec<Range<usize>> {
    spans.iter().filter(|span| span.role.is_some() && !span.is(QUERY)).map(Span::range).collect()
}
