//! Continuations of prompts that were read: those that wait for a place, and those that are being generated.
//!
//! Each is a branch of its prompt's trunk. All of them read their latest token in one forward pass; each chooses the next one by
//! itself, through [`Decoding`], and what fails in choosing, telling or measuring ends it alone.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use candle_core::Tensor;
use ndarray::Array2;

use super::reading::WholePrompt;
use super::request::{Choice, Chosen, Event, Measured, Next, Request, RequestError};
use crate::attention::{DeltaSite, Observer, Site};
use crate::engine::{Decoding, EngineError, Generated, Likelihood, Measurement, StopReason};
use crate::model::{Branch, Cache};
use crate::transfer;

/// A prompt that was read, and the continuations of it that are still to begin.
pub(super) struct Ready {
    pub trunk: u64,
    /// Where they begin.
    pub branch: Branch,
    pub choices: VecDeque<Choice>,
    /// Of the prompt's last position, f32 (vocab).
    logits: Tensor,
    measurement: Measurement,
    prompt: Arc<OfPrompt>,
}

/// What all continuations of a prompt tell at their end.
struct OfPrompt {
    logits: Array2<f32>,
    likelihoods: Vec<Likelihood>,
    reused: usize,
}

impl Ready {
    /// Of a prompt that `cache` ends with.
    ///
    /// # Errors
    /// Those of Candle: no memory.
    pub fn new(
        (trunk, cache): (u64, &Cache),
        prompt: WholePrompt,
        reused: usize,
        choices: &[Choice],
    ) -> Result<Self, RequestError> {
        let WholePrompt { logits, likelihoods, measurement } = prompt;
        let last = logits.get(logits.dim(0)? - 1)?;
        let shape = logits.dims2()?;
        let fetched = Array2::from_shape_vec(shape, transfer::fetch(&logits)?);
        let fetched = fetched.map_err(candle_core::Error::wrap)?;
        let room = match choices {
            [only] => only.request.room(),
            _ => 0,
        };
        let prompt = Arc::new(OfPrompt { logits: fetched, likelihoods, reused });
        let branch = cache.continuation(room)?;
        Ok(Ready { trunk, branch, choices: VecDeque::new(), logits: last, measurement, prompt })
    }

    /// Begins the next continuation. The last one takes the branch over where it has the room; then nothing is left.
    ///
    /// # Errors
    /// Those of Candle, for the continuation, which is told.
    pub fn begin(&mut self, choice: Choice) -> Option<Live> {
        let room = choice.request.room();
        let made = self.branch.fork(room);
        match made {
            Ok(branch) => Some(self.speak(choice, branch)),
            Err(error) => {
                choice.end(Err(error.into()));
                None
            }
        }
    }

    /// The one continuation there is.
    pub fn only(self, choice: Choice) -> Live {
        let Ready { trunk, branch, logits, measurement, prompt, .. } = self;
        Live::new(choice, (trunk, branch), &logits, measurement, prompt)
    }

    fn speak(&self, choice: Choice, branch: Branch) -> Live {
        let prompt = Arc::clone(&self.prompt);
        Live::new(choice, (self.trunk, branch), &self.logits, self.measurement.clone(), prompt)
    }
}

/// A continuation that is being generated.
pub(super) struct Live {
    choice: Choice,
    pub trunk: u64,
    pub branch: Branch,
    pub decoding: Decoding,
    measurement: Measurement,
    /// What went wrong in measuring it.
    failed: Option<RequestError>,
    /// Rows of generated tokens that were told.
    told: usize,
    prompt: Arc<OfPrompt>,
}

impl Live {
    fn new(
        choice: Choice,
        (trunk, branch): (u64, Branch),
        logits: &Tensor,
        measurement: Measurement,
        prompt: Arc<OfPrompt>,
    ) -> Self {
        let mut choice = choice;
        let Request { tokens, sampling, thinker, rules, prompt_likeliest, .. } = &choice.request;
        let decoding = Decoding::new(logits, sampling, thinker.clone()).with_rules(rules, tokens);
        let failed = match prompt_likeliest {
            None => None,
            Some(_) => match choice.hear(Event::Scored(prompt.likelihoods.clone())) {
                Ok(Next::Go) => None,
                Ok(Next::End | Next::Cancel) => Some(EngineError::Interrupted.into()),
                Err(error) => Some(error),
            },
        };
        Live { choice, trunk, branch, decoding, measurement, failed, told: 0, prompt }
    }

    /// Chooses the next token and tells it. Returns whether it is to be read: else the continuation has ended.
    ///
    /// # Errors
    /// What ends it without an answer.
    pub fn choose(&mut self) -> Result<bool, RequestError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        // The panic itself has been printed.
        let chosen = panic::catch_unwind(AssertUnwindSafe(|| self.try_choose()));
        chosen.unwrap_or(Err(RequestError::Panicked))
    }

    fn try_choose(&mut self) -> Result<bool, RequestError> {
        let Request { stop, likeliest, tell_rows, .. } = &self.choice.request;
        let room = self.choice.request.room();
        if room == 0 {
            return Ok(false);
        }
        let Some(token) = self.decoding.choose(stop, &mut self.measurement)? else { return Ok(false) };
        let likelihood = match likeliest {
            Some(most) => Some(likelihood(self.decoding.logits(), token, *most)?),
            None => None,
        };
        let mut rows = Vec::new();
        if *tell_rows && self.decoding.in_answer() {
            while self.told < self.measurement.generated_rows() {
                rows.extend(self.measurement.generated_row(self.told)?);
                self.told += 1;
            }
        }
        match self.choice.hear(Event::Token(Chosen { token, likelihood, rows }))? {
            Next::Go => {}
            Next::End => self.decoding.end_turn(),
            Next::Cancel => return Err(EngineError::Interrupted.into()),
        }
        Ok(self.decoding.tokens().len() < room && self.decoding.unread().is_some())
    }

    /// Tells the end: an answer, unless something went wrong.
    pub fn end(self, outcome: Result<(), RequestError>) {
        let Live { choice, decoding, measurement, prompt, failed, .. } = self;
        let request = &choice.request;
        let finish = || {
            if let Some(error) = failed {
                return Err(error);
            }
            let end = match (request.likeliest, decoding.ended_by()) {
                (Some(most), Some(token)) => Some(likelihood(decoding.logits(), token, most)?),
                _ => None,
            };
            let generated = match request.room() {
                0 => Generated { tokens: Vec::new(), thought: 0, stop: StopReason::MaxNewTokens },
                _ => decoding.finish(),
            };
            let masses = measurement.finish(generated.tokens.len())?;
            let top_keys = measurement.finish_top_keys(generated.tokens.len())?;
            let OfPrompt { logits, likelihoods, reused } = &*prompt;
            let (logits, prompt) = (logits.clone(), likelihoods.clone());
            Ok(Measured { logits, generated, masses, top_keys, reused: *reused, prompt, end })
        };
        let finished = outcome.and_then(|()| {
            let finished = panic::catch_unwind(AssertUnwindSafe(finish));
            finished.unwrap_or(Err(RequestError::Panicked))
        });
        choice.end(finished);
    }

    /// The branch, and who watches it.
    pub fn watched(&mut self) -> (&mut Branch, Watch<'_>) {
        let Live { branch, measurement, failed, .. } = self;
        (branch, Watch { measurement, failed })
    }
}

fn likelihood(logits: &Tensor, token: u32, most: usize) -> Result<Likelihood, EngineError> {
    Ok(Likelihood::of(token, &transfer::fetch(logits)?, most))
}

/// A measurement among others in a batch: what goes wrong in it is its own, and the forward pass of all goes on.
pub(super) struct Watch<'a> {
    measurement: &'a mut Measurement,
    failed: &'a mut Option<RequestError>,
}

impl Watch<'_> {
    fn guarded(
        &mut self,
        what: impl FnOnce(&mut Measurement) -> candle_core::Result<()>,
    ) -> candle_core::Result<()> {
        if self.failed.is_none() {
            let measurement = &mut *self.measurement;
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| what(measurement)));
            *self.failed = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.into()),
                Err(_) => Some(RequestError::Panicked),
            };
        }
        Ok(())
    }
}

impl Observer for Watch<'_> {
    fn wants(&self, site: &Site) -> bool {
        self.measurement.wants(site)
    }

    fn observe(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> candle_core::Result<()> {
        self.guarded(|measurement| measurement.observe(site, q, k))
    }

    fn segments(&self, site: &Site) -> Option<&[usize]> {
        self.measurement.segments(site)
    }

    fn take(&mut self, site: &Site, sums: Tensor) -> candle_core::Result<()> {
        self.guarded(|measurement| measurement.take(site, sums))
    }

    fn wants_delta(&self, site: &DeltaSite) -> bool {
        self.measurement.wants_delta(site)
    }

    fn observe_delta(
        &mut self,
        site: &DeltaSite,
        q: &Tensor,
        k: &Tensor,
        g: &Tensor,
        beta: &Tensor,
    ) -> candle_core::Result<()> {
        self.guarded(|measurement| measurement.observe_delta(site, q, k, g, beta))
    }
}
