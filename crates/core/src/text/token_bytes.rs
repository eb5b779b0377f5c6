//! Bytes of each token, from the vocabulary and its decoder: decoding a single token fails for parts of a character.

use std::collections::HashMap;

use serde_json::Value;

/// Bytes of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenBytes {
    /// Empty for an unused id.
    pub bytes: Vec<u8>,
    /// True for a special token, which is omitted from text.
    pub special: bool,
}

/// Byte encoding of a vocabulary.
#[derive(Debug, Clone)]
pub(super) struct Spelling {
    kind: Kind,
    /// True if decoding concatenates token bytes, except for the first token's leading space.
    pub joins: bool,
}

#[derive(Debug, Clone)]
enum Kind {
    /// One letter per byte (GPT-2).
    Letters(HashMap<char, u8>),
    /// Plain text with replacements, and `<0x0A>` byte tokens if `bytes`.
    Pieces { replaced: Vec<(String, String)>, bytes: bool },
}

impl Spelling {
    /// From a decoder in `tokenizer.json` format.
    pub fn of(decoder: &Value) -> Self {
        let steps = steps(decoder, "decoders");
        let kinds: Vec<&str> = steps.iter().map(|step| step["type"].as_str().unwrap_or_default()).collect();
        if kinds.contains(&"ByteLevel") {
            let joins = kinds.iter().all(|kind| ["ByteLevel", "Fuse"].contains(kind));
            return Spelling { kind: Kind::Letters(letters()), joins };
        }
        let (mut replaced, mut bytes) = (Vec::new(), false);
        // Tokens are joined at `Fuse`; a later `Strip` affects only the start of the text.
        let (mut joins, mut fused) = (!decoder.is_null(), false);
        for (step, kind) in steps.into_iter().zip(kinds) {
            match kind {
                "ByteFallback" => bytes = true,
                "Replace" => match (step["pattern"]["String"].as_str(), step["content"].as_str()) {
                    (Some(from), Some(to)) => {
                        replaced.push((from.to_owned(), to.to_owned()));
                        joins &= !fused;
                    }
                    _ => joins = false,
                },
                "Metaspace" => {
                    let from = step["replacement"].as_str().unwrap_or("\u{2581}");
                    replaced.push((from.to_owned(), " ".to_owned()));
                }
                "Fuse" => fused = true,
                "Strip" => joins &= fused && step["stop"] == 0,
                _ => joins = false,
            }
        }
        Spelling { kind: Kind::Pieces { replaced, bytes }, joins }
    }

    /// Number of U+FFFD for `bytes` invalid bytes: one per byte with byte fallback, else one; as in the `tokenizers` crate.
    pub fn replacements(&self, bytes: usize) -> usize {
        match &self.kind {
            Kind::Pieces { bytes: true, .. } => bytes,
            _ => 1,
        }
    }

    /// Bytes of a vocabulary entry.
    pub fn bytes(&self, token: &str) -> Vec<u8> {
        match &self.kind {
            Kind::Letters(letters) => {
                let bytes: Option<Vec<u8>> =
                    token.chars().map(|letter| letters.get(&letter).copied()).collect();
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Kind::Pieces { replaced, bytes } => {
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

pub(super) fn steps<'v>(part: &'v Value, name: &str) -> Vec<&'v Value> {
    match part[name].as_array() {
        Some(list) => list.iter().flat_map(|one| steps(one, name)).collect(),
        None => vec![part],
    }
}

/// GPT-2's byte letters: printable bytes map to themselves, others to U+0100 and up, in order.
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
