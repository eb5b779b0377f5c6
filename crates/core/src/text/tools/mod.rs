//! Tool calling: rendering functions, constraining and parsing calls. Knows no HTTP.
//!
//! Chat templates with tool support use their own layout (`layout`); others get functions in plain messages (`compose`). `grammar`
//! constrains calls and `reader` parses them as a stream.

use serde_json::{Map, Value, json};

use super::{Message, MessageRole};

mod compose;
mod grammar;
mod layout;
mod reader;

pub use compose::{Composed, ContentSource, compose};
pub use grammar::{CallGrammarError, call_grammar};
pub use layout::{Arguments, CallLayout, ToolLayout};
pub use reader::{CallPiece, CallReader, Ending, Read};

/// A function the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    /// Description for the model.
    pub description: Option<String>,
    /// JSON schema of the arguments object.
    pub parameters: Map<String, Value>,
    /// True to refuse schemas that cannot be fully enforced.
    pub strict: bool,
}

impl Tool {
    /// OpenAI format: `{"type": "function", "function": {...}}`.
    pub fn json(&self) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), self.name.clone().into());
        if let Some(description) = &self.description {
            function.insert("description".to_owned(), description.clone().into());
        }
        function.insert("parameters".to_owned(), self.parameters.clone().into());
        json!({"type": "function", "function": function})
    }
}

/// A call made by the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Id that its result refers to.
    pub id: String,
    /// Function name.
    pub name: String,
    /// Arguments.
    pub arguments: Map<String, Value>,
}

/// Role in a conversation with tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // said by the names
pub enum Speaker {
    System,
    User,
    Assistant,
    Tool,
}

impl Speaker {
    /// Name used in chat templates.
    pub fn name(self) -> &'static str {
        match self {
            Speaker::System => "system",
            Speaker::User => "user",
            Speaker::Assistant => "assistant",
            Speaker::Tool => "tool",
        }
    }
}

/// A message of a conversation with tools.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatTurn {
    /// Role.
    pub role: Speaker,
    /// Text.
    pub content: String,
    /// Calls made in this message.
    pub calls: Vec<ToolCall>,
    /// Id of the call that a result answers.
    pub call_id: Option<String>,
    /// Function name of a result, if known; else the speaker's name.
    pub name: Option<String>,
    /// Thought before the answer or calls, for templates that render it.
    pub thought: Option<String>,
}

impl From<&Message> for ChatTurn {
    fn from(message: &Message) -> Self {
        let role = match message.role {
            MessageRole::System => Speaker::System,
            MessageRole::User => Speaker::User,
            MessageRole::Assistant => Speaker::Assistant,
        };
        ChatTurn::new(role, message.content.clone())
    }
}

impl ChatTurn {
    /// A message without calls.
    pub fn new(role: Speaker, content: impl Into<String>) -> Self {
        ChatTurn {
            role,
            content: content.into(),
            calls: Vec::new(),
            call_id: None,
            name: None,
            thought: None,
        }
    }

    pub(super) fn json(&self) -> Value {
        let mut message = json!({"role": self.role.name(), "content": self.content});
        if !self.calls.is_empty() {
            let call = |call: &ToolCall| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            };
            message["tool_calls"] = self.calls.iter().map(call).collect();
        }
        for (key, value) in [("tool_call_id", &self.call_id), ("name", &self.name)] {
            if let Some(value) = value {
                message[key] = value.clone().into();
            }
        }
        if let Some(thought) = &self.thought {
            message["reasoning_content"] = thought.clone().into();
            // GPT-OSS's template reads `thinking` and rejects it together with text before calls.
            if self.calls.is_empty() || self.content.is_empty() {
                message["thinking"] = thought.clone().into();
            }
        }
        message
    }
}
