//! Special tokens in the data: text of a session or a query that spells one.
//!
//! To a model's usual chat stack such text is that token, so that `<|im_end|>` in a session ends the turn in mid-history. It
//! can be read as plain text instead; the chat template's own tokens stay what they are. Called by the commands, which count
//! such cases, and by the report, which names them.

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
    /// True if it is the default: what is left out of a run's identity.
    pub fn is_default(&self) -> bool {
        *self == SpecialTokens::default()
    }
}

/// Further special tokens of known models: beginnings and ends of texts.
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

/// The special tokens of known models that a text spells, in the order of the list, each once.
pub fn known_special_tokens(text: &str) -> Vec<&'static str> {
    MARKERS.into_iter().chain(ENDS).filter(|token| text.contains(token)).collect()
}
