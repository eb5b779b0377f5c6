//! The phases of generation: a thought, which has a budget of its own, and the answer.
//!
//! Shared by decoding in place and decoding in a batch, so that both end at the same token.

use super::Generated;
use super::sampling::{Sampling, StopReason};
use crate::text::{ReplyPhase, ThoughtReader};

/// Tells thoughts from the answer while they are generated.
#[derive(Debug, Clone)]
pub struct Thinker {
    /// Follows the text.
    pub reader: ThoughtReader,
    /// Most tokens of the thought, its markers included.
    pub budget: usize,
}

/// One generation.
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

    /// True if a thought may come before the answer.
    pub fn thinks(&self) -> bool {
        self.thinker.is_some()
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// True if the latest token is of the answer, not of a thought or of what may become one.
    pub fn in_answer(&self) -> bool {
        self.thinker.as_ref().is_none_or(|thinker| thinker.reader.place() == ReplyPhase::Answer)
    }

    /// True if the next token may begin the answer or a thought.
    pub fn may_begin(&self) -> bool {
        self.thinker.as_ref().is_some_and(|thinker| thinker.reader.place() == ReplyPhase::Undecided)
    }

    /// True if this token, chosen next, would leave the reply before its answer.
    pub fn goes_on_before_answer(&self, token: u32) -> bool {
        let Some(thinker) = &self.thinker else { return false };
        let mut reader = thinker.reader.clone();
        reader.push(token);
        reader.place() != ReplyPhase::Answer || reader.thought() > 0
    }

    /// The rest of a thought's opening marker.
    pub fn rest_of_marker(&self) -> String {
        self.thinker.as_ref().map(|thinker| thinker.reader.rest_of_marker()).unwrap_or_default()
    }

    /// The answer's text that came with the token which ended a thought; `None` where there was no thought.
    pub fn answer_begun(&self) -> Option<String> {
        self.thinker.as_ref()?.reader.answer_begun()
    }

    /// True if there is room for another token.
    pub fn has_room(&self) -> bool {
        let n = self.tokens.len();
        match &self.thinker {
            None => n < self.most,
            Some(Thinker { reader, budget }) => match reader.place() {
                ReplyPhase::Answer => n - reader.thought() < self.most,
                ReplyPhase::Thought => n < *budget,
                // White space so far, or the beginning of a marker.
                ReplyPhase::Undecided => n < self.most.max(*budget),
            },
        }
    }

    /// Takes the next token. Where all so far are a thought, returns how many they are.
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

    /// The generation, up to a token that ended the turn or until there was no more room.
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
