//! Answers that wait for a slot or are being decoded. Each is a branch of its prompt's trunk; all share one forward pass per step and
//! sample through [`Decoding`]. An error in sampling, reporting or measuring ends only that answer.

use std::collections::VecDeque;
use std::sync::Arc;

use candle_core::Tensor;
use ndarray::Array2;

use super::pending::Pending;
use super::reading::{Current, RequestId};
use crate::attention::{self, KeptShares, LayerHoles, Observer, Point, Wanted};
use crate::engine::request::{Choice, Chosen, Event, Generate, Measured, Next, Task};
use crate::engine::request_error::{RequestError, guarded};
use crate::engine::{Decoding, Engine, EngineError, Generated, Likelihood, Measurement};
use crate::model::{Branch, Cache};
use crate::transfer;

/// A prompt after prefill, with the answers still to start.
pub(super) struct Ready {
    pub id: RequestId,
    pub trunk: u64,
    pub branch: Branch,
    pub choices: VecDeque<Choice>,
    prompt: Arc<OfPrompt>,
}

/// Output shared by all tasks of a prompt.
#[derive(Default)]
pub(super) struct OfPrompt {
    tokens: Arc<[u32]>,
    /// Logits of the last position, f32 (vocab); `None` for forced answers.
    last: Option<Tensor>,
    /// f32 (requested positions, vocab)
    logits: Array2<f32>,
    likelihoods: Option<Vec<Likelihood>>,
    reused: usize,
    measurement: Measurement,
    knockouts: LayerHoles,
    kept: Option<KeptShares>,
}

impl OfPrompt {
    /// Separates the shared output of a prompt, with its logits f32 (requested positions, vocab), from the waiting tasks.
    pub fn new(logits: &Tensor, read: Current) -> Result<(Self, Vec<Choice>), (Vec<Choice>, RequestError)> {
        let Current { branch, reused, measurement, likelihoods, .. } = read;
        let Pending { prompt: tokens, knockouts, shares: kept, observe, choices, .. } = branch;
        let likelihoods = observe.likeliest.map(|_| likelihoods);
        let fetched = || -> Result<(Tensor, Array2<f32>), candle_core::Error> {
            let last = logits.get(logits.dim(0)? - 1)?;
            let fetched = Array2::from_shape_vec(logits.dims2()?, transfer::fetch(logits)?);
            Ok((last, fetched.map_err(candle_core::Error::wrap)?))
        };
        match fetched() {
            Ok((last, logits)) => {
                let measurement = measurement.unwrap_or_else(|| Measurement::nothing(tokens.len()));
                let last = Some(last);
                Ok((
                    OfPrompt { tokens, last, logits, likelihoods, reused, measurement, knockouts, kept },
                    choices,
                ))
            }
            Err(error) => Err((choices, error.into())),
        }
    }

    /// For forced answers; nothing is measured.
    pub fn forced(branch: &Pending, reused: usize) -> Self {
        OfPrompt {
            tokens: Arc::clone(&branch.prompt),
            reused,
            measurement: Measurement::nothing(branch.prompt.len()),
            ..OfPrompt::default()
        }
    }

    /// Outcome of a task that generates nothing, after `cache`, which is restored.
    pub fn outcome(
        &self,
        engine: &Engine,
        cache: &mut Cache,
        choice: &mut Choice,
    ) -> Result<Measured, RequestError> {
        let scores = match (&choice.task, &self.last) {
            (Task::Score(texts), Some(last)) => engine.score(cache, (last, &self.knockouts), texts)?,
            _ => Vec::new(),
        };
        choice.hear_of_prompt(Event::Prompt)?;
        Ok(Measured { scores, ..self.unanswered(engine)? })
    }

    /// The output without an answer.
    pub fn unanswered(&self, engine: &Engine) -> Result<Measured, RequestError> {
        self.finish(engine, self.measurement.clone(), Generated::nothing(), None)
    }

    fn finish(
        &self,
        engine: &Engine,
        measurement: Measurement,
        generated: Generated,
        end: Option<Likelihood>,
    ) -> Result<Measured, RequestError> {
        let tokens = generated.tokens.len();
        Ok(Measured {
            logits: self.logits.clone(),
            masses: measurement.finish(tokens)?,
            top_keys: measurement.finish_top_keys(tokens)?,
            norms: measurement.finish_norms()?,
            kept: self.kept.clone(),
            attributions: measurement.finish_attributions(engine)?,
            routes: measurement.finish_routes(),
            measurement,
            generated,
            reused: self.reused,
            call_seconds: None,
            prompt: self.likelihoods.clone().unwrap_or_default(),
            end,
            scores: Vec::new(),
        })
    }
}

impl Ready {
    pub fn new(id: RequestId, trunk: u64, branch: Branch, prompt: OfPrompt, choices: Vec<Choice>) -> Self {
        Ready { id, trunk, branch, choices: choices.into(), prompt: Arc::new(prompt) }
    }

    /// Starts an answer; the last one takes over the branch.
    pub fn begin(self, choice: Choice) -> (Option<Live>, Option<Ready>) {
        if self.choices.is_empty() {
            return (Live::new(choice, (self.id, self.trunk, self.branch), self.prompt), None);
        }
        let room = choice.task.room();
        let made = self.branch.fork(room);
        let live = match made {
            Ok(branch) => Live::new(choice, (self.id, self.trunk, branch), Arc::clone(&self.prompt)),
            Err(error) => {
                choice.end(Err(error.into()));
                None
            }
        };
        (live, Some(self))
    }
}

pub(super) struct Live {
    choice: Choice,
    pub id: RequestId,
    pub trunk: u64,
    pub branch: Branch,
    pub decoding: Decoding,
    measurement: Measurement,
    failed: Option<RequestError>,
    /// Rows already reported.
    told: usize,
    prompt: Arc<OfPrompt>,
}

impl Live {
    fn new(
        mut choice: Choice,
        (id, trunk, branch): (RequestId, u64, Branch),
        prompt: Arc<OfPrompt>,
    ) -> Option<Self> {
        let (Task::Generate(generate), Some(last)) = (&mut choice.task, &prompt.last) else {
            choice.end(Err(RequestError::Gone));
            return None;
        };
        let Generate { sampling, thinker, rules, watch, .. } = &mut **generate;
        let decoding = Decoding::new(last, sampling, thinker.clone()).with_rules(rules, &prompt.tokens);
        let decoding = decoding.watched(watch.take());
        let failed = match &prompt.likelihoods {
            None => None,
            Some(likelihoods) => match choice.hear(Event::Scored(likelihoods.clone())) {
                Ok(Next::Go) => None,
                Ok(Next::End | Next::Cancel) => Some(EngineError::Interrupted.into()),
                Err(error) => Some(error),
            },
        };
        let measurement = prompt.measurement.clone();
        Some(Live { choice, id, trunk, branch, decoding, measurement, failed, told: 0, prompt })
    }

    /// Samples and reports the next token. Returns false if the answer has ended.
    pub fn choose(&mut self) -> Result<bool, RequestError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        guarded(|| self.try_choose())
    }

    fn try_choose(&mut self) -> Result<bool, RequestError> {
        let Task::Generate(generate) = &self.choice.task else { return Ok(false) };
        let (likeliest, tell_rows, room) = (generate.likeliest, generate.tell_rows, generate.room());
        if room == 0 {
            return Ok(false);
        }
        let Some(token) = self.decoding.choose(&generate.stop, &mut self.measurement)? else {
            return Ok(false);
        };
        let of_token = |most| likelihood(self.decoding.logits(), token, most);
        let likelihood = likeliest.map(of_token).transpose()?;
        let mut rows = Vec::new();
        if tell_rows && self.decoding.in_answer() {
            while self.told < self.measurement.generated_rows() {
                rows.extend(self.measurement.generated_row(self.told)?);
                self.told += 1;
            }
        }
        let goes_on = self.decoding.tokens().len() < room && self.decoding.unread().is_some();
        match self.choice.hear(Event::Token(Chosen { token, likelihood, rows }))? {
            Next::Go => Ok(goes_on),
            Next::End => {
                self.decoding.end_turn();
                Ok(false)
            }
            // An answer that has already ended is not interrupted.
            Next::Cancel if goes_on => Err(EngineError::Interrupted.into()),
            Next::Cancel => Ok(false),
        }
    }

    pub fn end(self, engine: &Engine, outcome: Result<(), RequestError>) {
        let Live { choice, decoding, measurement, prompt, failed, .. } = self;
        let (likeliest, room) = match &choice.task {
            Task::Generate(generate) => (generate.likeliest, generate.room()),
            _ => (None, 0),
        };
        let finish = || {
            if let Some(error) = failed {
                return Err(error);
            }
            let end = match (likeliest, decoding.ended_by()) {
                (Some(most), Some(token)) => Some(likelihood(decoding.logits(), token, most)?),
                _ => None,
            };
            let generated = match room {
                0 => Generated::nothing(),
                _ => decoding.finish(),
            };
            prompt.finish(engine, measurement, generated, end)
        };
        choice.end(outcome.and_then(|()| guarded(finish)));
    }

    /// The branch, the observer of its next row, and its knockouts.
    pub fn parts(&mut self) -> (&mut Branch, Watch<'_>, &LayerHoles) {
        let Live { branch, measurement, failed, prompt, .. } = self;
        (branch, Watch { measurement, failed }, &prompt.knockouts)
    }
}

fn likelihood(logits: &Tensor, token: u32, most: usize) -> Result<Likelihood, EngineError> {
    Ok(Likelihood::of(token, &transfer::fetch(logits)?, most))
}

/// One measurement in a batch: its errors are stored and do not fail the batch.
pub(super) struct Watch<'a> {
    measurement: &'a mut Measurement,
    failed: &'a mut Option<RequestError>,
}

impl Observer for Watch<'_> {
    fn wants(&self, point: Point<'_>) -> Wanted<'_> {
        self.measurement.wants(point)
    }

    fn observe(&mut self, event: attention::Event<'_>) -> candle_core::Result<()> {
        if self.failed.is_none() {
            *self.failed = guarded(|| self.measurement.observe(event)).err();
        }
        Ok(())
    }
}
