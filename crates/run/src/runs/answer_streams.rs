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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_grow_together_are_shown_whole_and_in_order() {
        let tokenizer = Tokenizer::from_file(
            &std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../tests/fixtures/tokenizers/smollm/tokenizer.json"),
        );
        let Ok(tokenizer) = tokenizer else { panic!("the fixture's tokeniser is read") };
        let words: Vec<Vec<u32>> = ["one two three", "four", "five six"]
            .iter()
            .map(|text| tokenizer.encode(text).unwrap_or_default())
            .collect();
        assert!(words[0].len() > words[2].len() && words[2].len() > words[1].len() && !words[1].is_empty());
        let mut shown = Vec::new();
        let mut show = |piece: &str| shown.push(piece.to_owned());
        let mut texts = AnswerStreams::new(3, &tokenizer, &["four more".to_owned()], &mut show);
        for step in 0..=words[0].len() {
            for (nth, tokens) in words.iter().enumerate().filter(|(_, tokens)| step <= tokens.len()) {
                texts.take(nth, tokens.get(step).copied());
            }
        }
        // The first answer streams; later ones had ended and come in one piece each.
        assert_eq!(shown[..words[0].len()].concat(), "one two three");
        assert_eq!(shown[words[0].len()..], ["", "four", "", "five six", ""]);
    }
}
