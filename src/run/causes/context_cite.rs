//! ContextCite's surrogate of each answer of a run (Cohen-Wang et al. 2024, arXiv 2409.00729): how likely the answer is after random
//! subsets of the sessions, as a sparse linear function of which are there.
//!
//! Called by `palimpsest causes --contextcite N`. Each session is in a subset or not with equal chance; one that is not is removed and
//! the rest read again, as in the paper, or on demand blocked over the whole history, which is cheap, sees direct paths alone, and is
//! our own variant. Subsets go to `causes.jsonl` one by one and are gone on with; a surrogate follows where an answer has all of
//! its subsets.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::case::{Ablated, AblatedSink, CaseAnswers, ReadingCost, cases, goes_back};
use super::metric::{Change, Metric};
use super::rows::{Ablation, CauseLine, SessionWeight, SubsetRow, SurrogateRow, open_log};
use super::{CauseError, Measured, layers_open, unless_stopped, windows};
use crate::data::draw::Draws;
use crate::progress::Steps;
use crate::run::causes::metric::Measure;
use crate::run::rows::AnswerKey;
use crate::run::store::RunFolder;
use crate::statistics::lasso::{lasso, r2};
use palimpsest_core::attention::{AttentionStore, Hole, LayerHoles, LayerKind};
use palimpsest_core::engine::{LocalModel, Session};

/// The price of a weight's size, of logits per token of the answer and standardised columns: that of the paper's code.
pub const ALPHA: f64 = 0.01;

/// Clamp of a probability near 1 before its logit is taken: log p is at most minus this.
const NEAREST: f64 = 1e-12;

/// Settings of the surrogate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SurrogateOptions {
    pub subsets: usize,
    pub seed: u64,
    pub ablation: Ablation,
    /// True if blocking leaves the linear-attention layers out.
    pub softmax_only: bool,
}

/// By answer and number of the subset: the log-probability of the whole answer.
type There = BTreeMap<AnswerKey, BTreeMap<usize, f64>>;

fn there<'a>(lines: impl IntoIterator<Item = &'a CauseLine>, options: SurrogateOptions) -> There {
    let mut there = There::new();
    for line in lines {
        let CauseLine::Subset(row) = line else { continue };
        if (row.seed, row.ablation) == (options.seed, options.ablation) && row.subset < options.subsets {
            there.entry(row.answer.clone()).or_default().insert(row.subset, row.answer_log_p);
        }
    }
    there
}

/// Which of an answer's sessions a subset holds: drawn for each by its name, so that the answers of a case get the same.
fn included(case: &CaseAnswers, answer: usize, subset: usize, seed: u64) -> Vec<bool> {
    let id = &case.answers[answer].case;
    let drawn =
        |label: &str| Draws::new("contextcite subset", seed, &format!("{id} {subset} {label}")).below(2) == 1;
    case.sessions(answer).iter().map(|span| drawn(&span.label)).collect()
}

fn missing(case: &CaseAnswers, there: &There, options: SurrogateOptions) -> Vec<Ablated> {
    let mut missing = Vec::new();
    for (answer, store) in case.answers.iter().enumerate() {
        let known = there.get(&AnswerKey::of_store(store).owned());
        for nth in (0..options.subsets).filter(|nth| known.is_none_or(|known| !known.contains_key(nth))) {
            missing.push(Ablated { answer, included: included(case, answer, nth, options.seed), nth });
        }
    }
    missing
}

/// Measures what `folder` still lacks, and appends it. `model` must be the run's. `stop` is looked at after each chunk and reading.
pub fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    options: SurrogateOptions,
    stop: &AtomicBool,
    show_progress: bool,
) -> Result<Measured, CauseError> {
    let mut log = open_log(&folder.dir)?;
    let mut there = there(&log.rows, options);
    let kinds = model.engine().decoder().spec().layer_kinds();
    let text = model.text().clone();
    let mut all = ReadingCost::default();
    for case in cases(folder, Measure::LogP, &text) {
        let case = case?;
        let mut cost = case.cost(&missing(&case, &there, options), goes_back(&kinds));
        if options.ablation == Ablation::Blocked {
            cost.prefill = cost.histories;
        }
        all += cost;
    }
    all.announce("subsets");
    if options.ablation == Ablation::Blocked {
        windows(&kinds, (None, options.softmax_only))?;
    }
    let open = layers_open(&kinds, None).filter(|_| options.ablation == Ablation::Blocked);
    let mut measured = Measured::default();
    let mut steps = Steps::new("subsets", all.readings, show_progress);
    for case in cases(folder, Measure::LogP, &text) {
        let case = case?;
        let missing = missing(&case, &there, options);
        measured.skipped += case.answers.len() * options.subsets - missing.len();
        let status = steps.status();
        let cost = case.cost(&missing, goes_back(&kinds));
        let mut read = 0;
        let mut go_on = |tokens: usize| {
            read += tokens;
            status.prefill(read, cost.prefill);
            !stop.load(Ordering::Relaxed)
        };
        let mut sink = |one: &Ablated, metric: &Metric, change: Change| {
            let row = subset(&case, one, (options, open), metric.value() - metric.lost(&change));
            let step = format!("{} {} subset {}", row.answer.case, row.answer.probe, row.subset);
            there
                .entry(AnswerKey::of_store(&case.answers[one.answer]).owned())
                .or_default()
                .insert(one.nth, row.answer_log_p);
            log.append(CauseLine::Subset(row))?;
            measured.done += 1;
            steps.step(&step, None);
            Ok(!stop.load(Ordering::Relaxed))
        };
        status.begin(case.id(), "prefill");
        let session = model.session();
        let whole = match options.ablation {
            Ablation::Removed => case.read_ablated(session, &missing, &mut go_on, &mut sink)?,
            Ablation::Blocked => blocked(&case, session, (&missing, &kinds), &mut go_on, &mut sink)?,
        };
        if !whole {
            return Ok(measured.stopped());
        }
        for answer in 0..case.answers.len() {
            let store = &case.answers[answer];
            if !log.rows.iter().any(|line| is_surrogate(line, store, options)) {
                let known = there.get(&AnswerKey::of_store(store).owned());
                let row = surrogate(&case, answer, (options, open), known.unwrap_or(&BTreeMap::new()));
                log.append(CauseLine::Surrogate(row))?;
                measured.done += 1;
            }
        }
    }
    Ok(measured)
}

/// True if a line is the surrogate of an answer, made so.
fn is_surrogate(line: &CauseLine, store: &AttentionStore, options: SurrogateOptions) -> bool {
    let CauseLine::Surrogate(row) = line else { return false };
    row.answer == AnswerKey::of_store(store).owned()
        && (row.seed, row.subsets, row.ablation) == (options.seed, options.subsets, options.ablation)
}

/// Reads subsets over the whole history, the other sessions blocked from the question on; whether it came to the end.
fn blocked(
    case: &CaseAnswers,
    session: &mut Session,
    (missing, kinds): (&[Ablated], &[LayerKind]),
    go_on: &mut dyn FnMut(usize) -> bool,
    sink: AblatedSink<'_>,
) -> Result<bool, CauseError> {
    for (at, store) in case.answers.iter().enumerate() {
        let own: Vec<&Ablated> = missing.iter().filter(|one| one.answer == at).collect();
        if own.is_empty() {
            continue;
        }
        let (history, question, sessions) = (case.whole(at), case.question(at), case.sessions(at));
        let metric = Metric::read(session, &history, case.target(at), go_on);
        let Some(metric) = unless_stopped(&store.case, metric)? else { return Ok(false) };
        let holes = own.iter().map(|one| {
            let out = sessions.iter().zip(&one.included).filter(|(_, included)| !**included);
            let hole = out.map(|(span, _)| Hole { rows: question..usize::MAX, keys: span.range() });
            LayerHoles::at_softmax(&(0..kinds.len()), kinds, hole.collect())
        });
        let holes: Vec<LayerHoles> = holes.collect();
        let mut stored = Ok(true);
        let mut take = |nth: usize, change: Change| {
            if matches!(stored, Ok(true)) {
                stored = sink(own[nth], &metric, change);
            }
            matches!(stored, Ok(true))
        };
        let read = metric.changes(session, &history, &holes, go_on, &mut take);
        if !stored? || unless_stopped(&store.case, read)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `open` is the share of layers that blocking leaves open, `log_p` the mean of the answer's tokens.
fn subset(
    case: &CaseAnswers,
    one: &Ablated,
    (options, open): (SurrogateOptions, Option<f64>),
    log_p: f64,
) -> SubsetRow {
    let store = &case.answers[one.answer];
    let thought = store.thought();
    let answer_tokens = store.generated.len() - thought;
    let sessions = case.sessions(one.answer);
    let there = sessions.iter().zip(&one.included).filter(|(_, included)| **included);
    SubsetRow {
        answer: AnswerKey::of_store(store).owned(),
        seed: options.seed,
        subset: one.nth,
        ablation: options.ablation,
        sessions: there.map(|(span, _)| span.label.clone()).collect(),
        softmax_only: open.is_some(),
        answer_tokens,
        thought_tokens: thought,
        answer_log_p: log_p * answer_tokens as f64,
    }
}

fn surrogate(
    case: &CaseAnswers,
    answer: usize,
    (options, open): (SurrogateOptions, Option<f64>),
    known: &BTreeMap<usize, f64>,
) -> SurrogateRow {
    let store = &case.answers[answer];
    let thought = store.thought();
    let answer_tokens = store.generated.len() - thought;
    let tokens = answer_tokens.max(1) as f64;
    let of_subset = |subset: &usize| -> Vec<f64> {
        let bits = included(case, answer, *subset, options.seed);
        bits.into_iter().map(|bit| f64::from(u8::from(bit))).collect()
    };
    let x: Vec<Vec<f64>> = known.keys().map(of_subset).collect();
    let y: Vec<f64> = known.values().map(|log_p| logit(*log_p) / tokens).collect();
    let fit = lasso(&x, &y, ALPHA);
    let weights = case.sessions(answer).into_iter().zip(&fit.weights);
    SurrogateRow {
        answer: AnswerKey::of_store(store).owned(),
        seed: options.seed,
        subsets: known.len(),
        ablation: options.ablation,
        softmax_only: open.is_some(),
        layers_open: open,
        answer_tokens,
        thought_tokens: thought,
        intercept: fit.intercept * tokens,
        r2: r2(&fit, &x, &y),
        weights: weights
            .map(|(span, weight)| SessionWeight {
                span: span.label.clone(),
                role: span.role.clone(),
                tokens: [span.start, span.end],
                weight: weight * tokens,
            })
            .collect(),
    }
}

/// The logit of a probability that is given by its logarithm.
pub fn logit(log_p: f64) -> f64 {
    let log_p = log_p.min(-NEAREST);
    log_p - (-log_p.exp_m1()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_those_of_the_probability_and_stay_finite() {
        for p in [0.001f64, 0.5, 0.999] {
            assert!((logit(p.ln()) - (p / (1.0 - p)).ln()).abs() < 1e-9);
        }
        assert!((logit(-500.0) + 500.0).abs() < 1e-9);
        assert!(logit(0.0).is_finite() && logit(0.0) > 25.0);
    }
}
