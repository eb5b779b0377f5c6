//! Metric of an answer under ablation, measured with teacher forcing. A thought before the answer is measured separately.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::distribution::Distribution;
use super::prompt::History;
use crate::attention::LayerHoles;
use crate::engine::{
    Backend, Branch, EngineError, Event, Repairing, Request, RequestError, Reuse, Session, Task,
    is_likeliest, log_p, log_sum_exp,
};

/// A generated answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said<'a> {
    /// Tokens of thought and answer.
    pub tokens: &'a [u32],
    /// Number of leading thought tokens.
    pub thought: usize,
}

/// Two values compared at one position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValuePair {
    /// The first value's tokens up to the first difference; never empty.
    pub forced: Arc<[u32]>,
    /// The second value's token at that position.
    pub against: u32,
}

impl ValuePair {
    /// The first value's token at that position.
    pub fn current(&self) -> u32 {
        self.forced.last().copied().unwrap_or_default()
    }

    /// Common tokens of both values.
    pub fn before(&self) -> &[u32] {
        &self.forced[..self.forced.len().saturating_sub(1)]
    }
}

/// Tokens to measure after a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // said by the names
pub enum Target<'a> {
    Answer(Said<'a>),
    Values(&'a ValuePair),
}

/// Kind of metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// log p of the first value minus log p of the second, in nats.
    Contrast,
    /// Natural-log probability of the answer, mean per token.
    LogP,
}

/// A pass's prediction of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    /// Natural-log probability.
    pub log_p: f64,
    /// True if the token is the argmax.
    pub likeliest: bool,
}

impl Position {
    /// From logits (vocab) at the token's position.
    pub fn of(token: u32, logits: &[f32]) -> Self {
        Self::with(token, logits, log_sum_exp(logits))
    }

    fn with(token: u32, logits: &[f32], log_sum: f64) -> Self {
        Position { log_p: log_p(token, logits, log_sum), likeliest: is_likeliest(token, logits) }
    }
}

/// Effect of an ablation on an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Drop of the answer's natural-log probability, mean per token in nats: plain minus ablated. Positive: the answer depends on the span.
    pub log_p_drop: f64,
    /// KL divergence in nats at the first answer token, KL(plain || ablated).
    pub kl: f64,
    /// KL divergence, mean over all answer tokens.
    pub kl_answer: f64,
    /// True if the ablation changes whether some answer token is the argmax.
    pub changed: bool,
    /// Effect on the thought; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<ThoughtEffect>,
}

/// Effect of an ablation on a thought.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThoughtEffect {
    /// Drop of the thought's natural-log probability, mean per token in nats.
    pub log_p_drop: f64,
    /// KL divergence at the first thought token, in nats.
    pub kl: f64,
    /// True if the ablation changes whether some thought token is the argmax.
    pub changed: bool,
}

/// Natural-log probabilities of two values.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // said by the names
pub struct PairLogP {
    pub current: f64,
    pub against: f64,
}

impl PairLogP {
    /// Contrast in nats; positive if the first value is more likely.
    pub fn contrast(self) -> f64 {
        self.current - self.against
    }
}

/// Result of one ablation.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // said by the names
pub enum EffectRow {
    Answer(Effect),
    Contrast(PairLogP),
}

impl EffectRow {
    /// The effect on an answer, if this is one.
    pub fn effect(self) -> Option<Effect> {
        if let EffectRow::Answer(effect) = self { Some(effect) } else { None }
    }

    /// The log-probabilities of two values, if this is a contrast.
    pub fn pair(self) -> Option<PairLogP> {
        if let EffectRow::Contrast(pair) = self { Some(pair) } else { None }
    }
}

/// A metric with its baseline, measured without ablation.
#[derive(Debug)]
pub struct Metric {
    forced: Arc<[u32]>,
    thought: usize,
    /// The second value's token and log-probability, for a contrast.
    against: Option<(u32, f64)>,
    plain: Vec<Position>,
    /// By position: all answer tokens and the first thought token.
    distributions: Vec<Option<Distribution>>,
}

/// A position of the unchanged answer: prediction, the second value's log-probability, and the kept distribution.
type Plain = (Position, f64, Option<Distribution>);

/// Maps a position and its logits (vocab).
type At<'a> = &'a (dyn Fn(usize, &[f32]) -> Plain + Sync);

/// One measurement after a history: metric, rest of the prompt, and hidden keys.
pub type Reading<'a> = (&'a Metric, &'a [u32], &'a LayerHoles);

impl Metric {
    /// Measures the baseline after a prompt. `go_on` receives prefilled tokens and returns false to stop. Fails with
    /// [`EngineError::EmptyPrompt`] if the answer has no token after its thought, or [`EngineError::Interrupted`] if stopped.
    pub fn read(
        session: &mut Session,
        history: &History<'_>,
        target: Target<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, RequestError> {
        Self::baseline(target, |forced, at| {
            let mut read = Vec::new();
            let mut take = |_: usize, positions| {
                read = positions;
                true
            };
            let plain = vec![forcing(history.rest, forced, &LayerHoles::default())];
            let at = |_: usize, position: usize, logits: &[f32]| at(position, logits);
            force(session, &history.tokens, plain, &at, go_on, &mut take)?;
            Ok(read)
        })
    }

    /// [`Self::read`] after `rest` and a history that is kept to be repaired.
    pub fn read_unrepaired(
        repairing: &mut Repairing,
        rest: &[u32],
        target: Target<'_>,
    ) -> Result<Self, RequestError> {
        Self::baseline(target, |forced, at| {
            let mut read = Vec::new();
            let mut take = |_: usize, first, logits: &Tensor| collect(logits, first, at, &mut read);
            repairing.read((&[], &[]), &[(rest, &forced[..])], &mut |_| true, &mut take)?;
            Ok(read)
        })
    }

    /// Measures each metric after its rest of a prompt and a repaired history: `rows` of the edited history `tokens` are read again. `go_on`
    /// gets their number and returns false to stop.
    pub fn repaired(
        metrics: &[(&Metric, &[u32])],
        repairing: &mut Repairing,
        (rows, tokens): (&[usize], &[u32]),
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<EffectRow>, RequestError> {
        let mut read: Vec<Vec<(Position, f64)>> = metrics.iter().map(|_| Vec::new()).collect();
        let readings: Vec<_> = metrics.iter().map(|(metric, rest)| (*rest, &*metric.forced)).collect();
        repairing.read((rows, tokens), &readings, go_on, &mut |nth, first, logits| {
            let at = |position: usize, logits: &[f32]| metrics[nth].0.at(position, logits);
            collect(logits, first, at, &mut read[nth])
        })?;
        Ok(metrics.iter().zip(&read).filter_map(|((metric, _), read)| metric.row(read)).collect())
    }

    fn baseline(
        target: Target<'_>,
        read: impl FnOnce(&Arc<[u32]>, At<'_>) -> Result<Vec<Plain>, RequestError>,
    ) -> Result<Self, RequestError> {
        let (forced, thought, against): (Arc<[u32]>, _, _) = match target {
            Target::Answer(said) if said.thought >= said.tokens.len() => {
                return Err(EngineError::EmptyPrompt.into());
            }
            Target::Answer(said) => (said.tokens.into(), said.thought, None),
            Target::Values(pair) => (Arc::clone(&pair.forced), 0, Some(pair.against)),
        };
        let at = |at: usize, logits: &[f32]| {
            let log_sum = log_sum_exp(logits);
            let is_kept = against.is_none() && (at == 0 || at >= thought);
            let distribution = is_kept.then(|| Distribution::of(logits, log_sum));
            let other = against.map_or(0.0, |token| log_p(token, logits, log_sum));
            (Position::with(forced[at], logits, log_sum), other, distribution)
        };
        let read = read(&forced, &at)?;
        let Some(&(_, other, _)) = read.last() else { return Err(EngineError::Interrupted.into()) };
        let (plain, distributions) = read.into_iter().map(|(plain, _, kept)| (plain, kept)).unzip();
        Ok(Metric { forced, thought, against: against.map(|token| (token, other)), plain, distributions })
    }

    /// Kind of metric.
    pub fn measure(&self) -> Measure {
        if self.against.is_some() { Measure::Contrast } else { Measure::LogP }
    }

    /// Baseline value in nats; for an answer the mean per token.
    pub fn value(&self) -> f64 {
        match self.pair() {
            Some(pair) => pair.contrast(),
            None => mean(self.plain[self.thought..].iter().map(|position| position.log_p)),
        }
    }

    /// Both log-probabilities of a contrast.
    pub fn pair(&self) -> Option<PairLogP> {
        let (_, against) = self.against?;
        Some(PairLogP { current: self.plain.last()?.log_p, against })
    }

    /// Number of answer tokens after the thought.
    pub fn answer_tokens(&self) -> usize {
        self.forced.len() - self.thought
    }

    /// Number of thought tokens.
    pub fn thought_tokens(&self) -> usize {
        self.thought
    }

    /// Drop of the metric under an ablation; positive if the answer depends on what was ablated.
    pub fn lost(&self, row: &EffectRow) -> f64 {
        match row {
            EffectRow::Answer(effect) => effect.log_p_drop,
            EffectRow::Contrast(pair) => self.value() - pair.contrast(),
        }
    }

    /// Measures after `history` under each of `holes`. `go_on` gets prefilled tokens, `sink` each row with its index; false stops.
    pub fn effects(
        &self,
        session: &mut Session,
        history: &History<'_>,
        holes: &[LayerHoles],
        go_on: &mut dyn FnMut(usize) -> bool,
        sink: &mut dyn FnMut(usize, EffectRow) -> bool,
    ) -> Result<(), RequestError> {
        let readings: Vec<_> = holes.iter().map(|holes| (self, history.rest, holes)).collect();
        Self::effects_together(session, &history.tokens, &readings, go_on, sink)
    }

    /// [`Self::effects`] for several metrics. Holes with rows in the history re-read it from there, once per run of equal holes.
    pub fn effects_together(
        session: &mut Session,
        history: &Arc<[u32]>,
        readings: &[Reading<'_>],
        go_on: &mut dyn FnMut(usize) -> bool,
        sink: &mut dyn FnMut(usize, EffectRow) -> bool,
    ) -> Result<(), RequestError> {
        let branches = readings.iter().map(|(metric, rest, holes)| forcing(rest, &metric.forced, holes));
        let at = |nth: usize, at: usize, logits: &[f32]| readings[nth].0.at(at, logits);
        let mut take = |nth: usize, read: Vec<(Position, f64)>| {
            readings[nth].0.row(&read).is_none_or(|row| sink(nth, row))
        };
        force(session, history, branches.collect(), &at, go_on, &mut take)
    }

    /// Prediction at position `at` of an ablated pass, with the KL divergence (answer) or the second value's log-probability (contrast).
    fn at(&self, at: usize, logits: &[f32]) -> (Position, f64) {
        let log_sum = log_sum_exp(logits);
        let other = match (self.against, &self.distributions[at]) {
            (Some((token, _)), _) => log_p(token, logits, log_sum),
            (None, Some(plain)) => plain.divergence(logits, log_sum),
            (None, None) => 0.0,
        };
        (Position::with(self.forced[at], logits, log_sum), other)
    }

    fn row(&self, read: &[(Position, f64)]) -> Option<EffectRow> {
        if self.against.is_some() {
            let (last, against) = read.last()?;
            return Some(EffectRow::Contrast(PairLogP { current: last.log_p, against: *against }));
        }
        let now: Vec<Position> = read.iter().map(|(position, _)| *position).collect();
        let part = |range: Range<usize>| lost(&self.plain[range.clone()], &now[range]);
        let thought = self.thought;
        let (log_p_drop, changed) = part(thought..self.forced.len());
        Some(EffectRow::Answer(Effect {
            log_p_drop,
            kl: read[thought].1,
            kl_answer: mean(read[thought..].iter().map(|(_, kl)| *kl)),
            changed,
            thought: (thought > 0).then(|| {
                let (log_p_drop, changed) = part(0..thought);
                ThoughtEffect { log_p_drop, kl: read[0].1, changed }
            }),
        }))
    }
}

/// Mean drop in log-probability from one pass to another, in nats, and whether some token is the argmax in only one of them.
pub fn lost(plain: &[Position], changed: &[Position]) -> (f64, bool) {
    let both = || plain.iter().zip(changed);
    let drop = mean(both().map(|(plain, now)| plain.log_p - now.log_p));
    (drop, both().any(|(plain, now)| plain.likeliest != now.likeliest))
}

/// KL(plain || changed) in nats, of two logit vectors (vocab), as in [`Effect::kl`].
pub fn divergence(plain: &[f32], changed: &[f32]) -> f64 {
    Distribution::of(plain, log_sum_exp(plain)).divergence(changed, log_sum_exp(changed))
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len().max(1) as f64;
    values.sum::<f64>() / n
}

/// A branch that forces tokens after the rest of a prompt, with keys hidden.
pub fn forcing(rest: &[u32], forced: &Arc<[u32]>, holes: &LayerHoles) -> Branch {
    Branch {
        tokens: rest.to_vec(),
        knockouts: holes.clone(),
        tasks: vec![Task::Force(Arc::clone(forced))],
        ..Branch::default()
    }
}

/// Appends `at` of the logits (positions, vocab) of forced positions, starting with index `first`, to `positions`.
pub fn collect<T: Send>(
    logits: &Tensor,
    first: usize,
    at: impl Fn(usize, &[f32]) -> T + Sync,
    positions: &mut Vec<T>,
) -> candle_core::Result<()> {
    let logits = logits.to_vec2::<f32>()?;
    // Vocabularies are large: one position per core.
    positions.par_extend(logits.par_iter().enumerate().map(|(nth, logits)| at(first + nth, logits)));
    Ok(())
}

/// Forces tokens in several branches. `at` maps branch index, position and logits; `take` gets a branch's results, false stops.
fn force<T: Send>(
    session: &mut Session,
    history: &Arc<[u32]>,
    branches: Vec<Branch>,
    at: &(dyn Fn(usize, usize, &[f32]) -> T + Sync),
    go_on: &mut dyn FnMut(usize) -> bool,
    take: &mut dyn FnMut(usize, Vec<T>) -> bool,
) -> Result<(), RequestError> {
    let mut read: Vec<Vec<T>> = branches.iter().map(|_| Vec::new()).collect();
    let request = Request { prefix: Arc::clone(history), reuse: Reuse::Longest, branches };
    let mut failed = None;
    session.run(request, &mut |nth, _, event| {
        let Some(positions) = read.get_mut(nth) else { return true };
        match event {
            Event::Prefilled(tokens) => return go_on(tokens),
            Event::Logits(first, logits) => {
                let collected =
                    collect(&logits, first, |position, logits| at(nth, position, logits), positions);
                failed = collected.err().map(Into::into).or(failed.take());
            }
            Event::Done(_) => return take(nth, std::mem::take(positions)),
            Event::Failed(error) => _ = failed.get_or_insert(error),
            _ => {}
        }
        true
    });
    failed.map_or(Ok(()), Err)
}
