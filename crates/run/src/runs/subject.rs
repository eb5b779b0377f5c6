//! A [`Subject`] over any [`ChatModel`]: answers without attention, one call per probe, in parallel over several connections.

use std::time::Instant;

use super::condition::Question;
use super::context_budget::Dropped;
use super::cost::Cost;
use super::error::RunError;
use super::rows::{AnswerRow, NoAnswer};
use super::runner::{ProbeOutcome, Sink, Subject};
use crate::chat::parallel::in_order;
use crate::chat::{ChatModel, Message, Sampling};
use crate::progress::Status;
use palimpsest_data::case::{Case, Probe};

/// Consecutive failed calls after which the model counts as unreachable.
pub const PATIENCE: usize = 3;

pub fn count_failure(failed_in_a_row: &mut usize, error: &NoAnswer) -> Result<(), RunError> {
    if error.too_long {
        return Ok(());
    }
    *failed_in_a_row += 1;
    match *failed_in_a_row >= PATIENCE {
        true => Err(RunError::GaveUp(format!(
            "{PATIENCE} calls in a row failed, so the run stops here (the same command resumes); the last said: {error}"
        ))),
        false => Ok(()),
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatPrompt {
    pub messages: Vec<Message>,
    pub dropped: Dropped,
}

/// A chat model under test. `cut` computes the shared part of a case's probes, `shown` the conversation of one probe.
pub struct ChatSubject<'a, C, F> {
    models: Vec<&'a mut (dyn ChatModel + Send)>,
    sampling: Sampling,
    cut: C,
    shown: F,
    failed_in_a_row: usize,
}

impl<'a, C, F> ChatSubject<'a, C, F> {
    /// `models`: one handle per parallel call.
    pub fn new<T>(models: Vec<&'a mut (dyn ChatModel + Send)>, sampling: Sampling, cut: C, shown: F) -> Self
    where
        C: FnMut(&Case) -> Result<T, NoAnswer>,
        F: FnMut(&T, &Case, &Probe) -> Result<ChatPrompt, NoAnswer>,
    {
        ChatSubject { models, sampling, cut, shown, failed_in_a_row: 0 }
    }
}

impl<T, C, F> Subject for ChatSubject<'_, C, F>
where
    C: FnMut(&Case) -> Result<T, NoAnswer>,
    F: FnMut(&T, &Case, &Probe) -> Result<ChatPrompt, NoAnswer>,
{
    fn answer_case(
        &mut self,
        case: &Case,
        questions: &[Question<'_>],
        status: &Status,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        let ChatSubject { models, sampling, cut, shown, failed_in_a_row } = self;
        let shared = cut(case);
        let mut shown = |probe: &Probe| shown(shared.as_ref().map_err(Clone::clone)?, case, probe);
        in_order(
            models.iter_mut().collect(),
            questions.len(),
            &|| false,
            &mut |nth| {
                let question = questions[nth];
                status.begin(&format!("{} {question}", case.id), "waiting for the reply");
                // Servers that honour seeds must sample anew for each repetition.
                let seed = sampling.seed.wrapping_add(u64::from(question.condition.repetition));
                (shown(question.probe), Sampling { seed, ..*sampling })
            },
            &|model, (shown, sampling)| match shown {
                Ok(shown) => asked(&mut ***model, shown, &sampling),
                Err(reason) => Err((reason, false)),
            },
            &mut |nth, outcome| {
                let question = questions[nth];
                match outcome {
                    Ok(outcome) => {
                        *failed_in_a_row = 0;
                        sink(question, Ok(outcome))
                    }
                    Err((reason, was_asked)) => {
                        sink(question, Err(reason.clone()))?;
                        if was_asked { count_failure(failed_in_a_row, &reason) } else { Ok(()) }
                    }
                }
            },
        )
        .map(drop)
    }
}

/// On failure also tells whether the model was called.
fn asked(
    model: &mut dyn ChatModel,
    shown: ChatPrompt,
    sampling: &Sampling,
) -> Result<ProbeOutcome, (NoAnswer, bool)> {
    let begun = Instant::now();
    let reply = model.reply(&shown.messages, sampling).map_err(|error| (error, true))?;
    let cost = Cost {
        tokens_computed: reply.prompt_tokens,
        tokens_generated: reply.completion_tokens,
        ..Cost::of_call(begun.elapsed().as_secs_f64())
    };
    let row = AnswerRow::of_reply(reply, None).without(shown.dropped);
    let row = AnswerRow { refused_parameters: model.refused_parameters(), ..row };
    Ok(ProbeOutcome { row, cost: Some(cost), ..ProbeOutcome::default() })
}
