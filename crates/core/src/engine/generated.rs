//! The output of a decode.

use super::sampling::StopReason;

/// Generated tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The tokens, without the stop token.
    pub tokens: Vec<u32>,
    /// The number of tokens before the answer: a thought with its markers. All of them where it did not end.
    pub thought: usize,
    /// Why generation ended.
    pub stop: StopReason,
}
