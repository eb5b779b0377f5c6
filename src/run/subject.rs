//! A [`Subject`] of any [`ChatModel`]: answers without attention, one call a probe, several at once where there are several lines to
//! the model.
//!
//! Prompts come from a closure, so that this room needs to know no prompt wording.

use std::collections::BTreeMap;
use std::time::Instant;

use super::condition::Question;
use super::context_budget::Dropped;
use super::cost::Cost;
use super::error::RunError;
use super::rows::NoAnswer;
use super::runner::{ProbeOutcome, Sink, Subject};
use crate::chat::parallel::in_order;
use crate::chat::{ChatModel, Message, Sampling};
use crate::data::{Case, Probe};
use crate::progress::Status;

/// After so many failed calls in a row the model is taken to be gone.
pub const PATIENCE: usize = 3;

/// Counts a failed call that said `error`.
pub fn count_failure(failed_in_a_row: &mut usize, error: &NoAnswer) -> Result<(), RunError> {
    if error.is_too_long() {
        return Ok(());
    }
    *failed_in_a_row += 1;
    match *failed_in_a_row >= PATIENCE {
        true => Err(RunError::GaveUp(format!(
            "{PATIENCE} calls in a row failed, so the run stops here (the same command goes on); the last said: {error}"
        ))),
        false => Ok(()),
    }
}

/// The conversation that puts a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatPrompt {
    pub messages: Vec<Message>,
    /// The parts of the history that were left out.
    pub dropped: Dropped,
}

/// A chat model under test.
pub struct ChatSubject<'a, F> {
    models: Vec<&'a mut (dyn ChatModel + Send)>,
    sampling: Sampling,
    shown: F,
    failed_in_a_row: usize,
}

impl<'a, F> ChatSubject<'a, F>
where
    F: FnMut(&Case, &Probe) -> Result<ChatPrompt, NoAnswer>,
{
    /// Answers to what `shown` makes of a case and a probe: `models` is the model once for each call at once.
    pub fn new(models: Vec<&'a mut (dyn ChatModel + Send)>, sampling: Sampling, shown: F) -> Self {
        ChatSubject { models, sampling, shown, failed_in_a_row: 0 }
    }
}

impl<F> Subject for ChatSubject<'_, F>
where
    F: FnMut(&Case, &Probe) -> Result<ChatPrompt, NoAnswer>,
{
    fn answer_case(
        &mut self,
        case: &Case,
        questions: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        let ChatSubject { models, sampling, shown, failed_in_a_row } = self;
        in_order(
            models.iter_mut().collect(),
            questions.len(),
            &|| false,
            &mut |nth| {
                let question = questions[nth];
                status.begin(&format!("{} {question}", case.id), "waiting for the reply");
                // A server that honours seeds draws anew each time.
                let seed = sampling.seed.wrapping_add(u64::from(question.condition.repetition));
                (shown(case, question.probe), Sampling { seed, ..*sampling })
            },
            &|model, (shown, sampling)| match shown {
                Ok(shown) => asked(&mut ***model, shown, &sampling),
                Err(reason) => Err(Unanswered::NotAsked(reason)),
            },
            &mut |nth, outcome| {
                let question = questions[nth];
                match outcome {
                    Ok(outcome) => {
                        *failed_in_a_row = 0;
                        sink(question, Ok(outcome))
                    }
                    Err(Unanswered::NotAsked(reason)) => sink(question, Err(reason)),
                    Err(Unanswered::Failed(error)) => {
                        sink(question, Err(error.clone()))?;
                        count_failure(failed_in_a_row, &error)
                    }
                }
            },
        )
        .map(drop)
    }
}

/// Why a probe has no answer.
enum Unanswered {
    NotAsked(NoAnswer),
    Failed(NoAnswer),
}

fn asked(
    model: &mut dyn ChatModel,
    shown: ChatPrompt,
    sampling: &Sampling,
) -> Result<ProbeOutcome, Unanswered> {
    let begun = Instant::now();
    let reply = model.reply(&shown.messages, sampling).map_err(|e| Unanswered::Failed(e.into()))?;
    // An endpoint does not say how long its prefill took or how much of it was cached.
    let cost = Cost {
        tokens_computed: reply.prompt_tokens,
        tokens_generated: reply.completion_tokens,
        ..Cost::of_call(begun.elapsed().as_secs_f64())
    };
    Ok(ProbeOutcome {
        answer: reply.text,
        thought: reply.thought,
        max_thinking: None,
        stop: reply.stop,
        prompt_tokens: reply.prompt_tokens,
        completion_tokens: reply.completion_tokens,
        dropped: shown.dropped,
        scores: BTreeMap::new(),
        contrast: None,
        attention: None,
        cost: Some(cost),
        refused_parameters: model.refused_parameters(),
    })
}
