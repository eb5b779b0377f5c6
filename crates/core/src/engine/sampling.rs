//! Sampling settings and stop reasons.

use serde::{Deserialize, Serialize};

/// Sampling settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    /// Top-p in (0, 1]; 1 keeps every token.
    pub top_p: f64,
    /// Random seed.
    pub seed: u64,
    /// Maximum number of generated tokens.
    pub max_new_tokens: usize,
}

impl Sampling {
    /// Greedy decoding of up to `max_new_tokens`.
    pub fn greedy(max_new_tokens: usize) -> Self {
        Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens }
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::greedy(0)
    }
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model emitted an end token.
    EndOfTurn,
    /// The token limit was reached.
    MaxNewTokens,
    /// A hosted model refused; the text is its refusal.
    Refused,
    /// The thinking budget ran out before the answer.
    ThoughtCut,
    /// The model ended its turn inside its thought.
    ThoughtOnly,
}

impl StopReason {
    /// True unless generation ended inside a thought. Retrying the same prompt gives the same result.
    pub fn has_answer(self) -> bool {
        !matches!(self, StopReason::ThoughtCut | StopReason::ThoughtOnly)
    }

    /// Corrects the reason by whether the reply has an answer: models may think even with thinking switched off.
    #[must_use]
    pub fn seen_in(self, has_answer: bool) -> Self {
        match self {
            StopReason::EndOfTurn if !has_answer => StopReason::ThoughtOnly,
            StopReason::MaxNewTokens if !has_answer => StopReason::ThoughtCut,
            stop => stop,
        }
    }

    /// Error message with a remedy if there is no answer. `budget` is the thinking budget, if known.
    pub fn without_answer(self, budget: Option<usize>) -> Option<String> {
        let tokens = budget.map(|budget| format!(" ({budget} tokens)")).unwrap_or_default();
        match self {
            StopReason::EndOfTurn | StopReason::MaxNewTokens | StopReason::Refused => None,
            StopReason::ThoughtCut => Some(format!(
                "the budget for thinking ended{tokens} before the answer; give a larger --max-thinking, or --thinking off where \
                 the model can"
            )),
            StopReason::ThoughtOnly => Some(
                "the model ended its turn inside its thought, without an answer; give --thinking off where the model can, or \
                 another temperature"
                    .to_owned(),
            ),
        }
    }
}
