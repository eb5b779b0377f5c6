//! Decoding while generating: whole characters only.

use super::{TextError, Tokenizer};

/// Turns generated tokens into text piece by piece and never emits part of a UTF-8 character.
///
/// Text whose last character is still incomplete is held until a later token completes it, or until [`finish`].
///
/// [`finish`]: StreamDecoder::finish
#[derive(Debug)]
pub struct StreamDecoder<T> {
    tokenizer: T,
    skip_special: bool,
    /// The tokens emitted last, and those held since.
    ids: Vec<u32>,
    /// The number of `ids` that are emitted. They are decoded again as left context, because a decoder may treat
    /// the first token of a text differently (SentencePiece drops its leading space).
    emitted: usize,
}

impl<T: AsRef<Tokenizer>> StreamDecoder<T> {
    /// A decoder at the start of a text. `skip_special` leaves special tokens out of the text.
    pub fn new(tokenizer: T, skip_special: bool) -> Self {
        StreamDecoder { tokenizer, skip_special, ids: Vec::new(), emitted: 0 }
    }

    /// Takes the next token and returns the text that it completes, if any.
    pub fn push(&mut self, id: u32) -> Result<Option<String>, TextError> {
        self.ids.push(id);
        self.take(false)
    }

    /// Returns what is still held at the end of generation; bytes that never became a character show as U+FFFD.
    pub fn finish(mut self) -> Result<Option<String>, TextError> {
        self.take(true)
    }

    fn take(&mut self, at_end: bool) -> Result<Option<String>, TextError> {
        let context = self.ids.get(..self.emitted).unwrap_or_default();
        let tokenizer = self.tokenizer.as_ref();
        let before = tokenizer.decode(context, self.skip_special)?;
        let now = tokenizer.decode(&self.ids, self.skip_special)?;
        if now.ends_with(char::REPLACEMENT_CHARACTER) && !at_end {
            return Ok(None);
        }
        let new = match now.strip_prefix(before.as_str()) {
            Some(new) => new.to_owned(),
            // Invalid bytes can make a byte-fallback decoder take back what it read; go on with the new tokens alone.
            None => tokenizer.decode(self.ids.get(self.emitted..).unwrap_or_default(), self.skip_special)?,
        };
        if new.is_empty() {
            return Ok(None);
        }
        self.ids.drain(..self.emitted);
        self.emitted = self.ids.len();
        Ok(Some(new))
    }
}
