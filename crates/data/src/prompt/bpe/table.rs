//! Encoding tables of tiktoken-rs.

use palimpsest_core::text::TextError;
use tiktoken_rs::{CoreBPE, cl100k_base, o200k_base};

pub(super) struct Table(CoreBPE);

impl Table {
    pub fn named(name: &str) -> Result<Self, TextError> {
        let table = if name == "o200k_base" { o200k_base() } else { cl100k_base() };
        let failed = |reason: String| TextError::Tokenizer { name: name.to_owned(), reason };
        table.map(Table).map_err(|error| failed(error.to_string()))
    }

    pub fn count(&self, text: &str) -> usize {
        self.0.count_ordinary(text)
    }
}
