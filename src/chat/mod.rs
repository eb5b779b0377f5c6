//! What answers: the local engine or an OpenAI-compatible endpoint, behind one trait.
//!
//! Answerers, judges and memory systems speak to [`ChatModel`]; the trait knows no HTTP and no dataset.

pub mod endpoint;

use serde::{Deserialize, Serialize};

mod local;
mod text_side;

pub use local::{ContextLength, LocalError, LocalModel, LocalOptions, Parts, resolve_to_run};
pub use text_side::TextSide;

/// One message of a conversation with a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: MessageRole,
    /// What is said.
    pub content: String,
}

/// Who speaks in a [`Message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageRole {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

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

/// A model's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The text, without special tokens.
    pub text: String,
    /// Why generation ended.
    pub stop: StopReason,
    /// Tokens of the prompt, where known.
    pub prompt_tokens: Option<usize>,
    /// Tokens generated, where known.
    pub completion_tokens: Option<usize>,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended its turn.
    EndOfTurn,
    /// The limit of new tokens was reached.
    MaxNewTokens,
}

/// Why a model gave no reply. The text names the model and the remedy and never holds a key.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ChatError(pub String);

/// Anything that answers a conversation.
pub trait ChatModel {
    /// What to call it in logs and reports, for example `local:smollm2-135m`.
    fn name(&self) -> String;

    /// The reply to `messages`.
    fn reply(&mut self, messages: &[Message], sampling: &Sampling) -> Result<Reply, ChatError>;
}

/// A model whose probabilities can be read: what a judge by scoring needs.
pub trait ScoringModel: ChatModel {
    /// The natural-log probability of each of `choices` as the continuation of an assistant turn that has begun with
    /// `prefix`, in the order given.
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
