//! Special tokens spelled by session or query text. By default `<|im_end|>` in a session becomes that token and ends the turn, as in usual
//! chat stacks; it can be read as plain text instead. The chat template's own tokens are unaffected.

use serde::{Deserialize, Serialize};

use super::chat_template::MARKERS;

/// The reading of text in the data that spells a special token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum SpecialTokens {
    /// As that token, as transformers does
    #[default]
    Control,
    /// As plain text
    Text,
}

impl SpecialTokens {
    /// True for the default, which is omitted from a run's identity.
    pub fn is_default(&self) -> bool {
        *self == SpecialTokens::default()
    }
}

/// Begin- and end-of-text tokens of known models.
const ENDS: [&str; 8] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
];

/// Known special tokens in a text, in list order, without duplicates.
pub fn known_special_tokens(text: &str) -> Vec<&'static str> {
    MARKERS.into_iter().chain(ENDS).filter(|token| text.contains(token)).collect()
}
