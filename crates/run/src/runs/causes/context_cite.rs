//! ContextCite surrogate of each answer (Cohen-Wang et al. 2024, arXiv 2409.00729): the answer's probability as a sparse linear function of
//! the sessions present.
//!
//! Each session is in a random subset with probability 1/2. Excluded sessions are removed and the rest recomputed, as in the paper, or
//! blocked over the full history, which is cheaper, covers direct paths only, and is our own variant. Subsets are appended to
//! `causes.jsonl` and resumed; a surrogate is fitted once an answer has all its subsets.

use std::collections::BTreeMap;

use palimpsest_core::ablate::{EffectRow, Metric};
use palimpsest_core::attention::{AttentionStore, LayerHoles};
use palimpsest_core::engine::Session;
use palimpsest_core::span::Span;

use super::case::{Ablated, AblatedSink, CaseAnswers, ReadingCost};
use super::rows::{Ablation, CauseLine, SessionWeight, SubsetRow, SurrogateRow, open_log};
use super::{Measured, Task, all_read, layers_open, unless_stopped, windows};
use crate::progress::{Steps, Work};
use crate::runs::rows::AnswerKey;
use palimpsest_data::case::draw::Draws;
use palimpsest_data::statistics::lasso::{Linear, lasso, r2};

/// L1 penalty (lasso) for logits per answer token and standardised columns; the value of the paper's code.
const ALPHA: f64 = 0.01;

/// Upper clamp before taking a logit: log p <= -NEAREST.
const NEAREST: f64 = 1e-12;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SurrogateOptions {
    pub subsets: usize,
    pub seed: u64,
    pub ablation: Ablation,
    pub softmax_only: bool,
}

type There = BTreeMap<AnswerKey, BTreeMap<usize, f64>>;

fn key(store: &AttentionStore) -> AnswerKey {
    AnswerKey::of_store(store).owned()
}

/// Membership of subset number `subset`. Each span's draw depends only on its name and on the case or prompt `name`, so all answers of a
/// case share subsets.
pub fn drawn<'a>(
    name: &str,
    subset: usize,
    seed: u64,
    spans: impl IntoIterator<Item = &'a Span>,
) -> Vec<bool> {
    let holds = |span: &Span| {
        Draws::new("contextcite subset", seed, &format!("{name} {subset} {}", span.label)).below(2) == 1
    };
    spans.into_iter().map(holds).collect()
}

/// Fits a surrogate to subsets and their log-probabilities of an answer of `tokens` tokens. Returns weights and intercept of the answer's
/// logit, and R^2.
pub fn fitted(subsets: Vec<Vec<bool>>, log_p: &[f64], tokens: f64) -> (Linear, Option<f64>) {
    let row = |bits: Vec<bool>| bits.into_iter().map(|bit| f64::from(u8::from(bit))).collect();
    let x: Vec<Vec<f64>> = subsets.into_iter().map(row).collect();
    let y: Vec<f64> = log_p.iter().map(|log_p| logit(*log_p) / tokens).collect();
    let fit = lasso(&x, &y, ALPHA);
    let r2 = r2(&fit, &x, &y);
    let weights = fit.weights.iter().map(|weight| weight * tokens).collect();
    (Linear { weights, intercept: fit.intercept * tokens }, r2)
}

fn missing(case: &CaseAnswers<'_>, there: &There, options: SurrogateOptions) -> Vec<Ablated> {
    let of_answer = |(answer, store): (usize, &AttentionStore)| {
        let known = there.get(&key(store));
        let open = (0..options.subsets).filter(move |nth| known.is_none_or(|known| !known.contains_key(nth)));
        let ablated = |nth| {
            let included = drawn(&store.case, nth, options.seed, case.sessions(answer));
            Ablated { answer, included, nth }
        };
        open.map(ablated).collect::<Vec<_>>()
    };
    case.answers.iter().enumerate().flat_map(of_answer).collect()
}

pub(super) fn measure(
    task: &Task<'_>,
    session: &mut Session,
    options: SurrogateOptions,
) -> anyhow::Result<Measured> {
    let mut log = open_log(&task.folder.dir)?;
    let mut there = There::new();
    for line in &log.rows {
        if let CauseLine::Subset(row) = line
            && (row.seed, row.ablation) == (options.seed, options.ablation)
            && row.subset < options.subsets
        {
            there.entry(row.answer.clone()).or_default().insert(row.subset, row.answer_log_p);
        }
    }
    let is_blocked = options.ablation == Ablation::Blocked;
    let cost = |case: &CaseAnswers<'_>, there: &There| {
        let cost = case.cost(&missing(case, there, options));
        let prefill = if is_blocked { cost.histories } else { cost.prefill };
        ReadingCost { prefill, ..cost }
    };
    let mut left = task.announced("subsets", |case| cost(case, &there))?;
    if is_blocked {
        windows(&task.kinds, (None, options.softmax_only))?;
    }
    let open = layers_open(&task.kinds, None).filter(|_| is_blocked);
    let mut measured = Measured::default();
    let mut steps = Steps::new("subsets", left.readings, task.show).brief(true);
    for case in task.cases() {
        let case = case?;
        let missing = missing(&case, &there, options);
        measured.skipped += case.answers.len() * options.subsets - missing.len();
        let status = steps.status();
        let mut go_on = task.hears(steps.status(), &mut left, cost(&case, &there));
        let mut sink = |one: &Ablated, metric: &Metric, row: EffectRow| {
            let log_p = metric.value() - metric.lost(&row);
            let row = subset(&case, one, options, open.is_some(), log_p);
            let step = format!("{} {} subset {}", row.answer.case, row.answer.probe, row.subset);
            there.entry(row.answer.clone()).or_default().insert(one.nth, row.answer_log_p);
            log.append(CauseLine::Subset(row))?;
            measured.done += 1;
            status.did(Work::Answer, case.own_tokens(one.answer));
            steps.step(&step, None);
            Ok(task.goes_on())
        };
        status.begin(case.id(), "prefill");
        let whole = match options.ablation {
            Ablation::Removed => case.read_ablated(session, &missing, &mut go_on, &mut sink)?,
            Ablation::Blocked => blocked(&case, session, &missing, &mut go_on, &mut sink)?,
        };
        if !whole {
            return Ok(measured.stopped());
        }
        for (answer, store) in case.answers.iter().enumerate() {
            if !log.rows.iter().any(|line| is_surrogate(line, store, options)) {
                let known = there.get(&key(store)).cloned().unwrap_or_default();
                log.append(CauseLine::Surrogate(surrogate(&case, answer, options, open, &known)))?;
                measured.done += 1;
            }
        }
    }
    Ok(measured)
}

fn is_surrogate(line: &CauseLine, store: &AttentionStore, options: SurrogateOptions) -> bool {
    let CauseLine::Surrogate(row) = line else { return false };
    row.answer == key(store)
        && (row.seed, row.subsets, row.ablation) == (options.seed, options.subsets, options.ablation)
}

/// Scores subsets over the full history, blocking excluded sessions from the question on. Returns true if all were read.
fn blocked(
    case: &CaseAnswers<'_>,
    session: &mut Session,
    missing: &[Ablated],
    go_on: &mut dyn FnMut(usize) -> bool,
    sink: AblatedSink<'_>,
) -> anyhow::Result<bool> {
    for own in missing.chunk_by(|a, b| a.answer == b.answer) {
        let Some(Ablated { answer, .. }) = own.first() else { continue };
        let prompt = case.prompt(*answer);
        let metric = Metric::read(session, &prompt.history(), case.target(*answer), go_on);
        let Some(metric) = unless_stopped(case.id(), metric)? else { return Ok(false) };
        let holes: Vec<LayerHoles> = own.iter().map(|one| prompt.hidden(&case.left_out(one), None)).collect();
        let history = prompt.history();
        let whole = all_read(case.id(), &mut |nth, row| sink(&own[nth], &metric, row), |sink| {
            metric.effects(session, &history, &holes, go_on, sink)
        })?;
        if !whole {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `log_p`: mean per answer token.
fn subset(
    case: &CaseAnswers<'_>,
    one: &Ablated,
    options: SurrogateOptions,
    softmax_only: bool,
    log_p: f64,
) -> SubsetRow {
    let store = &case.answers[one.answer];
    let answer_tokens = store.generated.len() - store.thought();
    let sessions = case.sessions(one.answer).into_iter().zip(&one.included);
    SubsetRow {
        answer: key(store),
        seed: options.seed,
        subset: one.nth,
        ablation: options.ablation,
        sessions: sessions.filter(|(_, there)| **there).map(|(span, _)| span.label.clone()).collect(),
        softmax_only,
        answer_tokens,
        thought_tokens: store.thought(),
        answer_log_p: log_p * answer_tokens as f64,
    }
}

/// `open`: fraction of layers that blocking leaves open.
fn surrogate(
    case: &CaseAnswers<'_>,
    answer: usize,
    options: SurrogateOptions,
    open: Option<f64>,
    known: &BTreeMap<usize, f64>,
) -> SurrogateRow {
    let (store, sessions) = (&case.answers[answer], case.sessions(answer));
    let answer_tokens = store.generated.len() - store.thought();
    let bits = known.keys().map(|nth| drawn(&store.case, *nth, options.seed, sessions.iter().copied()));
    let log_p: Vec<f64> = known.values().copied().collect();
    let (fit, r2) = fitted(bits.collect(), &log_p, answer_tokens.max(1) as f64);
    let weights = sessions.into_iter().zip(fit.weights).map(|(span, weight)| SessionWeight {
        span: span.label.clone(),
        role: span.role.clone(),
        tokens: [span.start, span.end],
        weight,
    });
    SurrogateRow {
        answer: key(store),
        seed: options.seed,
        subsets: known.len(),
        ablation: options.ablation,
        softmax_only: open.is_some(),
        layers_open: open,
        answer_tokens,
        thought_tokens: store.thought(),
        intercept: fit.intercept,
        r2,
        weights: weights.collect(),
    }
}

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
