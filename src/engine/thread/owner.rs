//! What the thread does: one request after the other, with one cache.
//!
//! Prompts are read in chunks that begin at multiples of the engine's chunk size, whatever the cache holds. So a chunk that is in
//! the cache has the same bits as one that is read anew, and what a prompt shares with the one before it, in whole chunks, is
//! kept: answers do not depend on what was asked before.

use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::Receiver;

use candle_core::Tensor;
use ndarray::Array2;

use super::request::{Chosen, Event, Job, Measured, Next, Request, RequestError, Sink};
use crate::engine::{Decoding, Engine, EngineError, Generated, Likelihood, Measurement, StopReason};
use crate::model::Cache;
use crate::transfer;

/// The engine, its cache, and the requests to come.
pub struct EngineLoop {
    engine: Engine,
    cache: Cache,
    context: usize,
    /// The tokens at the start of the cache that may be kept: those of whole chunks of a prompt.
    held: Vec<u32>,
    jobs: Receiver<Job>,
}

impl EngineLoop {
    pub(super) fn new(engine: Engine, cache: Cache, jobs: Receiver<Job>) -> Self {
        EngineLoop { context: cache.capacity(), engine, cache, held: Vec::new(), jobs }
    }

    /// Serves requests until nobody can ask any more. A worker of the pool that computes is held while a request is served; a
    /// caller that is one itself is held all the time.
    pub fn run(mut self) {
        while let Ok(Job { request, mut sink }) = self.jobs.recv() {
            let served = panic::catch_unwind(AssertUnwindSafe(|| {
                // One that was cancelled while it waited costs nothing.
                let done = match sink(Event::Prefilled(0)) {
                    Next::Go => rayon::scope(|_| self.answer(&request, &mut sink)),
                    Next::End | Next::Cancel => Err(EngineError::Interrupted.into()),
                };
                sink(match done {
                    Ok(measured) => Event::Done(Box::new(measured)),
                    Err(error) => Event::Failed(error),
                });
            }));
            if served.is_err() {
                // The panic has been printed.
                self.held.clear();
                let _ = self.cache.truncate(0);
                let told = AssertUnwindSafe(|| sink(Event::Failed(RequestError::Panicked)));
                let _ = panic::catch_unwind(told);
            }
        }
    }

    fn answer(&mut self, request: &Request, sink: &mut Sink) -> Result<Measured, RequestError> {
        let Request { tokens, rows, keys, .. } = request;
        let needed = tokens.len().saturating_add(request.room());
        if needed > self.context {
            return Err(RequestError::TooLong { needed, context: self.context });
        }
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt.into());
        }
        let mut measurement = Measurement::new(rows.clone(), keys.clone(), tokens.len())?;
        let same = self.held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let reused = self.keep(request, same)?;
        if sink(Event::Prefilled(reused)) != Next::Go {
            return Err(EngineError::Interrupted.into());
        }
        let prefilled = self.prefill(request, same, &mut measurement, sink);
        let whole = self.cache.len().min(tokens.len()) / self.engine.chunk() * self.engine.chunk();
        self.held = tokens.get(..whole).unwrap_or_default().to_vec();
        if !matches!(&prefilled, Ok(_) | Err(EngineError::Interrupted)) {
            self.held.clear();
        }
        let (logits, prompt) = prefilled?;
        if request.prompt_likeliest.is_some() && sink(Event::Scored(prompt.clone())) != Next::Go {
            return Err(EngineError::Interrupted.into());
        }
        let last = logits.get(logits.dim(0)? - 1)?;
        let (generated, end) = self.decode(request, &last, &mut measurement, sink)?;
        let masses = measurement.finish(generated.tokens.len())?;
        let shape = logits.dims2()?;
        let logits = Array2::from_shape_vec(shape, transfer::fetch(&logits)?);
        let logits = logits.map_err(candle_core::Error::wrap)?;
        Ok(Measured { logits, generated, masses, reused, prompt, end })
    }

    /// Leaves in the cache what is kept for a request that shares its first `same` tokens with those held; returns how many
    /// tokens that is.
    fn keep(&mut self, request: &Request, same: usize) -> Result<usize, RequestError> {
        let Request { tokens, keep, rows, prompt_likeliest, .. } = request;
        let n = tokens.len();
        // The first position that must be read: one whose logits or whose row is wanted.
        let mut first = n - (*keep).clamp(1, n);
        first = rows.spans.iter().map(|row| row.start).fold(first, usize::min);
        let measured = !rows.spans.is_empty() || rows.answer.any();
        let linear = || self.engine.decoder().spec().layers.iter().any(|layer| layer.delta_net().is_some());
        // The keys of linear-attention layers are in no cache.
        if prompt_likeliest.is_some() || (measured && linear()) {
            first = 0;
        }
        let chunk = self.engine.chunk();
        let kept = self.cache.truncate(same.min(first) / chunk * chunk)?;
        self.held.truncate(kept);
        Ok(kept)
    }

    /// Reads what is not in the cache. A later request may begin where this one parts from the one before it, and where its
    /// last whole chunk ends: layers that cannot go back anywhere else leave a mark there.
    fn prefill(
        &mut self,
        request: &Request,
        same: usize,
        measurement: &mut Measurement,
        sink: &mut Sink,
    ) -> Result<(Tensor, Vec<Likelihood>), EngineError> {
        let (engine, cache) = (&self.engine, &mut self.cache);
        let (tokens, chunk) = (&request.tokens, engine.chunk());
        let mut go_on = |done| sink(Event::Prefilled(done)) == Next::Go;
        if let Some(most) = request.prompt_likeliest {
            return score(engine, cache, tokens, most, measurement, &mut go_on);
        }
        let n = tokens.len();
        let keep = request.keep.clamp(1, n);
        for border in [same.min(n - keep), n - keep].map(|at| at / chunk * chunk) {
            if cache.len() < border {
                let part = tokens.get(cache.len()..border).unwrap_or_default();
                engine.fill_cache(cache, part, measurement, &mut go_on)?;
            }
            if cache.len() == border && border > 0 {
                cache.mark()?;
            }
        }
        let rest = tokens.get(cache.len()..).unwrap_or_default();
        Ok((measurement.prefill(engine, cache, rest, keep, &mut go_on)?, Vec::new()))
    }

    fn decode(
        &mut self,
        request: &Request,
        logits: &Tensor,
        measurement: &mut Measurement,
        sink: &mut Sink,
    ) -> Result<(Generated, Option<Likelihood>), EngineError> {
        let room = request.room();
        if room == 0 {
            return Ok((Generated { tokens: Vec::new(), thought: 0, stop: StopReason::MaxNewTokens }, None));
        }
        let decoding = Decoding::new(logits, &request.sampling, request.thinker.clone());
        let mut decoding = decoding.with_rules(&request.rules);
        let mut told = 0;
        while let Some(token) = decoding.choose(&request.stop, measurement)? {
            let likelihood = match request.likeliest {
                Some(most) => Some(likelihood(decoding.logits(), token, most)?),
                None => None,
            };
            let mut rows = Vec::new();
            if request.tell_rows && decoding.in_answer() {
                while told < measurement.generated_rows() {
                    rows.extend(measurement.generated_row(told)?);
                    told += 1;
                }
            }
            match sink(Event::Token(Chosen { token, likelihood, rows })) {
                Next::Go => {}
                Next::End => decoding.end_turn(),
                Next::Cancel => return Err(EngineError::Interrupted),
            }
            if decoding.tokens().len() >= room {
                break;
            }
            decoding.read(&self.engine, &mut self.cache, measurement)?;
        }
        let end = match (request.likeliest, decoding.ended_by()) {
            (Some(most), Some(token)) => Some(likelihood(decoding.logits(), token, most)?),
            _ => None,
        };
        Ok((decoding.finish(), end))
    }
}

fn likelihood(logits: &Tensor, token: u32, most: usize) -> Result<Likelihood, EngineError> {
    Ok(Likelihood::of(token, &transfer::fetch(logits)?, most))
}

/// Reads a whole prompt and says how likely each of its tokens was, chunk by chunk: the logits of all positions of a long prompt
/// take more memory than the model.
fn score(
    engine: &Engine,
    cache: &mut Cache,
    tokens: &[u32],
    most: usize,
    measurement: &mut Measurement,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<(Tensor, Vec<Likelihood>), EngineError> {
    let mut likelihoods = Vec::with_capacity(tokens.len());
    let mut last = None;
    for chunk in tokens.chunks(engine.chunk()) {
        let logits = measurement.prefill(engine, cache, chunk, chunk.len(), go_on)?;
        let (rows, vocab) = logits.dims2()?;
        let numbers = transfer::fetch(&logits)?;
        for row in numbers.chunks_exact(vocab.max(1)) {
            let Some(&next) = tokens.get(likelihoods.len() + 1) else { break };
            likelihoods.push(Likelihood::of(next, row, most));
        }
        last = Some(logits.narrow(0, rows - 1, 1)?);
    }
    Ok((last.ok_or(EngineError::EmptyPrompt)?, likelihoods))
}
