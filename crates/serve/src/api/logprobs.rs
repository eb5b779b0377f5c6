//! Token logprobs in the shapes of both completions endpoints.

use serde_json::{Map, Value, json};

use super::model::ServedModel;
use palimpsest_core::engine::Likelihood;

/// Entry of a chat's `logprobs.content`. Tokens that are no whole character report the vocabulary's bytes.
pub fn of_chat(model: &ServedModel, likelihood: &Likelihood) -> Value {
    let entry = |token: u32, log_p: f64| {
        let text = model.token_text(token);
        let bytes = match is_whole(&text) {
            true => text.as_bytes(),
            false => &model.token_bytes(token).bytes[..],
        };
        json!({"token": text, "logprob": log_p, "bytes": bytes})
    };
    let mut one = entry(likelihood.token, likelihood.log_p);
    let likeliest: Vec<Value> =
        likelihood.likeliest.iter().map(|&(token, log_p)| entry(token, log_p)).collect();
    one["top_logprobs"] = likeliest.into();
    one
}

fn is_whole(text: &str) -> bool {
    !text.contains(char::REPLACEMENT_CHARACTER)
}

/// Token text, or `bytes:\xe2\x82` for partial characters, as at OpenAI.
fn name(model: &ServedModel, token: u32) -> String {
    let text = model.token_text(token);
    let bytes = &model.token_bytes(token).bytes;
    match is_whole(&text) || std::str::from_utf8(bytes).is_ok() {
        true => text,
        false => format!("bytes:{}", bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>()),
    }
}

/// Character offset in a choice's text. A character counts once its last token arrives.
#[derive(Debug, Default)]
pub struct TextPosition {
    characters: usize,
    held: Vec<u8>,
}

impl TextPosition {
    pub fn behind(text: &str) -> Self {
        TextPosition { characters: text.chars().count(), held: Vec::new() }
    }

    /// Appends a token's bytes (none for special tokens) and returns the offset of the character they begin in.
    fn push(&mut self, bytes: &[u8]) -> usize {
        let count = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().count();
        let begun: Vec<u8> = self.held.iter().chain(bytes.first()).copied().collect();
        let place = self.characters + count(&begun) - usize::from(!bytes.is_empty());
        self.held.extend_from_slice(bytes);
        // No error length: the bytes end within a character.
        let end = self.held.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
        let is_open = std::str::from_utf8(end).is_err_and(|error| error.error_len().is_none());
        let kept = if is_open && !bytes.is_empty() { end.len() } else { 0 };
        let rest = self.held.len() - kept;
        self.characters += count(&self.held[..rest]);
        self.held.drain(..rest);
        place
    }
}

#[derive(Debug, Default)]
pub struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Lists of an echoed prompt; the first token has no logprob.
    pub fn of_prompt(model: &ServedModel, text: &str, first: u32, others: &[Likelihood]) -> Self {
        let (mut lists, mut position) = (CompletionLogprobs::default(), TextPosition::default());
        lists.push(model, first, None, 0);
        // Some decoders strip the leading space of a text.
        let bytes = &model.token_bytes(first).bytes;
        let cut = bytes.strip_prefix(b" ").filter(|_| !text.starts_with(' '));
        position.push(cut.unwrap_or(bytes));
        for likelihood in others {
            let place = position.push(&model.token_bytes(likelihood.token).bytes);
            lists.push(model, likelihood.token, Some(likelihood), place);
        }
        lists.keep_within(text.chars().count());
        lists
    }

    /// Adds a generated token. Special tokens add no text.
    pub fn push_generated(
        &mut self,
        model: &ServedModel,
        likelihood: &Likelihood,
        position: &mut TextPosition,
    ) {
        let token = model.token_bytes(likelihood.token);
        let place = position.push(if token.special { &[] } else { &token.bytes });
        self.push(model, likelihood.token, Some(likelihood), place);
    }

    fn push(&mut self, model: &ServedModel, token: u32, likelihood: Option<&Likelihood>, offset: usize) {
        let own = name(model, token);
        let likeliest = |likelihood: &Likelihood| {
            let mut likeliest = Map::new();
            for &(other, log_p) in &likelihood.likeliest {
                let mut name = name(model, other);
                // For tokens of equal text the sampled (else the likeliest) keeps the name; the others get vLLM's names.
                if likeliest.contains_key(&name) || (name == own && other != token) {
                    name = format!("token_id:{other}");
                }
                likeliest.insert(name, log_p.into());
            }
            likeliest
        };
        self.top_logprobs.push(likelihood.map(likeliest));
        self.token_logprobs.push(likelihood.map(|likelihood| likelihood.log_p));
        self.tokens.push(own);
        self.text_offset.push(offset);
    }

    /// Clamps offsets to the text length: stop strings are not part of it.
    pub fn keep_within(&mut self, characters: usize) {
        self.text_offset.iter_mut().for_each(|offset| *offset = characters.min(*offset));
    }

    pub fn json(self) -> Value {
        let CompletionLogprobs { tokens, token_logprobs, top_logprobs, text_offset } = self;
        json!({
            "tokens": tokens, "token_logprobs": token_logprobs, "top_logprobs": top_logprobs, "text_offset": text_offset
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_places_of_their_characters_and_of_what_becomes_none() {
        let bytes = b"\xc3\xa9\xcf0\xf9\xe9\xb7\xa6\xd5-\xe9W\xf0\x9f";
        let expected = [0, 0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9, 9];
        for size in 1..=bytes.len() {
            let mut position = TextPosition::default();
            for (i, token) in bytes.chunks(size).enumerate() {
                assert_eq!(position.push(token), expected[i * size], "{size} {i}");
            }
            // A trailing partial character counts as one.
            position.push(&[]);
            assert_eq!(position.characters, String::from_utf8_lossy(bytes).chars().count());
        }
    }
}
