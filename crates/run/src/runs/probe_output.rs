//! Converts model outputs to probe outcomes, with attention stores and costs.

use palimpsest_core::attention::{AttentionStore, Masses, Step};
use palimpsest_core::engine::{EngineError, Generated, Measured, RequestError};
use palimpsest_core::text::{Split, TextError};

use super::context_budget::Dropped;
use super::cost::Cost;
use super::error::RunError;
use super::kept;
use super::probe_request::{Asking, PendingProbe, Scores, all_spans, no_answer, question_start};
use super::rows::{AnswerRow, NoAnswer};
use super::runner::{ProbeOutcome, Sink};
use super::subject::count_failure;
use crate::chat::Reply;
use palimpsest_data::benchmarks::VERDICT;
use palimpsest_data::case::Case;

pub(super) struct Outputs<'a> {
    pub asking: &'a Asking<'a>,
    pub case: &'a Case,
    pub dropped: &'a Dropped,
    pub dtype: String,
    pub failed_in_a_row: &'a mut usize,
}

impl Outputs<'_> {
    /// Passes on outcomes of answers generated together in `seconds`; counts them in `handed`.
    pub fn hand_on(
        &mut self,
        asked: &mut [PendingProbe<'_>],
        seconds: f64,
        handed: &mut usize,
        sink: &mut Sink<'_>,
    ) -> Result<(), RunError> {
        let done = |one: &PendingProbe<'_>| matches!(one.outcome, Some(Ok(_)));
        let all: usize = asked.iter().filter(|one| done(one)).map(|one| one.steps).sum();
        let mut stopped = Ok(());
        for one in asked {
            let Some(outcome) = one.outcome.take() else { continue };
            let decode_seconds = seconds * (one.steps as f64 / all.max(1) as f64);
            let outcome = outcome.map_err(anyhow::Error::from).and_then(|measured| {
                let scores = std::mem::replace(&mut one.scores, Ok(Scores::default()))?;
                self.outcome(one, (*measured, scores), decode_seconds)
            });
            let failed = outcome.as_ref().err().and_then(|error| error.downcast_ref::<RequestError>());
            // Answers that had ended before the stop are kept.
            if let Some(RequestError::Engine(EngineError::Interrupted)) = failed {
                stopped = Err(RunError::Stopped);
                continue;
            }
            let unreachable = match failed {
                Some(RequestError::Unreachable(error)) => Some(NoAnswer::from(error.clone())),
                _ => None,
            };
            *handed += 1;
            if outcome.is_ok() {
                *self.failed_in_a_row = 0;
            }
            match sink(one.question, outcome.map_err(|error| no_answer(&error))) {
                Err(RunError::Stopped) => stopped = Err(RunError::Stopped),
                stored => stored?,
            }
            if let Some(error) = unreachable {
                count_failure(self.failed_in_a_row, &error)?;
            }
        }
        stopped
    }

    fn outcome(
        &self,
        one: &PendingProbe<'_>,
        (measured, (scores, contrast)): (Measured, Scores),
        decode_seconds: f64,
    ) -> anyhow::Result<ProbeOutcome> {
        let Measured { generated, reused, call_seconds, .. } = &measured;
        let (Split { thought, answer }, stop) = match one.question.probe.prefix.is_empty() {
            true => self.asking.text.split(generated)?,
            false => self.asking.text.continuation(generated)?,
        };
        let answer = answer
            .map(|text| self.asking.text.before_stop(&text, generated, &self.asking.stops))
            .transpose()?;
        let attention = match self.asking.options.attention && stop.has_answer() {
            true => Some(self.measured(one, &measured, answer.as_deref().unwrap_or_default())?),
            false => None,
        };
        let (prompt, generated) = (one.prompt.tokens.len(), generated.tokens.len());
        let reply = Reply {
            text: answer.unwrap_or_default(),
            thought,
            stop,
            prompt_tokens: Some(prompt),
            completion_tokens: Some(generated),
        };
        let max_thinking = Some(self.asking.text.max_thinking).filter(|&most| most > 0);
        let at = question_start(one.prompt).unwrap_or(0);
        let kept = measured.kept.as_ref().map(|shares| kept::by_role(shares, &all_spans(one.prompt), at));
        let row = AnswerRow {
            scores,
            contrast,
            kept: kept.unwrap_or_default(),
            ..AnswerRow::of_reply(reply, max_thinking).without(self.dropped.clone())
        };
        let cost = match *call_seconds {
            None => Cost::of(one.prefill_seconds, decode_seconds),
            Some(seconds) => Cost::of_call(seconds),
        };
        let cost = Cost {
            tokens_computed: Some(prompt - reused),
            tokens_reused: Some(*reused),
            tokens_generated: Some(generated),
            ..cost
        };
        Ok(ProbeOutcome { row, attention, cost: Some(cost), ..ProbeOutcome::default() })
    }

    fn measured(
        &self,
        one: &PendingProbe<'_>,
        measured: &Measured,
        text: &str,
    ) -> anyhow::Result<AttentionStore> {
        let Measured { generated, measurement, masses, .. } = measured;
        let answer = if self.asking.options.answer_rows { generated.tokens.as_slice() } else { &[] };
        let step = self.decisive_token(generated, text)?.filter(|_| self.asking.options.answer_rows);
        let masses = match step.map(|token| Step { label: VERDICT, token }) {
            None => masses.clone(),
            step => measurement.finish_with(answer.len(), step)?,
        };
        let selected = measurement.finish_selected(&masses)?;
        let Masses { layers, rows, mass, uniform, sink, delta, .. } = masses;
        Ok(AttentionStore {
            mass,
            sink,
            uniform: Some(uniform),
            delta,
            kept: measured.kept.clone(),
            selected,
            layers,
            rows,
            keys: all_spans(one.prompt),
            tokens: one.prompt.tokens.clone(),
            generated: answer.to_vec(),
            case: self.case.id.clone(),
            probe: one.question.probe.id.clone(),
            condition: one.question.condition.name.clone(),
            model: self.asking.text.name.clone(),
            dtype: self.dtype.clone(),
        })
    }

    /// Generated token at which the answer decides.
    fn decisive_token(&self, generated: &Generated, answer: &str) -> Result<Option<usize>, TextError> {
        let Some(at) = self.asking.decisive.and_then(|benchmark| (benchmark.decisive)(answer)) else {
            return Ok(None);
        };
        let tokens = generated.tokens.get(generated.thought..).unwrap_or_default();
        let text = |n: usize| self.asking.text.tokenizer.decode(tokens.get(..n).unwrap_or_default(), true);
        // The answer is trimmed, and may follow a thought marker.
        let Some(begins) = text(tokens.len())?.find(answer) else { return Ok(None) };
        // Binary search for the fewest tokens whose text passes `at`. An incomplete character adds no text.
        let (mut less, mut enough) = (0, tokens.len() + 1);
        while enough - less > 1 {
            let middle = less.midpoint(enough);
            if text(middle)?.trim_end_matches(char::REPLACEMENT_CHARACTER).len() > begins + at {
                enough = middle;
            } else {
                less = middle;
            }
        }
        Ok((enough <= tokens.len()).then_some(less))
    }
}
