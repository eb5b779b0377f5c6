//! The metric of an answer that ablations change, read under teacher forcing. A thought before an answer is read with it and counted apart.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::distribution::Distribution;
use super::prompt::History;
use crate::attention::LayerHoles;
use crate::engine::{
    Backend, Branch, EngineError, Event, Request, RequestError, Reuse, Session, Task, is_likeliest,
    log_sum_exp,
};

/// Generated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said<'a> {
    /// All of them.
    pub tokens: &'a [u32],
    /// Number of those that are a thought before the answer.
    pub thought: usize,
}

/// Two values that are held against each other at one position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValuePair {
    /// Tokens of the first value up to the one that differs; never empty.
    pub forced: Arc<[u32]>,
    /// The other value's token in the place of the last of those.
    pub against: u32,
}

impl ValuePair {
    /// The first value's token that differs.
    pub fn current(&self) -> u32 {
        self.forced.last().copied().unwrap_or_default()
    }

    /// The tokens that both values begin with.
    pub fn before(&self) -> &[u32] {
        &self.forced[..self.forced.len().saturating_sub(1)]
    }
}

/// The tokens whose metric is read behind a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// Generated tokens.
    Answer(Said<'a>),
    /// Two values that are held against each other.
    Values(&'a ValuePair),
}

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// log p of one value less log p of another, in nats.
    Contrast,
    /// The answer's natural-log probability, mean per token.
    LogP,
}

/// Prediction of a pass for one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    /// The token's natural-log probability.
    pub log_p: f64,
    /// True if it is the likeliest in its place.
    pub likeliest: bool,
}

impl Position {
    /// The prediction of a token by the logits (vocab) in its place.
    pub fn of(token: u32, logits: &[f32]) -> Self {
        Self::with(token, logits, log_sum_exp(logits))
    }

    fn with(token: u32, logits: &[f32], log_sum: f64) -> Self {
        Position { log_p: log_p(token, logits, log_sum), likeliest: is_likeliest(token, logits) }
    }
}

fn log_p(token: u32, logits: &[f32], log_sum: f64) -> f64 {
    logits.get(token as usize).map_or(f64::NEG_INFINITY, |&x| f64::from(x) - log_sum)
}

/// Effect of an ablation on an answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Drop of the answer's natural-log probability, mean per token in nats: plain minus changed. Above 0 the answer needs it.
    pub log_p_drop: f64,
    /// The Kullback-Leibler divergence, in nats, of the first answer token's distribution from the one as it was.
    pub kl: f64,
    /// The same, averaged over all of the answer's tokens.
    pub kl_answer: f64,
    /// True if some token of the answer is no longer, or only now, the likeliest in its place.
    pub changed: bool,
    /// Effect on the thought before the answer; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<ThoughtEffect>,
}

/// Effect of an ablation on the thought before an answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThoughtEffect {
    /// Drop of the thought's natural-log probability, mean per token in nats.
    pub log_p_drop: f64,
    /// The divergence of the first thought token's distribution, in nats.
    pub kl: f64,
    /// True if some token of the thought is no longer, or only now, the likeliest in its place.
    pub changed: bool,
}

/// Natural-log probabilities of a pair of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairLogP {
    /// The first value's.
    pub current: f64,
    /// The other value's.
    pub against: f64,
}

impl PairLogP {
    /// The contrast, in nats: above 0 the first value is the likelier one.
    pub fn contrast(self) -> f64 {
        self.current - self.against
    }
}

/// The change by an ablation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EffectRow {
    /// The effect on an answer.
    Answer(Effect),
    /// The log-probabilities of both values after it.
    Contrast(PairLogP),
}

impl EffectRow {
    /// The effect on an answer.
    pub fn effect(self) -> Option<Effect> {
        if let EffectRow::Answer(effect) = self { Some(effect) } else { None }
    }

    /// The log-probabilities of two values after the ablation.
    pub fn pair(self) -> Option<PairLogP> {
        if let EffectRow::Contrast(pair) = self { Some(pair) } else { None }
    }
}

/// The metric of an answer with nothing changed.
#[derive(Debug)]
pub struct Metric {
    forced: Arc<[u32]>,
    thought: usize,
    /// The other value's token and its log-probability, in a contrast.
    against: Option<(u32, f64)>,
    plain: Vec<Position>,
    /// By position: those of an answer, and of a thought the first.
    distributions: Vec<Option<Distribution>>,
}

/// A metric to read again after a history: the rest of its prompt, and the keys hidden.
pub type Reading<'a> = (&'a Metric, &'a [u32], &'a LayerHoles);

impl Metric {
    /// Reads a target behind a prompt. `go_on` hears of tokens of the history that are computed, and says whether to go on.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`] where an answer has no token behind its thought, [`EngineError::Interrupted`] after a stop.
    pub fn read(
        session: &mut Session,
        history: &History<'_>,
        target: Target<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, RequestError> {
        let (forced, thought, against): (Arc<[u32]>, _, _) = match target {
            Target::Answer(said) if said.thought >= said.tokens.len() => {
                return Err(EngineError::EmptyPrompt.into());
            }
            Target::Answer(said) => (said.tokens.into(), said.thought, None),
            Target::Values(pair) => (Arc::clone(&pair.forced), 0, Some(pair.against)),
        };
        let at = |_: usize, at: usize, logits: &[f32]| {
            let log_sum = log_sum_exp(logits);
            let is_kept = against.is_none() && (at == 0 || at >= thought);
            let distribution = is_kept.then(|| Distribution::of(logits, log_sum));
            let other = against.map_or(0.0, |token| log_p(token, logits, log_sum));
            (Position::with(forced[at], logits, log_sum), other, distribution)
        };
        let mut read = Vec::new();
        let mut take = |_: usize, positions| {
            read = positions;
            true
        };
        let plain = [forcing(history.rest, &forced, &LayerHoles::default())];
        force(session, &history.tokens, plain.into(), &at, go_on, &mut take)?;
        let Some(&(_, other, _)) = read.last() else { return Err(EngineError::Interrupted.into()) };
        let (plain, distributions) = read.into_iter().map(|(plain, _, kept)| (plain, kept)).unzip();
        Ok(Metric { forced, thought, against: against.map(|token| (token, other)), plain, distributions })
    }

    /// Its kind.
    pub fn measure(&self) -> Measure {
        if self.against.is_some() { Measure::Contrast } else { Measure::LogP }
    }

    /// Its value, in nats: of an answer the mean per token.
    pub fn value(&self) -> f64 {
        match self.pair() {
            Some(pair) => pair.contrast(),
            None => mean(self.plain[self.thought..].iter().map(|position| position.log_p)),
        }
    }

    /// Both values of a contrast.
    pub fn pair(&self) -> Option<PairLogP> {
        let (_, against) = self.against?;
        Some(PairLogP { current: self.plain.last()?.log_p, against })
    }

    /// Tokens of the answer behind the thought.
    pub fn answer_tokens(&self) -> usize {
        self.forced.len() - self.thought
    }

    /// Tokens of the thought.
    pub fn thought_tokens(&self) -> usize {
        self.thought
    }

    /// The drop of its value by an ablation: above 0 the answer needs what was left out.
    pub fn lost(&self, row: &EffectRow) -> f64 {
        match row {
            EffectRow::Answer(effect) => effect.log_p_drop,
            EffectRow::Contrast(pair) => self.value() - pair.contrast(),
        }
    }

    /// Reads it again after `history` under each of `holes`. `go_on` hears of tokens of the history that are computed, `sink` of each
    /// row by its number; both say whether to go on.
    ///
    /// # Errors
    /// [`RequestError`] where a pass fails or is stopped.
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

    /// The same of several metrics. Holes that begin in the history have it read again from there on, once for readings next to each other
    /// that hide the same there.
    ///
    /// # Errors
    /// [`RequestError`] where a pass fails or is stopped.
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

    /// A changed pass at one of its tokens: the prediction, and of an answer its divergence from the one as it was, of a contrast the other
    /// value's log-probability.
    fn at(&self, at: usize, logits: &[f32]) -> (Position, f64) {
        let log_sum = log_sum_exp(logits);
        let other = match (self.against, &self.distributions[at]) {
            (Some((token, _)), _) => log_p(token, logits, log_sum),
            (None, Some(plain)) => plain.divergence(logits, log_sum),
            (None, None) => 0.0,
        };
        (Position::with(self.forced[at], logits, log_sum), other)
    }

    /// The row of a whole pass.
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

/// The mean log-probability that tokens lose from one pass to another, in nats, and whether one is the likeliest in its place in one of the
/// two alone.
pub fn lost(plain: &[Position], changed: &[Position]) -> (f64, bool) {
    let both = || plain.iter().zip(changed);
    let drop = mean(both().map(|(plain, now)| plain.log_p - now.log_p));
    (drop, both().any(|(plain, now)| plain.likeliest != now.likeliest))
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len().max(1) as f64;
    values.sum::<f64>() / n
}

/// A branch that forces tokens behind the rest of a prompt, with keys hidden.
pub fn forcing(rest: &[u32], forced: &Arc<[u32]>, holes: &LayerHoles) -> Branch {
    Branch {
        tokens: rest.to_vec(),
        knockouts: holes.clone(),
        tasks: vec![Task::Force(Arc::clone(forced))],
        ..Branch::default()
    }
}

/// Adds what `at` makes of the logits of some forced positions (positions, vocab), of which the first is number `first`, to `positions`.
///
/// # Errors
/// Returns an error if the logits cannot be copied to the host.
pub fn collect<T: Send>(
    logits: &Tensor,
    first: usize,
    at: impl Fn(usize, &[f32]) -> T + Sync,
    positions: &mut Vec<T>,
) -> candle_core::Result<()> {
    let logits = logits.to_vec2::<f32>()?;
    // Vocabularies are large: a position a core.
    positions.par_extend(logits.par_iter().enumerate().map(|(nth, logits)| at(first + nth, logits)));
    Ok(())
}

/// Forces tokens in several branches. Of each position `at` makes something from the branch's number, its own and its logits; `take` gets
/// all of a branch's and says whether to go on.
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
