//! Assigns tokens to byte ranges. A token that crosses a border belongs to the side of its first non-space character, since tokens include
//! the preceding space; a white-space token to the side of its first byte. Tokens that share a character each cover all of it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Encoded;

/// Border rule of a run's spans; part of its identity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BorderRule {
    /// By a token's first byte (version 0.1.0).
    #[default]
    #[serde(rename = "first byte")]
    FirstByte,
    /// By a token's first non-space character (current).
    #[serde(rename = "first character")]
    FirstCharacter,
}

impl BorderRule {
    /// True for the default, which is omitted from a run's identity.
    pub fn is_default(&self) -> bool {
        *self == BorderRule::default()
    }
}

/// Token positions of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Borders {
    /// Byte position of each token; never decreasing.
    places: Vec<usize>,
    /// Text length in bytes.
    length: usize,
}

impl Borders {
    /// `encoded` is the encoding of `text`.
    pub fn new(encoded: &Encoded, text: &str) -> Self {
        let mut reached = 0;
        let place = |&(start, end): &(usize, usize)| {
            let covered = text.get(start..end).unwrap_or_default();
            let space = covered.find(|c: char| !c.is_whitespace()).unwrap_or(0);
            // Normalisers can move characters; keep positions monotonic.
            reached = reached.max(start + space);
            reached
        };
        Borders { places: encoded.offsets.iter().map(place).collect(), length: text.len() }
    }

    /// Index of the first token at or after `byte`; the token count if none.
    pub fn token(&self, byte: usize) -> usize {
        match byte >= self.length {
            true => self.places.len(),
            false => self.places.partition_point(|&place| place < byte),
        }
    }

    /// Tokens of a byte range. Tiling ranges give tiling token ranges; one is empty if its neighbours' tokens cover its text.
    pub fn tokens(&self, bytes: &Range<usize>) -> Range<usize> {
        self.token(bytes.start)..self.token(bytes.end)
    }
}
