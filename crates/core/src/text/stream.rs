//! Streaming detokenisation in whole characters. Keeps the leading space, which whole-text decoders drop, since the text continues a
//! prompt. Invalid UTF-8 becomes U+FFFD at once. Cost per token is constant.

use super::{TextError, Tokenizer};

/// Text completed by a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextPiece {
    /// Empty while a character is incomplete.
    pub text: String,
    /// Name of a special token after the text, not part of the answer; empty for other tokens.
    pub special: String,
}

impl From<String> for TextPiece {
    fn from(text: String) -> Self {
        TextPiece { text, special: String::new() }
    }
}

impl TextPiece {
    /// Text including special tokens.
    pub fn shown(self) -> String {
        self.text + &self.special
    }
}

/// Incremental decoder; never emits a partial UTF-8 character.
#[derive(Debug, Clone)]
pub struct StreamDecoder<T> {
    tokenizer: T,
    /// Start of an incomplete character: at most three bytes.
    held: Vec<u8>,
}

impl<T: AsRef<Tokenizer>> StreamDecoder<T> {
    /// Starts after a prompt.
    pub fn new(tokenizer: T) -> Self {
        StreamDecoder { tokenizer, held: Vec::new() }
    }

    /// Appends a token and returns the completed text; unused ids add nothing. Fails if the tokeniser's own decoder does.
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

    /// Ends the text; a partial character becomes U+FFFD.
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
            // No error length: the last chunk ends within a character.
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

/// Decodes a token after itself, for decoders that insert separators.
fn joined(tokenizer: &Tokenizer, id: u32) -> Result<String, TextError> {
    let alone = tokenizer.decode(&[id], true)?;
    let twice = tokenizer.decode(&[id, id], true)?;
    Ok(twice.strip_prefix(alone.as_str()).map_or(alone.clone(), str::to_owned))
}
