//! Effect of each session on a contrast: its path to the question is blocked, or it is removed, and both values are read again.
//!
//! Called by `palimpsest causes --contrast`. The counterpart of [`super::causes`] and [`super::total_effect`], which read the model's own
//! answer: here what is read are the log-probabilities of the current value and of the one that it is held against, whatever was answered.
//! Rows go to `contrast-causes.jsonl`, which is gone on with; what the prompt's last position reads of each session goes to
//! `causes-contrast/`, attributed to the current value against the other.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_core::attention::{AttentionStore, Hole, LayerHoles};
use palimpsest_core::engine::{LocalModel, ModelText};
use palimpsest_core::span::{PREFIX, Span};

use super::causes::{
    CauseError, CauseOptions, History, Measured, NO_QUERY, open, shared, taken, unless_stopped, unusable,
    windows,
};
use super::contrast::{ContrastTokens, PairLogP, ValuePair};
use super::contrast_rows::{CONTRAST_CAUSES, ContrastAblation, ContrastCauseRow, ContrastKey};
use super::control_pool::pool;
use super::forced::{pairs, read_pair};
use super::removal::{Ablated, CaseAnswers, ReadingCost, goes_back};
use super::replacement::NEUTRAL;
use super::rows::{AnswerKey, AnswerRow, Contrast};
use super::session_measures::{SessionMeasures, contrast_measures_path, sessions};
use super::store::RunFolder;
use super::total_effect::TotalOptions;
use crate::benchmarks::QUERY;
use crate::data::Contrasted;
use crate::ground::jsonl::RowLog;
use crate::progress::Steps;

const NO_TOKENS: &str = "the values of its contrast are other tokens for this tokenizer than those in answers.jsonl; run it again";

/// The answers whose contrasts can be read again: those with a contrast and an attention file, under conditions that block nothing.
pub fn asked(folder: &RunFolder) -> Vec<&AnswerRow> {
    open(folder).filter(|row| row.contrast.is_some()).collect()
}

/// An attention file and the values to read behind its prompt.
pub(super) struct Asked {
    pub store: AttentionStore,
    pub pair: ValuePair,
}

/// The cases of a run, each loaded when it is its turn.
pub(super) fn cases<'a>(
    folder: &'a RunFolder,
    text: &'a ModelText,
) -> impl Iterator<Item = Result<Vec<Asked>, CauseError>> + 'a {
    let rows = asked(folder);
    let groups: Vec<Vec<_>> = rows.chunk_by(|a, b| a.case == b.case).map(<[_]>::to_vec).collect();
    groups.into_iter().map(move |rows| {
        let mut found = Vec::new();
        for row in rows {
            let (Some(store), Some(contrast)) = (folder.attention(row)?, &row.contrast) else { continue };
            if !store.keys.iter().any(|span| span.is(QUERY)) {
                return Err(unusable(&store, NO_QUERY));
            }
            let pair = pair(&store, contrast, text)?;
            found.push(Asked { store, pair });
        }
        Ok(found)
    })
}

/// The answers of a case, and the values of each.
pub(super) fn together(case: Vec<Asked>) -> (CaseAnswers, Vec<ValuePair>) {
    let (stores, pairs) = case.into_iter().map(|Asked { store, pair }| (store, pair)).unzip();
    (CaseAnswers::of(stores), pairs)
}

/// The tokens of a contrast. Answers hold those that differ; those before them follow from the prefix and the values' texts.
///
/// # Errors
/// [`CauseError::Unusable`] where the tokenizer gives other tokens than the answer holds.
pub fn pair(store: &AttentionStore, contrast: &Contrast, text: &ModelText) -> Result<ValuePair, CauseError> {
    let failed = |source: anyhow::Error| CauseError::Model { case: store.case.clone(), source };
    let texts =
        |values: &[super::rows::ValueLogP]| values.iter().map(|value| value.text.clone()).collect::<Vec<_>>();
    let mut values = Contrasted {
        current: contrast.current.text.clone(),
        stale: texts(&contrast.earlier),
        absent: contrast.absent.iter().map(|value| value.text.clone()).collect(),
    };
    values.stale.extend(contrast.stale.iter().map(|value| value.text.clone()));
    values.absent.extend(texts(&contrast.others));
    let prefix = store.keys.iter().find(|span| span.label == PREFIX);
    let prefix = prefix.and_then(|span| store.tokens.get(span.range())).unwrap_or_default();
    let prefix = text.tokenizer.decode(prefix, true).map_err(|error| failed(error.into()))?;
    let tokens = ContrastTokens::new(&values, &prefix, text).map_err(|error| failed(error.into()))?;
    let pair = tokens.as_ref().and_then(ContrastTokens::pair);
    let against = contrast.against().map(|value| value.token);
    pair.filter(|pair| pair.current() == contrast.current.token && Some(pair.against) == against)
        .ok_or_else(|| unusable(store, NO_TOKENS))
}

/// Keys that are blocked or removed.
struct Ablation {
    kind: ContrastAblation,
    span: Option<Span>,
    stretch: Option<usize>,
    tokens: Range<usize>,
    layers: Option<Range<usize>>,
    seed: u64,
}

impl Ablation {
    fn key(&self, store: &AttentionStore) -> ContrastKey {
        let layers = self.layers.as_ref().map(|layers| [layers.start, layers.end]);
        let tokens = [self.tokens.start, self.tokens.end];
        let neutral = (self.kind == ContrastAblation::Replaced).then(|| NEUTRAL.to_owned());
        (AnswerKey::of_store(store).owned(), self.kind, tokens, layers, self.seed, neutral)
    }

    fn row(&self, store: &AttentionStore, plain: PairLogP, changed: PairLogP) -> ContrastCauseRow {
        let (AnswerKey { case, probe, condition }, ablation, tokens, layers, seed, neutral) = self.key(store);
        ContrastCauseRow {
            case,
            probe,
            condition,
            span: self.span.as_ref().map(|span| span.label.clone()).unwrap_or_default(),
            role: self.span.as_ref().and_then(|span| span.role.clone()),
            stretch: self.stretch,
            carrier: None,
            neutral,
            tokens,
            layers,
            seed,
            ablation,
            contrast: plain.contrast(),
            drop: plain.contrast() - changed.contrast(),
            direct: None,
            current: changed.current,
            stale: changed.against,
        }
    }
}

pub(super) fn open_log(
    folder: &RunFolder,
) -> Result<(RowLog<ContrastCauseRow>, BTreeSet<ContrastKey>), CauseError> {
    let log: RowLog<ContrastCauseRow> = RowLog::open(folder.dir.join(CONTRAST_CAUSES))?;
    let there = log.rows.iter().map(ContrastCauseRow::key).collect();
    Ok((log, there))
}

/// The sessions of an answer's prompt and its controls, at each window of layers.
fn blocks(store: &AttentionStore, windows: &[Option<Range<usize>>], options: CauseOptions) -> Vec<Ablation> {
    let ranges: Vec<Range<usize>> = sessions(store).map(Span::range).collect();
    let stretches = pool((options.controls, options.seed), &store.case, &ranges, &taken(&store.keys));
    let mut all = Vec::new();
    for layers in windows {
        all.extend(sessions(store).map(|span| Ablation {
            kind: ContrastAblation::Blocked,
            span: Some(span.clone()),
            stretch: None,
            tokens: span.range(),
            layers: layers.clone(),
            seed: options.seed,
        }));
        all.extend(stretches.iter().enumerate().map(|(nth, tokens)| Ablation {
            kind: ContrastAblation::Control,
            span: None,
            stretch: Some(nth),
            tokens: tokens.clone(),
            layers: layers.clone(),
            seed: options.seed,
        }));
    }
    all
}

/// Measures what blocking changes of the contrasts of `folder`, as far as rows lack, and appends it. `model` must be the run's. `stop` is
/// looked at after each group of readings.
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
    let (mut log, there) = open_log(folder)?;
    let mut measured = Measured::default();
    let mut steps = Steps::new("contrasts", asked(folder).len(), show_progress);
    let text = model.text().clone();
    for case in cases(folder, &text) {
        let case = case?;
        let stores: Vec<&AttentionStore> = case.iter().map(|asked| &asked.store).collect();
        let shared = shared(&stores);
        for Asked { store, pair } in &case {
            let name = format!("{} {}", store.case, super::condition::named(&store.probe, &store.condition));
            let query =
                store.keys.iter().find(|span| span.is(QUERY)).ok_or_else(|| unusable(store, NO_QUERY))?;
            let (done, missing): (Vec<_>, Vec<_>) = blocks(store, &windows, options)
                .into_iter()
                .partition(|block| there.contains(&block.key(store)));
            measured.skipped += done.len();
            let measures = contrast_measures_path(&folder.dir, &store.case, &store.probe, &store.condition);
            let has_measures = SessionMeasures::is_there(&measures);
            if missing.is_empty() && has_measures {
                steps.step(&name, None);
                continue;
            }
            let status = steps.status();
            status.begin(&name, "prefill");
            let session = model.session();
            let mut go_on = |_: usize| !stop.load(Ordering::Relaxed);

            // 1. What the position that predicts the values reads of each session, and the history before it, once a case.
            if !has_measures {
                let read = SessionMeasures::read_contrast(session, store, shared, pair, &mut go_on);
                let Some(read) = unless_stopped(&store.case, read)? else { return Ok(measured.stopped()) };
                read.save_contrast(&measures, store)?;
            }

            // 2. Both values with nothing blocked, then with each path blocked.
            let history = History { tokens: store.tokens[..shared].into(), rest: &store.tokens[shared..] };
            let hide = |block: &Ablation| {
                let layers = block.layers.clone().unwrap_or(0..kinds.len());
                let hole = Hole { rows: query.start..usize::MAX, keys: block.tokens.clone() };
                LayerHoles::at_softmax(&layers, &kinds, vec![hole])
            };
            let plain = read_pair(session, (&history, pair), &LayerHoles::default(), &mut go_on);
            let Some(plain) = unless_stopped(&store.case, plain)? else { return Ok(measured.stopped()) };
            let holes: Vec<LayerHoles> = missing.iter().map(hide).collect();
            status.begin(&name, "blocking");
            let (mut stored, mut blocked) = (Ok(()), 0);
            let mut take = |nth: usize, read: PairLogP| {
                stored = std::mem::replace(&mut stored, Ok(()))
                    .and(log.append(missing[nth].row(store, plain, read)));
                blocked += 1;
                status.prefill(blocked, missing.len());
                stored.is_ok() && !stop.load(Ordering::Relaxed)
            };
            let read = pairs(session, (&history, pair), &holes, &mut go_on, &mut take);
            measured.done += blocked;
            stored?;
            if unless_stopped(&store.case, read)?.is_none() || stop.load(Ordering::Relaxed) {
                return Ok(measured.stopped());
            }
            steps.step(&name, None);
        }
    }
    Ok(measured)
}

fn missing(
    case: &CaseAnswers,
    there: &BTreeSet<ContrastKey>,
    TotalOptions { sessions, replace }: TotalOptions,
) -> (Vec<Ablated>, usize) {
    case.missing(sessions, |store, span| there.contains(&left_out(span, replace).key(store)))
}

fn left_out(span: &Span, replace: bool) -> Ablation {
    Ablation {
        kind: if replace { ContrastAblation::Replaced } else { ContrastAblation::Removed },
        span: Some(span.clone()),
        stretch: None,
        tokens: span.range(),
        layers: None,
        seed: 0,
    }
}

/// Measures what removing or replacing sessions changes of the contrasts of `folder`, as far as rows lack, and appends it. `model` must be the
/// run's. `stop` is looked at after each chunk and reading.
///
/// # Errors
/// [`CauseError`]; a stop is none.
pub fn measure_removals(
    folder: &RunFolder,
    model: &mut LocalModel,
    options: TotalOptions,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Measured, CauseError> {
    let (mut log, there) = open_log(folder)?;
    let text = model.text().clone();
    let kinds = model.engine().decoder().spec().layer_kinds();
    let mut all = ReadingCost::default();
    for case in cases(folder, &text) {
        let case = options.of_case(together(case?).0, &text)?;
        all += case.cost(&missing(&case, &there, options).0, goes_back(&kinds));
    }
    all.announce(if options.replace { "replacements" } else { "removals" });
    let mut measured = Measured::default();
    let mut steps = Steps::new("contrasts", asked(folder).len(), show_progress);
    for case in cases(folder, &text) {
        let (case, values) = together(case?);
        let case = options.of_case(case, &text)?;
        let (missing, found) = missing(&case, &there, options);
        measured.skipped += found;
        let session = model.session();
        session.forget();
        let mut plain: Vec<Option<PairLogP>> = vec![None; case.answers.len()];
        let mut go_on = |_: usize| !stop.load(Ordering::Relaxed);
        let wholes = case.wholes(&missing);
        let changed = case.sorted(&missing);
        for (one, is_whole) in
            wholes.iter().map(|one| (one, true)).chain(changed.into_iter().map(|one| (one, false)))
        {
            let (history, values) = (case.history_of(one), &values[one.answer]);
            let read = read_pair(session, (&history, values), &LayerHoles::default(), &mut go_on);
            let Some(read) = unless_stopped(case.id(), read)? else { return Ok(measured.stopped()) };
            if is_whole {
                plain[one.answer] = Some(read);
            } else if let Some(plain) = plain[one.answer] {
                let span = case.sessions(one.answer)[one.nth];
                log.append(left_out(span, options.replace).row(&case.answers[one.answer], plain, read))?;
                measured.done += 1;
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(measured.stopped());
            }
        }
        for store in &case.answers {
            let name = super::condition::named(&store.probe, &store.condition);
            steps.step(&format!("{} {name}", store.case), None);
        }
    }
    Ok(measured)
}
