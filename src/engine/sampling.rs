//! How generation goes on and why it ends.

use serde::{Deserialize, Serialize};

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus mass in (0, 1]; 1 keeps every token.
    pub top_p: f64,
    /// Seed of the sampler.
    pub seed: u64,
    /// Most tokens generated.
    pub max_new_tokens: usize,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended its turn.
    EndOfTurn,
    /// The limit of new tokens was reached.
    MaxNewTokens,
    /// A hosted model declined to answer, and its text is the refusal. Of endpoints alone.
    Refused,
}
