//! A [`Subject`] of any [`ChatModel`]: answers without attention, one call a probe.
//!
//! What the model is shown comes from a closure, so that this room needs to know no prompt wording.

use std::collections::BTreeMap;
use std::time::Instant;

use super::condition::Question;
use super::context_budget::Dropped;
use super::cost::Cost;
use super::error::RunError;
use super::rows::says_too_long;
use super::runner::{ProbeOutcome, Sink, Subject};
use crate::chat::{ChatModel, Message, Sampling};
use crate::data::{Case, Probe};
use crate::progress::Status;

/// After so many failed calls in a row the model is taken to be gone.
pub const PATIENCE: usize = 3;

/// Ends a run after so many failed calls in a row, the last of which said `error`.
///
/// # Errors
/// [`RunError::GaveUp`] where they are [`PATIENCE`].
pub fn check_patience(failed_in_a_row: usize, error: &dyn std::fmt::Display) -> Result<(), RunError> {
    match failed_in_a_row >= PATIENCE {
        true => Err(RunError::GaveUp(format!(
            "{PATIENCE} calls in a row failed, so the run stops here (the same command goes on); the last said: {error}"
        ))),
        false => Ok(()),
    }
}

/// The conversation that puts a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// What is sent.
    pub messages: Vec<Message>,
    /// What of the history was left out of it.
    pub dropped: Dropped,
}

/// A chat model under test.
pub struct ChatSubject<'a, F> {
    model: &'a mut dyn ChatModel,
    sampling: Sampling,
    shown: F,
    failed_in_a_row: usize,
}

impl<'a, F> ChatSubject<'a, F>
where
    F: FnMut(&Case, &Probe) -> Result<Shown, String>,
{
    /// `model` answers what `shown` makes of a case and a probe.
    pub fn new(model: &'a mut dyn ChatModel, sampling: Sampling, shown: F) -> Self {
        ChatSubject { model, sampling, shown, failed_in_a_row: 0 }
    }
}

impl<F> Subject for ChatSubject<'_, F>
where
    F: FnMut(&Case, &Probe) -> Result<Shown, String>,
{
    fn answer_case(
        &mut self,
        case: &Case,
        questions: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        for &question in questions {
            status.begin(&format!("{} {question}", case.id), "waiting for the reply");
            let shown = match (self.shown)(case, question.probe) {
                Ok(shown) => shown,
                Err(reason) => {
                    sink(question, Err(reason))?;
                    continue;
                }
            };
            // A server that honours seeds draws anew each time.
            let seed = self.sampling.seed.wrapping_add(u64::from(question.condition.repetition));
            let begun = Instant::now();
            match self.model.reply(&shown.messages, &Sampling { seed, ..self.sampling }) {
                Ok(reply) => {
                    // What it takes elsewhere is not this machine's to tell.
                    let cost = Cost {
                        tokens_computed: reply.prompt_tokens,
                        tokens_generated: reply.completion_tokens,
                        decode_seconds: begun.elapsed().as_secs_f64(),
                        ..Cost::default()
                    };
                    self.failed_in_a_row = 0;
                    let outcome = ProbeOutcome {
                        answer: reply.text,
                        thought: reply.thought,
                        max_thinking: None,
                        stop: reply.stop,
                        prompt_tokens: reply.prompt_tokens,
                        completion_tokens: reply.completion_tokens,
                        dropped: shown.dropped,
                        scores: BTreeMap::new(),
                        attention: None,
                        cost: Some(cost),
                    };
                    sink(question, Ok(outcome))?;
                }
                Err(error) => {
                    let error = error.to_string();
                    sink(question, Err(error.clone()))?;
                    // Of the server a prompt that is too long says nothing.
                    if !says_too_long(&error) {
                        self.failed_in_a_row += 1;
                        check_patience(self.failed_in_a_row, &error)?;
                    }
                }
            }
        }
        Ok(())
    }
}
