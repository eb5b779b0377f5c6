//! Decoding while generating: token by token, whole characters only.
//!
//! A generated text goes on behind a prompt, so its first space is kept, which decoders of whole texts drop. Bytes that cannot become a
//! character any more are U+FFFD at once. Each token costs the same, however long the text is.

use super::{TextError, Tokenizer};

/// The text that a token completes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextPiece {
    /// Text; empty while a character is incomplete.
    pub text: String,
    /// Behind it the name of a special token, which is no part of an answer; empty for other tokens.
    pub special: String,
}

impl From<String> for TextPiece {
    fn from(text: String) -> Self {
        TextPiece { text, special: String::new() }
    }
}

impl TextPiece {
    /// Both, as a text in which special tokens are shown.
    pub fn shown(self) -> String {
        self.text + &self.special
    }
}

/// Turns generated tokens into text piece by piece and never emits part of a UTF-8 character.
#[derive(Debug, Clone)]
pub struct StreamDecoder<T> {
    tokenizer: T,
    /// The beginning of a character: at most three bytes.
    held: Vec<u8>,
}

impl<T: AsRef<Tokenizer>> StreamDecoder<T> {
    /// A decoder at the end of a prompt.
    pub fn new(tokenizer: T) -> Self {
        StreamDecoder { tokenizer, held: Vec::new() }
    }

    /// Takes the next token and returns the text that it completes. An id without a token adds nothing.
    ///
    /// # Errors
    /// The tokeniser's own decoder fails, which is asked where tokens are not bytes that join.
    pub fn push(&mut self, id: u32) -> Result<TextPiece, TextError> {
        let tokenizer = self.tokenizer.as_ref();
        let Some(token) = tokenizer.bytes_of(id) else { return Ok(TextPiece::default()) };
        if token.special {
            let special = String::from_utf8_lossy(&token.bytes).into_owned();
            return Ok(TextPiece { text: self.finish(), special });
        }
        let text = match tokenizer.spelling().joins {
            true => self.take(&token.bytes),
            false => joined(tokenizer, id)?,
        };
        Ok(text.into())
    }

    /// Ends the text here: the beginning of a character that is still held becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        self.replacements(held.len())
    }

    /// True if a character is incomplete.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    fn take(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.held);
        let mut text = String::new();
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            // Without an error's length, the last chunk ends within a character.
            match std::str::from_utf8(invalid) {
                Err(error) if error.error_len().is_none() && chunks.peek().is_none() => {
                    self.held = invalid.to_vec();
                }
                _ => text.push_str(&self.replacements(invalid.len())),
            }
        }
        text
    }

    fn replacements(&self, bytes: usize) -> String {
        let count = if bytes == 0 { 0 } else { self.tokenizer.as_ref().spelling().replacements(bytes) };
        std::iter::repeat_n(char::REPLACEMENT_CHARACTER, count).collect()
    }
}

/// The text of a token behind itself, by a decoder that puts something between tokens.
fn joined(tokenizer: &Tokenizer, id: u32) -> Result<String, TextError> {
    let alone = tokenizer.decode(&[id], true)?;
    let twice = tokenizer.decode(&[id, id], true)?;
    Ok(twice.strip_prefix(alone.as_str()).map_or(alone.clone(), str::to_owned))
}
