//! The output of a decode.

use super::sampling::StopReason;

/// Generated tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// Token ids, without the stop token.
    pub tokens: Vec<u32>,
    /// Number of leading thought tokens, markers included; all tokens if the thought did not end.
    pub thought: usize,
    /// Stop reason.
    pub stop: StopReason,
}

impl Generated {
    pub(super) fn nothing() -> Self {
        Generated { tokens: Vec::new(), thought: 0, stop: StopReason::MaxNewTokens }
    }
}
