//! Streams the answers of a batch in order: the first unfinished answer is shown as it grows, later ones are buffered.

use palimpsest_core::engine::StopStrings;
use palimpsest_core::text::{StreamDecoder, Tokenizer};

pub(super) struct AnswerStreams<'a> {
    answers: Vec<Answer<'a>>,
    turn: usize,
    /// Receives each piece; an empty piece ends an answer.
    show: &'a mut dyn FnMut(&str),
}

struct Answer<'a> {
    /// `None` once the answer has ended.
    pieces: Option<StreamDecoder<&'a Tokenizer>>,
    stops: StopStrings,
    held: String,
}

impl<'a> AnswerStreams<'a> {
    pub fn new(
        count: usize,
        tokenizer: &'a Tokenizer,
        stops: &[String],
        show: &'a mut dyn FnMut(&str),
    ) -> Self {
        let answer = || Answer {
            pieces: Some(StreamDecoder::new(tokenizer)),
            stops: StopStrings::new(stops.to_vec()),
            held: String::new(),
        };
        AnswerStreams { answers: std::iter::repeat_with(answer).take(count).collect(), turn: 0, show }
    }

    /// Appends `token` to answer `nth`, or ends it on `None`. Undecodable text is not shown.
    pub fn take(&mut self, nth: usize, token: Option<u32>) {
        let Some(answer) = self.answers.get_mut(nth) else { return };
        let piece = match token {
            Some(token) => answer.pieces.as_mut().map(|pieces| pieces.push(token)),
            None => answer.pieces.take().map(|mut pieces| Ok(pieces.finish().into())),
        };
        if let Some(Ok(piece)) = piece {
            answer.held.push_str(&answer.stops.push(&piece));
        }
        if token.is_none() {
            answer.held.push_str(&answer.stops.take_held());
        }
        while let Some(answer) = self.answers.get_mut(self.turn) {
            if !answer.held.is_empty() {
                (self.show)(&std::mem::take(&mut answer.held));
            }
            if answer.pieces.is_some() {
                break;
            }
            (self.show)("");
            self.turn += 1;
        }
    }
}
