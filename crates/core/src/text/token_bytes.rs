//! The bytes that each token stands for, read off the vocabulary and the kind of its decoder.
//!
//! Decoding one token by itself does not show them: a token may be half a character. Called by the engine, whose constraints
//! match texts byte by byte.

use std::collections::HashMap;

use serde_json::Value;

/// The text of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenBytes {
    /// Its bytes; empty for an id without a token.
    pub bytes: Vec<u8>,
    /// True if it is a special token, which is left out of texts.
    pub special: bool,
}

/// A vocabulary's encoding of bytes.
#[derive(Debug, Clone)]
pub(super) struct Spelling {
    kind: Kind,
    /// True if the text of several tokens is their bytes joined, the first space of the first token aside.
    pub joins: bool,
}

#[derive(Debug, Clone)]
enum Kind {
    /// A letter for each byte.
    Letters(HashMap<char, u8>),
    /// As it is, with texts that stand for others, and with `<0x0A>` for single bytes where `bytes` is set.
    Pieces { replaced: Vec<(String, String)>, bytes: bool },
}

impl Spelling {
    /// That of a decoder, as `tokenizer.json` writes it.
    pub fn of(decoder: &Value) -> Self {
        let steps = steps(decoder, "decoders");
        let kinds: Vec<&str> = steps.iter().map(|step| step["type"].as_str().unwrap_or_default()).collect();
        if kinds.contains(&"ByteLevel") {
            let joins = kinds.iter().all(|kind| ["ByteLevel", "Fuse"].contains(kind));
            return Spelling { kind: Kind::Letters(letters()), joins };
        }
        let (mut replaced, mut bytes) = (Vec::new(), false);
        // The decoder joins tokens at `Fuse`; `Strip` behind it changes the beginning of a whole text alone.
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

    /// Characters U+FFFD for so many bytes that form no character: one for a part of a character, but one a byte where the vocabulary
    /// falls back to bytes, as the crate `tokenizers` decodes each.
    pub fn replacements(&self, bytes: usize) -> usize {
        match &self.kind {
            Kind::Pieces { bytes: true, .. } => bytes,
            _ => 1,
        }
    }

    /// The bytes that a token of the vocabulary stands for.
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
