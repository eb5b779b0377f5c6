//! Phases of generation: an optional thought with its own budget, then the answer. Shared by single and batched decoding.

use super::Generated;
use super::sampling::{Sampling, StopReason};
use crate::text::{ReplyPhase, ThoughtReader};

/// Separates a thought from the answer during generation.
#[derive(Debug, Clone)]
pub struct Thinker {
    /// Tracks the phase.
    pub reader: ThoughtReader,
    /// Maximum tokens of the thought, markers included.
    pub budget: usize,
}

#[derive(Debug)]
pub(super) struct Phases {
    thinker: Option<Thinker>,
    most: usize,
    tokens: Vec<u32>,
}

impl Phases {
    pub fn new(sampling: &Sampling, thinker: Option<Thinker>) -> Self {
        Phases { thinker, most: sampling.max_new_tokens, tokens: Vec::new() }
    }

    /// True if a thought may precede the answer.
    pub fn thinks(&self) -> bool {
        self.thinker.is_some()
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// True if the latest token belongs to the answer, not to a possible thought.
    pub fn in_answer(&self) -> bool {
        self.thinker.as_ref().is_none_or(|thinker| thinker.reader.place() == ReplyPhase::Answer)
    }

    /// True if the next token may start the answer or a thought.
    pub fn may_begin(&self) -> bool {
        self.thinker.as_ref().is_some_and(|thinker| thinker.reader.place() == ReplyPhase::Undecided)
    }

    /// True if this token, chosen next, would not start the answer.
    pub fn goes_on_before_answer(&self, token: u32) -> bool {
        let Some(thinker) = &self.thinker else { return false };
        let mut reader = thinker.reader.clone();
        reader.push(token);
        reader.place() != ReplyPhase::Answer || reader.thought() > 0
    }

    /// Rest of a partial opening marker.
    pub fn rest_of_marker(&self) -> String {
        self.thinker.as_ref().map(|thinker| thinker.reader.rest_of_marker()).unwrap_or_default()
    }

    /// Answer text inside the token that ended a thought; `None` without a thought.
    pub fn answer_begun(&self) -> Option<String> {
        self.thinker.as_ref()?.reader.answer_begun()
    }

    pub fn has_room(&self) -> bool {
        let n = self.tokens.len();
        match &self.thinker {
            None => n < self.most,
            Some(Thinker { reader, budget }) => match reader.place() {
                ReplyPhase::Answer => n - reader.thought() < self.most,
                ReplyPhase::Thought => n < *budget,
                // White space, or a partial marker.
                ReplyPhase::Undecided => n < self.most.max(*budget),
            },
        }
    }

    /// Appends a token. Returns the number of thought tokens, once known.
    pub fn push(&mut self, token: u32) -> Option<usize> {
        self.tokens.push(token);
        let reader = &mut self.thinker.as_mut()?.reader;
        if reader.place() == ReplyPhase::Answer {
            return None;
        }
        reader.push(token);
        match reader.place() {
            ReplyPhase::Undecided => None,
            ReplyPhase::Thought => Some(self.tokens.len()),
            ReplyPhase::Answer => Some(reader.thought()).filter(|&thought| thought > 0),
        }
    }

    /// The result; `turn_ended` is false if the limit was reached.
    pub fn end(self, turn_ended: bool) -> Generated {
        let place = self.thinker.as_ref().map_or(ReplyPhase::Answer, |thinker| thinker.reader.place());
        let stop = match (place, turn_ended) {
            (ReplyPhase::Thought, false) => StopReason::ThoughtCut,
            (ReplyPhase::Thought, true) => StopReason::ThoughtOnly,
            (_, true) => StopReason::EndOfTurn,
            (_, false) => StopReason::MaxNewTokens,
        };
        let thought = match place {
            ReplyPhase::Thought => self.tokens.len(),
            _ => self.thinker.map_or(0, |thinker| thinker.reader.thought()),
        };
        Generated { tokens: self.tokens, thought, stop }
    }
}
