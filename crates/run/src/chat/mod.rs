//! Chat models behind one trait: the local engine or an OpenAI-compatible endpoint. [`endpoint::ServerModel`] adds the engine requests of a
//! palimpsest server. The trait knows no HTTP and no dataset.

pub mod endpoint;
pub(crate) mod loose_json;
pub mod parallel;

mod local;

pub use palimpsest_core::engine::{Sampling, StopReason};
pub use palimpsest_core::text::{Message, MessageRole};
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Without special tokens and thoughts; empty if there is no answer ([`StopReason::has_answer`]).
    pub text: String,
    pub thought: Option<String>,
    pub stop: StopReason,
    pub prompt_tokens: Option<usize>,
    pub completion_tokens: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ChatError {
    /// Names the model and the remedy; never contains a key.
    pub message: String,
    pub too_long: bool,
    /// The model replied, with no text.
    pub is_empty: bool,
}

impl From<String> for ChatError {
    fn from(message: String) -> Self {
        ChatError { message, too_long: false, is_empty: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallTokens {
    /// Prompt tokens computed; `None` if any call did not report it.
    pub computed: Option<usize>,
    /// Generated tokens; `None` if any call did not report it.
    pub generated: Option<usize>,
}

pub trait ChatModel {
    fn name(&self) -> String;

    fn reply(&mut self, messages: &[Message], sampling: &Sampling) -> Result<Reply, ChatError>;

    /// Request parameters rejected by the model, which used its defaults.
    fn refused_parameters(&self) -> Vec<String> {
        Vec::new()
    }

    fn take_tokens(&mut self) -> CallTokens {
        CallTokens::default()
    }

    /// Constrains further replies to a named JSON schema, where the model can; `None` lifts it. Replies have to be checked all the same.
    fn hold_to(&mut self, _schema: Option<(&str, &Value)>) -> Result<(), ChatError> {
        Ok(())
    }

    /// The model with readable probabilities, if it has them.
    fn scoring(&mut self) -> Option<&mut dyn ScoringModel> {
        None
    }
}

/// A model with readable probabilities, for judging by scoring.
pub trait ScoringModel: ChatModel {
    /// Natural-log probability of each choice as the continuation of an assistant turn starting with `prefix`.
    fn score(&mut self, messages: &[Message], prefix: &str, choices: &[&str]) -> Result<Vec<f64>, ChatError>;

    /// Greedy continuation of an assistant turn starting with `prefix`, up to and excluding `until`, the end of the turn, or
    /// `max_new_tokens`.
    fn continue_from(
        &mut self,
        messages: &[Message],
        prefix: &str,
        until: &str,
        max_new_tokens: usize,
    ) -> Result<String, ChatError>;
}
