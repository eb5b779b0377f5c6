//! Detokenises an answer incrementally: separates the thought and stops at stop strings.
//!
//! Runs on the engine thread, since stop strings end generation. Whole answers use the same path as streams.

use std::sync::Arc;

use palimpsest_core::engine::{StopStrings, without_partial};
use palimpsest_core::text::TextError;
use palimpsest_core::text::{
    CallPiece, CallReader, Ending, ReplyPhase, StreamDecoder, TextPiece, ThoughtReader, Thoughts, Tokenizer,
};

/// End tag of a thought; a partial tag at the end is held back.
const CLOSE: &str = "</think>";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    pub thought: String,
    pub text: String,
    pub calls: Vec<CallPiece>,
}

impl Piece {
    pub fn add(&mut self, next: &Piece) {
        self.thought.push_str(&next.thought);
        self.text.push_str(&next.text);
        self.calls.extend_from_slice(&next.calls);
    }
}

pub struct Writer {
    before: Option<Before>,
    decoder: StreamDecoder<Arc<Tokenizer>>,
    stops: StopStrings,
    reader: Option<CallReader>,
    /// Trims chats as `run` does; completions are untrimmed.
    trimmer: Option<Trimmer>,
}

/// A thought, or tokens that may become one.
struct Before {
    reader: ThoughtReader,
    tokens: Vec<u32>,
    /// Bytes of the thought already emitted.
    given: usize,
}

impl Writer {
    pub fn of_chat(
        tokenizer: &Arc<Tokenizer>,
        thoughts: Option<Thoughts>,
        stops: Vec<String>,
        reader: Option<CallReader>,
    ) -> Self {
        let reading = |thoughts| ThoughtReader::new(thoughts, Arc::clone(tokenizer));
        let before =
            thoughts.map(|thoughts| Before { reader: reading(thoughts), tokens: Vec::new(), given: 0 });
        Writer { before, reader, trimmer: Some(Trimmer::default()), ..Self::of_completion(tokenizer, stops) }
    }

    pub fn of_completion(tokenizer: &Arc<Tokenizer>, stops: Vec<String>) -> Self {
        let decoder = StreamDecoder::new(Arc::clone(tokenizer));
        Writer { before: None, decoder, stops: StopStrings::new(stops), reader: None, trimmer: None }
    }

    pub fn push(&mut self, token: u32) -> Result<Piece, TextError> {
        let mut piece = Piece::default();
        let Some(mut before) = self.before.take() else {
            self.decode(&[token], &mut piece)?;
            return Ok(piece);
        };
        before.tokens.push(token);
        before.reader.push(token);
        match before.reader.place() {
            ReplyPhase::Undecided => self.before = Some(before),
            ReplyPhase::Thought => {
                piece.thought = rest_of(without_partial(&before.reader.read().0, CLOSE), &mut before.given);
                self.before = Some(before);
            }
            ReplyPhase::Answer if before.reader.thought() > 0 => {
                let (thought, answer) = before.reader.read();
                piece.thought = rest_of(thought.trim(), &mut before.given);
                self.write(&answer.unwrap_or_default().to_owned().into(), &mut piece);
            }
            ReplyPhase::Answer => self.decode(&before.tokens, &mut piece)?,
        }
        Ok(piece)
    }

    pub fn stopped(&self) -> bool {
        self.stops.found()
    }

    pub fn calls(&self) -> usize {
        self.reader.as_ref().map_or(0, CallReader::calls)
    }

    /// Remaining text, and true if there is an answer.
    pub fn finish(&mut self, ending: Ending) -> Result<(Piece, bool), TextError> {
        let mut piece = Piece::default();
        let mut has_answer = true;
        if let Some(mut before) = self.before.take() {
            has_answer = before.reader.place() != ReplyPhase::Thought;
            if has_answer {
                self.decode(&before.tokens, &mut piece)?;
            } else {
                before.reader.finish();
                piece.thought = rest_of(&before.reader.read().0, &mut before.given);
            }
        }
        let text = self.decoder.finish();
        self.write(&text.into(), &mut piece);
        // Text held back for a stop string or a call.
        let held = self.stops.take_held();
        self.read(&held, &mut piece);
        if let Some(reader) = self.reader.take() {
            self.trim(&reader.finish(ending).text, &mut piece);
        }
        Ok((piece, has_answer))
    }

    fn decode(&mut self, tokens: &[u32], piece: &mut Piece) -> Result<(), TextError> {
        for &token in tokens {
            let text = self.decoder.push(token)?;
            self.write(&text, piece);
        }
        Ok(())
    }

    fn write(&mut self, text: &TextPiece, piece: &mut Piece) {
        let text = self.stops.push(text);
        self.read(&text, piece);
    }

    fn read(&mut self, text: &str, piece: &mut Piece) {
        match self.reader.as_mut().map(|reader| reader.push(text)) {
            None => self.trim(text, piece),
            Some(read) => {
                self.trim(&read.text, piece);
                piece.calls.extend(read.calls);
            }
        }
    }

    fn trim(&mut self, text: &str, piece: &mut Piece) {
        match &mut self.trimmer {
            None => piece.text.push_str(text),
            Some(trimmer) => piece.text.push_str(&trimmer.push(text)),
        }
    }
}

fn rest_of(text: &str, given: &mut usize) -> String {
    let rest = text.get(*given..).unwrap_or_default().to_owned();
    *given = text.len().max(*given);
    rest
}

/// Trims a text that arrives in pieces.
#[derive(Default)]
struct Trimmer {
    begun: bool,
    space: String,
}

impl Trimmer {
    fn push(&mut self, text: &str) -> String {
        let text = if self.begun { text } else { text.trim_start() };
        if text.is_empty() {
            return String::new();
        }
        self.begun = true;
        let mut out = std::mem::take(&mut self.space);
        out.push_str(text);
        self.space = out.split_off(out.trim_end().len());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_trimmed_as_their_whole_is() {
        for pieces in
            [&["  a", " ", "b ", " c \n", "\t"][..], &["", " ", "\n"], &["x", "  "], &[" x", "", " y"]]
        {
            let mut trimmer = Trimmer::default();
            let out: String = pieces.iter().map(|piece| trimmer.push(piece)).collect();
            assert_eq!(out, pieces.concat().trim());
        }
    }
}
