//! The tables of the encodings, by tiktoken-rs.

use tiktoken_rs::{CoreBPE, cl100k_base, o200k_base};

/// The table of an encoding.
pub(super) struct Table(CoreBPE);

impl Table {
    /// That of `o200k_base`, or else of `cl100k_base`.
    pub fn named(name: &str) -> Result<Self, String> {
        let table = if name == "o200k_base" { o200k_base() } else { cl100k_base() };
        table.map(Table).map_err(|error| error.to_string())
    }

    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.0.encode_ordinary(text)
    }

    pub fn count(&self, text: &str) -> usize {
        self.0.count_ordinary(text)
    }

    pub fn decode(&self, ids: &[u32]) -> Result<String, String> {
        self.0.decode(ids).map_err(|error| error.to_string())
    }
}
