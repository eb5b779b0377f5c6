//! The one rule by which a text's bytes become tokens: wherever spans or costs are cut from a tokenised text.
//!
//! A token across a border belongs to the side of its first character that is no white space, since tokens carry the space before
//! their word; white space alone to the side of its first byte. Of a character that several tokens share, each has the whole.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Encoded;

/// The rule of a run's spans. A run's identity has it, so that runs of two rules are never one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BorderRule {
    /// By a token's first byte, white space or not: that of version 0.1.0.
    #[default]
    #[serde(rename = "first byte")]
    FirstByte,
    /// By a token's first character that is no white space: that of this version.
    #[serde(rename = "first character")]
    FirstCharacter,
}

impl BorderRule {
    /// True if it is the default: what is left out of a run's identity.
    pub fn is_default(&self) -> bool {
        *self == BorderRule::default()
    }
}

/// Where a text's tokens stand, for borders between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Borders {
    /// For each token the byte that says to which side of a border it belongs; never decreasing.
    places: Vec<usize>,
    /// Bytes of the text.
    length: usize,
}

impl Borders {
    /// Of `encoded`, which `text` was encoded to.
    pub fn new(encoded: &Encoded, text: &str) -> Self {
        let mut reached = 0;
        let place = |&(start, end): &(usize, usize)| {
            let covered = text.get(start..end).unwrap_or_default();
            let space = covered.find(|c: char| !c.is_whitespace()).unwrap_or(0);
            // Where a normaliser moves characters, a token still never stands before its predecessor.
            reached = reached.max(start + space);
            reached
        };
        Borders { places: encoded.offsets.iter().map(place).collect(), length: text.len() }
    }

    /// The first token behind a border at this byte; the number of tokens where there is none.
    pub fn token(&self, byte: usize) -> usize {
        match byte >= self.length {
            true => self.places.len(),
            false => self.places.partition_point(|&place| place < byte),
        }
    }

    /// The tokens of a range of bytes. Ranges that tile the text give ranges that tile its tokens; one can be empty, whose text is
    /// part of its neighbours' tokens.
    pub fn tokens(&self, bytes: &Range<usize>) -> Range<usize> {
        self.token(bytes.start)..self.token(bytes.end)
    }
}
