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
pub struct Message {
    /// Role.
    pub role: MessageRole,
    /// Text.
    pub content: String,
}

/// Role of a [`Message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageRole {
    /// System instructions.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}
