//! Sampling settings, and the reasons why generation ends.

use serde::{Deserialize, Serialize};

/// The sampling settings.
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

impl Sampling {
    /// The likeliest token each time, up to so many.
    pub fn greedy(max_new_tokens: usize) -> Self {
        Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens }
    }
}

impl Default for Sampling {
    /// Greedy, and no token at all.
    fn default() -> Self {
        Sampling::greedy(0)
    }
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
    /// The limit of tokens of a thought was reached before the answer.
    ThoughtCut,
    /// The model ended its turn inside its thought.
    ThoughtOnly,
}

impl StopReason {
    /// True if generation came as far as the answer. Where it did not, the same would come again of the same prompt.
    pub fn has_answer(self) -> bool {
        !matches!(self, StopReason::ThoughtCut | StopReason::ThoughtOnly)
    }

    /// The reason where it is known whether there is an answer: a model may think although it was told not to.
    #[must_use]
    pub fn seen_in(self, has_answer: bool) -> Self {
        match self {
            StopReason::EndOfTurn if !has_answer => StopReason::ThoughtOnly,
            StopReason::MaxNewTokens if !has_answer => StopReason::ThoughtCut,
            stop => stop,
        }
    }

    /// Why there is no answer, and the remedy; `None` where there is one. `budget` is that of the thought, where known.
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
