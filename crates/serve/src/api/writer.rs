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
    fn push(&mut self, (text, calls): (String, Vec<CallPiece>)) {
        self.text.push_str(&text);
        self.calls.extend(calls);
    }
}

pub struct Writer {
    stage: Stage,
    decoder: StreamDecoder<Arc<Tokenizer>>,
    stops: StopStrings,
    reader: Option<CallReader>,
    /// Trims chats as `run` does; completions are untrimmed.
    trimmer: Option<Trimmer>,
}

enum Stage {
    /// In a thought or a possible one.
    Before {
        reader: ThoughtReader,
        tokens: Vec<u32>,
        /// Bytes of the thought already emitted.
        given: usize,
    },
    Answer,
}

impl Writer {
    pub fn of_chat(
        tokenizer: &Arc<Tokenizer>,
        thoughts: Option<Thoughts>,
        stops: Vec<String>,
        reader: Option<CallReader>,
    ) -> Self {
        let stage = match thoughts {
            None => Stage::Answer,
            Some(thoughts) => Stage::Before {
                reader: ThoughtReader::new(thoughts, Arc::clone(tokenizer)),
                tokens: Vec::new(),
                given: 0,
            },
        };
        Writer { stage, reader, trimmer: Some(Trimmer::default()), ..Self::of_completion(tokenizer, stops) }
    }

    pub fn of_completion(tokenizer: &Arc<Tokenizer>, stops: Vec<String>) -> Self {
        Writer {
            stage: Stage::Answer,
            decoder: StreamDecoder::new(Arc::clone(tokenizer)),
            stops: StopStrings::new(stops),
            reader: None,
            trimmer: None,
        }
    }

    pub fn push(&mut self, token: u32) -> Result<Piece, TextError> {
        let mut piece = Piece::default();
        let Stage::Before { reader, tokens, given } = &mut self.stage else {
            let text = self.decoder.push(token)?;
            piece.push(self.write(&text));
            return Ok(piece);
        };
        tokens.push(token);
        reader.push(token);
        match reader.place() {
            ReplyPhase::Undecided => {}
            ReplyPhase::Thought => piece.thought = rest_of(without_partial(&reader.read().0, CLOSE), given),
            ReplyPhase::Answer if reader.thought() > 0 => {
                let (thought, answer) = reader.read();
                piece.thought = rest_of(thought.trim(), given);
                let answer = answer.unwrap_or_default().to_owned();
                self.stage = Stage::Answer;
                piece.push(self.write(&answer.into()));
            }
            ReplyPhase::Answer => {
                let tokens = std::mem::take(tokens);
                self.stage = Stage::Answer;
                for token in tokens {
                    let text = self.decoder.push(token)?;
                    piece.push(self.write(&text));
                }
            }
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
    pub fn finish(mut self, ending: Ending) -> Result<(Piece, bool), TextError> {
        let mut piece = Piece::default();
        let mut has_answer = true;
        if let Stage::Before { reader, tokens, given } = &mut self.stage {
            has_answer = reader.place() != ReplyPhase::Thought;
            if has_answer {
                for token in std::mem::take(tokens) {
                    let text = self.decoder.push(token)?;
                    piece.push(self.write(&text));
                }
            } else {
                reader.finish();
                piece.thought = rest_of(&reader.read().0, given);
            }
        }
        let text = self.decoder.finish();
        piece.push(self.write(&text.into()));
        piece.push(self.end(ending));
        Ok((piece, has_answer))
    }

    fn write(&mut self, text: &TextPiece) -> (String, Vec<CallPiece>) {
        let text = self.stops.push(text);
        self.read(text)
    }

    /// Releases text held back for a stop string or a call.
    fn end(&mut self, ending: Ending) -> (String, Vec<CallPiece>) {
        let held = self.stops.take_held();
        let (mut text, calls) = self.read(held);
        if let Some(reader) = self.reader.take() {
            text.push_str(&self.trim(reader.finish(ending).text));
        }
        (text, calls)
    }

    fn read(&mut self, text: String) -> (String, Vec<CallPiece>) {
        match &mut self.reader {
            None => (self.trim(text), Vec::new()),
            Some(reader) => {
                let read = reader.push(&text);
                (self.trim(read.text), read.calls)
            }
        }
    }

    fn trim(&mut self, text: String) -> String {
        match &mut self.trimmer {
            None => text,
            Some(trimmer) => trimmer.push(&text),
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
