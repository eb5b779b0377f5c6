//! Messages of a conversation.

use serde::{Deserialize, Serialize};

/// A document beside a conversation, for templates that show such.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Its title; may be empty.
    pub title: String,
    /// Its text.
    pub text: String,
}

/// One message of a conversation with a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The speaker.
    pub role: MessageRole,
    /// The text.
    pub content: String,
}

/// The speaker of a [`Message`].
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
