//! Functions that a model may call: how it is told of them, and how its calls are written and read.
//!
//! Models that were trained to call functions have chat templates that list them and write calls in a layout of their own
//! (`layout`, found by rendering). For the others there is a plain layout, which goes into the messages (`compose`). What a model
//! may write is a grammar (`grammar`), and what it wrote is read as it comes (`reader`). Called by the server; knows no HTTP.

use serde_json::{Map, Value, json};

use super::{Message, MessageRole};

mod compose;
mod grammar;
mod layout;
mod reader;

pub use compose::{Composed, ContentSource, compose};
pub use grammar::{CallGrammarError, ParametersFault, call_grammar};
pub use layout::{Arguments, CallLayout, ToolLayout};
pub use reader::{CallPiece, CallReader, Ending, Read};

/// A function that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name: letters, digits, `_` and `-`.
    pub name: String,
    /// Its description for the model.
    pub description: Option<String>,
    /// The JSON schema of its arguments, an object's.
    pub parameters: Map<String, Value>,
    /// True if a schema that cannot be enforced in full is refused.
    pub strict: bool,
}

impl Tool {
    /// As chat templates and models read it: `{"type": "function", "function": {...}}`.
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

/// A call that a model made.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The identifier that its result refers to.
    pub id: String,
    /// The function.
    pub name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

/// The speaker in a conversation with functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A function, with the result of a call.
    Tool,
}

impl Speaker {
    /// As chat templates name it.
    pub fn name(self) -> &'static str {
        match self {
            Speaker::System => "system",
            Speaker::User => "user",
            Speaker::Assistant => "assistant",
            Speaker::Tool => "tool",
        }
    }
}

/// A message of a conversation with functions.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatTurn {
    /// The speaker.
    pub role: Speaker,
    /// The text.
    pub content: String,
    /// Calls of the model.
    pub calls: Vec<ToolCall>,
    /// Which call a result is of.
    pub call_id: Option<String>,
    /// Which function a result is of, where it is known; else the speaker's own name.
    pub name: Option<String>,
    /// The thought before the model's answer or calls, for templates that show it again.
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
    /// A message that neither calls a function nor is a result.
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

    /// As chat templates read it. Arguments are an object there, not its text.
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
            // GPT-OSS's template reads `thinking`, and refuses it beside a text before calls.
            if self.calls.is_empty() || self.content.is_empty() {
                message["thinking"] = thought.clone().into();
            }
        }
        message
    }
}
