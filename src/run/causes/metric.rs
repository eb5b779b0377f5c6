//! The metric of an answer that ablations change, read under teacher forcing: the log-probability of the model's own answer, or the contrast
//! of two values in its place.
//!
//! Called by the measures of this folder, by `why`, `trace` and the view's trials. A thought before an answer is read with it and counted
//! apart.

use std::sync::Arc;

use palimpsest_core::attention::{AttentionStore, LayerHoles};
use palimpsest_core::engine::{
    Backend, Branch, EngineError, Event, Request, RequestError, Reuse, Session, Task, is_likeliest,
    log_sum_exp,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::rows::{Effect, ThoughtEffect};
use crate::run::contrast::{PairLogP, ValuePair};

/// The part of a distribution that is kept as one number: that of its least likely tokens.
const REST: f64 = 1e-6;

/// Ranges of e-folds below the likeliest token in which probabilities are summed up to find the rest.
const FOLDS: usize = 128;

/// Generated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said<'a> {
    pub tokens: &'a [u32],
    /// Number of those that are a thought before the answer.
    pub thought: usize,
}

/// A prompt: its history, which the cache keeps, and the rest, which is read anew for each reading.
#[derive(Debug, Clone)]
pub struct History<'a> {
    pub tokens: Arc<[u32]>,
    pub rest: &'a [u32],
}

/// The tokens whose metric is read behind a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    Answer(Said<'a>),
    /// Two values that are held against each other.
    Values(&'a ValuePair),
}

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// log p of the current value less log p of the one that it is held against, in nats.
    Contrast,
    /// The model's own answer's natural-log probability, mean per token.
    LogP,
}

/// The metric of an answer with nothing changed.
#[derive(Debug)]
pub enum Metric {
    /// The natural-log probability of the model's own answer, mean per token.
    Answer(Answer),
    /// log p of the current value less log p of the one that it is held against, in nats.
    Contrast(ValuePair, PairLogP),
}

/// The outcome of a reading with something changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// The effect on the model's own answer.
    Answer(Effect),
    /// The log-probabilities of both values.
    Contrast(PairLogP),
}

/// Answers' metrics to read again after a history that their prompts share: a metric, the rest of its prompt, and the holes.
pub type Readings<'a> = &'a [(&'a Metric, &'a [u32], &'a LayerHoles)];

/// An answer under teacher forcing, with nothing changed.
#[derive(Debug)]
pub struct Answer {
    forced: Arc<[u32]>,
    thought: usize,
    plain: Vec<Position>,
    /// By position: those of the answer, and of the thought the first.
    distributions: Vec<Option<Distribution>>,
}

/// Prediction of a pass for one generated token.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Position {
    log_p: f64,
    /// True if it is the likeliest in its place.
    likeliest: bool,
}

impl Position {
    fn of(token: u32, logits: &[f32], log_sum: f64) -> Self {
        let log_p = logits.get(token as usize).map_or(f64::NEG_INFINITY, |&x| f64::from(x) - log_sum);
        Position { log_p, likeliest: is_likeliest(token, logits) }
    }
}

impl<'a> Said<'a> {
    /// The tokens generated for a probe.
    pub fn of(store: &'a AttentionStore) -> Self {
        Said { tokens: &store.generated, thought: store.thought() }
    }
}

impl Metric {
    /// Reads a target behind a prompt. `go_on` hears of tokens of the history that are computed.
    pub fn read(
        session: &mut Session,
        history: &History<'_>,
        target: Target<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, RequestError> {
        Ok(match target {
            Target::Answer(said) => Metric::Answer(Answer::read(session, history, said, go_on)?),
            Target::Values(pair) => {
                let read = read_pair(session, (history, pair), &LayerHoles::default(), go_on)?;
                Metric::Contrast(pair.clone(), read)
            }
        })
    }

    /// The kind.
    pub fn measure(&self) -> Measure {
        match self {
            Metric::Answer(_) => Measure::LogP,
            Metric::Contrast(..) => Measure::Contrast,
        }
    }

    /// Its value, in nats.
    pub fn value(&self) -> f64 {
        match self {
            Metric::Answer(answer) => answer.log_p(),
            Metric::Contrast(_, read) => read.contrast(),
        }
    }

    /// The drop of its value by a change of it: above 0 the answer needs what was left out.
    pub fn lost(&self, change: &Change) -> f64 {
        match change {
            Change::Answer(effect) => effect.log_p_drop,
            Change::Contrast(read) => self.value() - read.contrast(),
        }
    }

    fn forced(&self) -> &Arc<[u32]> {
        match self {
            Metric::Answer(answer) => &answer.forced,
            Metric::Contrast(pair, _) => pair.forced(),
        }
    }

    /// Reads it again after `history` under each of `holes`. `go_on` hears of tokens of the history that are computed, `sink` of each
    /// change by its number; both say whether to go on.
    pub fn changes(
        &self,
        session: &mut Session,
        history: &History<'_>,
        holes: &[LayerHoles],
        go_on: &mut dyn FnMut(usize) -> bool,
        sink: &mut dyn FnMut(usize, Change) -> bool,
    ) -> Result<(), RequestError> {
        let readings: Vec<_> = holes.iter().map(|holes| (self, history.rest, holes)).collect();
        Self::changes_together(session, &history.tokens, &readings, go_on, sink)
    }

    /// The same of several. Holes that begin in the history have it read again from there on, once for readings next to each other that hide
    /// the same there.
    pub fn changes_together(
        session: &mut Session,
        history: &Arc<[u32]>,
        readings: Readings<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
        sink: &mut dyn FnMut(usize, Change) -> bool,
    ) -> Result<(), RequestError> {
        let forced =
            readings.iter().map(|(metric, rest, holes)| Forced { rest, forced: metric.forced(), holes });
        let passed: Vec<Forced<'_>> = forced.collect();
        let of = |nth: usize, at: usize, logits: &[f32]| readings[nth].0.at(at, logits);
        let mut take =
            |nth: usize, read: Vec<Read>| readings[nth].0.change(read).is_none_or(|change| sink(nth, change));
        passes(session, history, &passed, &of, go_on, &mut take)
    }

    /// A changed pass at one of its tokens.
    fn at(&self, at: usize, logits: &[f32]) -> Read {
        match self {
            Metric::Answer(answer) => {
                let (position, kl) = answer.changed(at, logits);
                Read::Token(position, kl)
            }
            Metric::Contrast(pair, _) => Read::Values(pair.log_p(at, logits)),
        }
    }

    /// The change by a whole pass.
    fn change(&self, read: Vec<Read>) -> Option<Change> {
        let Metric::Answer(answer) = self else {
            let values = |read| if let Read::Values(values) = read { values } else { None };
            return read.into_iter().find_map(values).map(Change::Contrast);
        };
        let token = |read| if let Read::Token(position, kl) = read { Some((position, kl)) } else { None };
        let tokens: Vec<_> = read.into_iter().filter_map(token).collect();
        Some(Change::Answer(answer.effect(&tokens)))
    }
}

/// A changed pass at one position.
enum Read {
    /// The prediction of an answer's token, and its divergence from the one as it was.
    Token(Position, f64),
    /// Both values, where they differ.
    Values(Option<PairLogP>),
}

impl Answer {
    /// The answer in `said` to the prompt of `history`. `go_on` hears of tokens of the history that are computed.
    pub fn read(
        session: &mut Session,
        history: &History<'_>,
        said: Said<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Self, RequestError> {
        if said.thought >= said.tokens.len() {
            return Err(EngineError::EmptyPrompt.into());
        }
        let forced: Arc<[u32]> = said.tokens.into();
        let of = |at: usize, logits: &[f32]| {
            let log_sum = log_sum_exp(logits);
            let kept = (at == 0 || at >= said.thought).then(|| Distribution::of(logits, log_sum));
            (Position::of(said.tokens[at], logits, log_sum), kept)
        };
        let mut read = Vec::new();
        let pass = Forced { rest: history.rest, forced: &forced, holes: &LayerHoles::default() };
        passes(
            session,
            &history.tokens,
            &[pass],
            &|_, at, logits| of(at, logits),
            go_on,
            &mut |_, positions| {
                read = positions;
                true
            },
        )?;
        let (plain, distributions) = read.into_iter().unzip();
        Ok(Answer { forced, thought: said.thought, plain, distributions })
    }

    /// The natural-log probability of the answer behind the thought, mean per token.
    pub fn log_p(&self) -> f64 {
        mean(self.plain[self.thought..].iter().map(|position| position.log_p))
    }

    /// Tokens of the answer behind the thought.
    pub fn answer_tokens(&self) -> usize {
        self.forced.len() - self.thought
    }

    /// Tokens of the thought.
    pub fn thought_tokens(&self) -> usize {
        self.thought
    }

    /// The effects of hiding each of `holes` after `history`, or of another history than the answer's. `go_on` hears of tokens of the
    /// history that are computed, `sink` of each effect by its number; both say whether to go on.
    pub fn effects(
        &self,
        session: &mut Session,
        history: &History<'_>,
        holes: &[LayerHoles],
        go_on: &mut dyn FnMut(usize) -> bool,
        sink: &mut dyn FnMut(usize, Effect) -> bool,
    ) -> Result<(), RequestError> {
        let reading = |holes| Forced { rest: history.rest, forced: &self.forced, holes };
        let readings: Vec<_> = holes.iter().map(reading).collect();
        let of = |_: usize, at: usize, logits: &[f32]| self.changed(at, logits);
        let mut take = |nth: usize, changed: Vec<(Position, f64)>| sink(nth, self.effect(&changed));
        passes(session, &history.tokens, &readings, &of, go_on, &mut take)
    }

    /// The prediction of a changed pass for the token at `at`, and its divergence from the one as it was.
    fn changed(&self, at: usize, logits: &[f32]) -> (Position, f64) {
        let log_sum = log_sum_exp(logits);
        let kl = self.distributions[at].as_ref().map_or(0.0, |plain| plain.divergence(logits, log_sum));
        (Position::of(self.forced[at], logits, log_sum), kl)
    }

    fn effect(&self, changed: &[(Position, f64)]) -> Effect {
        let part = |range: std::ops::Range<usize>| {
            let both = || self.plain[range.clone()].iter().zip(&changed[range.clone()]);
            let drop = mean(both().map(|(plain, (now, _))| plain.log_p - now.log_p));
            (drop, both().any(|(plain, (now, _))| plain.likeliest != now.likeliest))
        };
        let thought = self.thought;
        let (log_p_drop, differs) = part(thought..self.forced.len());
        Effect {
            log_p_drop,
            kl: changed[thought].1,
            kl_answer: mean(changed[thought..].iter().map(|(_, kl)| *kl)),
            changed: differs,
            thought: (thought > 0).then(|| {
                let (log_p_drop, differs) = part(0..thought);
                ThoughtEffect { log_p_drop, kl: changed[0].1, changed: differs }
            }),
        }
    }
}

/// Reads a pair of values after a history once.
pub fn read_pair(
    session: &mut Session,
    read: (&History<'_>, &ValuePair),
    holes: &LayerHoles,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<PairLogP, RequestError> {
    let (history, pair) = read;
    let reading = Forced { rest: history.rest, forced: pair.forced(), holes };
    let of = |_: usize, at: usize, logits: &[f32]| pair.log_p(at, logits);
    let mut found = None;
    passes(session, &history.tokens, &[reading], &of, go_on, &mut |_, read| {
        found = read.into_iter().flatten().next();
        true
    })?;
    found.ok_or_else(|| EngineError::Interrupted.into())
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len().max(1) as f64;
    values.sum::<f64>() / n
}

/// Tokens that are forced behind a history and the rest of a prompt, with keys hidden.
struct Forced<'a> {
    rest: &'a [u32],
    forced: &'a Arc<[u32]>,
    holes: &'a LayerHoles,
}

/// Forces tokens in several readings. Of each position `of` makes something from the reading's number, its own and its logits; `take` gets
/// all of a reading's and says whether to go on.
fn passes<T: Send>(
    session: &mut Session,
    history: &Arc<[u32]>,
    readings: &[Forced<'_>],
    of: &(dyn Fn(usize, usize, &[f32]) -> T + Sync),
    go_on: &mut dyn FnMut(usize) -> bool,
    take: &mut dyn FnMut(usize, Vec<T>) -> bool,
) -> Result<(), RequestError> {
    let branch = |reading: &Forced<'_>| Branch {
        tokens: reading.rest.to_vec(),
        knockouts: reading.holes.clone(),
        tasks: vec![Task::Force(Arc::clone(reading.forced))],
        ..Branch::default()
    };
    let request = Request {
        prefix: Arc::clone(history),
        reuse: Reuse::Longest,
        branches: readings.iter().map(branch).collect(),
    };
    let mut read: Vec<Vec<T>> =
        readings.iter().map(|reading| Vec::with_capacity(reading.forced.len())).collect();
    let mut failed = None;
    session.run(request, &mut |nth, _, event| {
        let Some(positions) = read.get_mut(nth) else { return true };
        match event {
            Event::Prefilled(tokens) => go_on(tokens),
            Event::Logits(at, logits) => {
                match logits.to_vec2::<f32>() {
                    // Vocabularies are large: a position a core.
                    Ok(logits) => positions
                        .par_extend(logits.par_iter().enumerate().map(|(i, logits)| of(nth, at + i, logits))),
                    Err(error) => failed = Some(error.into()),
                }
                true
            }
            Event::Done(_) => take(nth, std::mem::take(positions)),
            Event::Failed(error) => {
                failed.get_or_insert(error);
                true
            }
            _ => true,
        }
    });
    failed.map_or(Ok(()), Err)
}

/// The distribution of one position: its likeliest tokens, and the rest, at most [`REST`], as one. A long answer's whole distributions would
/// take gigabytes.
#[derive(Debug)]
struct Distribution {
    /// Tokens and logits.
    tokens: Vec<(u32, f32)>,
    log_sum: f64,
    rest: f64,
}

impl Distribution {
    fn of(logits: &[f32], log_sum: f64) -> Self {
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let fold = |x: f32| ((greatest - x).max(0.0) as usize).min(FOLDS - 1);
        let mut sums = [0.0; FOLDS];
        for &x in logits {
            sums[fold(x)] += (f64::from(x) - log_sum).exp();
        }
        // The fewest folds from the likeliest on that leave no more than that out.
        let mut rest = 0.0;
        let mut kept = FOLDS;
        while kept > 1 && rest + sums[kept - 1] <= REST {
            kept -= 1;
            rest += sums[kept];
        }
        let tokens = (0u32..).zip(logits.iter().copied()).filter(|(_, x)| fold(*x) < kept).collect();
        Distribution { tokens, log_sum, rest }
    }

    /// The Kullback-Leibler divergence of the distribution of `logits` from this one, in nats, with the rest as one outcome: too small by at
    /// most the divergence within the rest times [`REST`].
    fn divergence(&self, logits: &[f32], log_sum: f64) -> f64 {
        let (mut sum, mut held) = (0.0, 0.0);
        for &(token, x) in &self.tokens {
            let log_p = f64::from(x) - self.log_sum;
            let log_q = logits.get(token as usize).map_or(f64::NEG_INFINITY, |&y| f64::from(y) - log_sum);
            sum += log_p.exp() * (log_p - log_q);
            held += log_q.exp();
        }
        if self.rest > 0.0 {
            // What rounding leaves of a rest that is all but nothing is not taken for one.
            let other = (1.0 - held).max(f64::EPSILON);
            sum += self.rest * (self.rest / other).ln();
        }
        sum.max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::draw::Draws;

    fn plain(p: &[f32], q: &[f32]) -> f64 {
        let log = |x: &[f32]| -> Vec<f64> {
            let all: f64 = x.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            x.iter().map(|&x| f64::from(x) - all).collect()
        };
        log(p).iter().zip(log(q)).map(|(p, q)| p.exp() * (p - q)).sum()
    }

    #[test]
    fn divergences_without_the_least_likely_tokens_are_those_of_all() {
        let mut draws = Draws::new("divergence", 0, "");
        for spread in [1.0, 10.0, 40.0] {
            let mut logits = || (0..5000).map(|_| spread * draws.index(10_000) as f32 / 10_000.0).collect();
            let (p, q): (Vec<f32>, Vec<f32>) = (logits(), logits());
            let near: Vec<f32> = p.iter().zip(&q).map(|(p, q)| p + 0.01 * q).collect();
            let kept = Distribution::of(&p, log_sum_exp(&p));
            for other in [&p, &q, &near] {
                let (found, expected) = (kept.divergence(other, log_sum_exp(other)), plain(&p, other));
                assert!((found - expected).abs() < 1e-4, "{spread}: {found} is not {expected}");
            }
            assert!(kept.divergence(&p, log_sum_exp(&p)) < 1e-9);
            // Flat distributions are kept whole, steep ones are not.
            assert_eq!(kept.tokens.len() < 4000, spread == 40.0, "{spread}: {}", kept.tokens.len());
        }
    }
}
