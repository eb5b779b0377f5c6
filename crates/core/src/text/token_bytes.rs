//! The bytes that each token stands for, read off the vocabulary and the kind of its decoder.
//!
//! Decoding one token by itself does not show them: a token may be half a character. Called by the engine, whose constraints
//! match texts byte by byte.

use std::collections::HashMap;

use serde_json::Value;

use super::Tokenizer;

/// The text of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenBytes {
    /// Its bytes; empty for an id without a token.
    pub bytes: Vec<u8>,
    /// True if it is a special token, which is left out of texts.
    pub special: bool,
}

/// A vocabulary's encoding of bytes.
enum Spelling {
    /// A letter for each byte.
    Letters(HashMap<char, u8>),
    /// As it is, with texts that stand for others, and with `<0x0A>` for single bytes where `bytes` is set.
    Pieces { replaced: Vec<(String, String)>, bytes: bool },
}

impl Tokenizer {
    /// The bytes of every token, by id.
    pub fn token_bytes(&self) -> Vec<TokenBytes> {
        let spelling = Spelling::of(&self.decoder());
        let special = self.special_ids();
        let of = |id: u32| {
            let bytes = self.token(id).map(|token| spelling.bytes(&token)).unwrap_or_default();
            TokenBytes { bytes, special: special.contains(&id) }
        };
        (0..u32::try_from(self.vocab_size()).unwrap_or(u32::MAX)).map(of).collect()
    }
}

impl Spelling {
    /// That of a decoder, as `tokenizer.json` writes it.
    fn of(decoder: &Value) -> Self {
        let steps = steps(decoder, "decoders");
        let kind = |step: &Value| step["type"].as_str().unwrap_or_default().to_owned();
        if steps.iter().any(|step| kind(step) == "ByteLevel") {
            return Spelling::Letters(letters());
        }
        let (mut replaced, mut bytes) = (Vec::new(), false);
        for step in steps {
            match kind(step).as_str() {
                "ByteFallback" => bytes = true,
                "Replace" => {
                    if let (Some(from), Some(to)) =
                        (step["pattern"]["String"].as_str(), step["content"].as_str())
                    {
                        replaced.push((from.to_owned(), to.to_owned()));
                    }
                }
                "Metaspace" => {
                    let from = step["replacement"].as_str().unwrap_or("\u{2581}");
                    replaced.push((from.to_owned(), " ".to_owned()));
                }
                // These join pieces, or change the beginning of a whole text.
                _ => {}
            }
        }
        Spelling::Pieces { replaced, bytes }
    }

    fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Spelling::Letters(letters) => {
                let bytes: Option<Vec<u8>> =
                    token.chars().map(|letter| letters.get(&letter).copied()).collect();
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Spelling::Pieces { replaced, bytes } => {
                let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                let byte = byte.filter(|digits| *bytes && digits.len() == 2);
                if let Some(byte) = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                    return vec![byte];
                }
                let replace = |text: String, (from, to): &(String, String)| text.replace(from, to);
                replaced.iter().fold(token.to_owned(), replace).into_bytes()
            }
        }
    }
}

/// The steps of a sequence of them, in order, or the one that there is.
pub(super) fn steps<'v>(part: &'v Value, name: &str) -> Vec<&'v Value> {
    match part[name].as_array() {
        Some(list) => list.iter().flat_map(|one| steps(one, name)).collect(),
        None => vec![part],
    }
}

/// GPT-2's letters of bytes: printable ones stand for themselves, the others for letters from U+0100 on, in order.
pub(super) fn letters() -> HashMap<char, u8> {
    let mut next = 0x100;
    let letter = |byte: u8| {
        let letter = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap_or_default()
            }
        };
        (letter, byte)
    };
    (0..=u8::MAX).map(letter).collect()
}
