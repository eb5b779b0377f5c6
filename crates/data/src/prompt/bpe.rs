//! OpenAI's byte-pair encodings: `o200k_base`, which the STALE paper counts in (appendix D.4), and `cl100k_base`. Wraps `tiktoken-rs`,
//! whose tables match the SHA-256 pinned by OpenAI's package.

use palimpsest_core::text::{CountTokens, TextError, check_runs};

#[cfg_attr(not(feature = "o200k"), path = "bpe/no_table.rs")]
#[cfg_attr(feature = "o200k", path = "bpe/table.rs")]
mod table;

use table::Table;

pub const ENCODINGS: [&str; 2] = ["o200k_base", "cl100k_base"];

/// Loading takes some tenths of a second and 40 MB.
pub struct BytePairEncoding {
    name: &'static str,
    table: Table,
}

impl BytePairEncoding {
    pub fn named(name: &str) -> Result<Self, TextError> {
        let Some(known) = ENCODINGS.into_iter().find(|known| *known == name) else {
            let known = ENCODINGS.join(", ");
            let reason = format!("no such encoding (known: {known}); a model's own is given by --model");
            return Err(TextError::Tokenizer { name: name.to_owned(), reason });
        };
        Ok(BytePairEncoding { name: known, table: Table::named(known)? })
    }

    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl CountTokens for BytePairEncoding {
    /// Special tokens count as plain text, as in an endpoint's messages. Fails on runs that the pre-tokeniser's regex gives up on.
    fn count(&self, text: &str) -> Result<usize, TextError> {
        check_runs(text)?;
        Ok(self.table.count(text))
    }
}

impl std::fmt::Debug for BytePairEncoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BytePairEncoding").field("name", &self.name).finish_non_exhaustive()
    }
}
