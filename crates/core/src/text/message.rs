//! Messages of a conversation.

use serde::{Deserialize, Serialize};

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
