//! Messages of a conversation.

use serde::{Deserialize, Serialize};

/// A document for templates that support them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Title; may be empty.
    pub title: String,
    /// Text.
    pub text: String,
}

/// A chat message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // said by the names
pub struct Message {
    pub role: MessageRole,
    pub content: String,
}

/// Role of a [`Message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // said by the names
pub enum MessageRole {
    System,
    User,
    Assistant,
}
