//! Chat models: the local engine or an OpenAI-compatible endpoint, behind one trait.
//!
//! A palimpsest server also answers the requests of the engine ([`endpoint::ServerModel`]).
//! Answerers, judges and memory systems speak to [`ChatModel`]; the trait knows no HTTP and no dataset.

pub mod endpoint;
pub mod parallel;

mod local;

pub use palimpsest_core::engine::{Sampling, StopReason};
pub use palimpsest_core::text::{Message, MessageRole};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The answer's text, without special tokens and without a thought; empty where there is none ([`StopReason::has_answer`]).
    pub text: String,
    pub thought: Option<String>,
    pub stop: StopReason,
    pub prompt_tokens: Option<usize>,
    pub completion_tokens: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ChatError {
    /// Names the model and the remedy and never holds a key.
    pub message: String,
    pub too_long: bool,
}

impl From<String> for ChatError {
    fn from(message: String) -> Self {
        ChatError { message, too_long: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallTokens {
    /// Tokens of prompts that were computed; `None` where a call did not say.
    pub computed: Option<usize>,
    /// Tokens generated; `None` where a call did not say.
    pub generated: Option<usize>,
}

pub trait ChatModel {
    /// Its name in logs and reports, for example `local:smollm2-135m`.
    fn name(&self) -> String;

    fn reply(&mut self, messages: &[Message], sampling: &Sampling) -> Result<Reply, ChatError>;

    /// Parameters of requests that the model refused by name, so that its own defaults held for them.
    fn refused_parameters(&self) -> Vec<String> {
        Vec::new()
    }

    /// Tokens of all calls since this was asked last, where the model counts.
    fn take_tokens(&mut self) -> CallTokens {
        CallTokens::default()
    }
}

/// A model whose probabilities can be read: what a judge by scoring needs.
pub trait ScoringModel: ChatModel {
    /// The natural-log probability of each of `choices` as the continuation of an assistant turn that begins with `prefix`.
    fn score(&mut self, messages: &[Message], prefix: &str, choices: &[&str]) -> Result<Vec<f64>, ChatError>;

    /// The greedy continuation of an assistant turn that has begun with `prefix`, up to (not including) the first
    /// occurrence of `until`, the end of the turn, or `max_new_tokens`.
    fn continue_from(
        &mut self,
        messages: &[Message],
        prefix: &str,
        until: &str,
        max_new_tokens: usize,
    ) -> Result<String, ChatError>;
}
