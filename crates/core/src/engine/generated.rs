//! What a decode came to.

use super::sampling::StopReason;

/// What was generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The tokens, without the stop token.
    pub tokens: Vec<u32>,
    /// How many of them come before the answer: those of a thought with its markers. All of them where it did not end.
    pub thought: usize,
    /// Why generation ended.
    pub stop: StopReason,
}
