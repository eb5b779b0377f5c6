//! Chat messages as sent.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::attention_request::label;
use super::error::ApiError;
use super::json::{OneOf, drop_neutral, is_empty, list, wrong};
use palimpsest_core::text::{ChatTurn, Speaker, ToolCall};

const MOST_PARTS: usize = 4096;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    #[serde(with = "Role")]
    role: Speaker,
    #[serde(default, deserialize_with = "list::<0, 128, _, _>")]
    tool_calls: Vec<Call>,
    tool_call_id: Option<String>,
    name: Option<String>,
    reasoning_content: Option<String>,
    thinking: Option<String>,
    reasoning: Option<String>,
    content: Option<OneOf<Vec<ContentPart>>>,
    /// Clients send back received annotations.
    #[serde(rename = "annotations")]
    _annotations: Option<IgnoredAny>,
}

pub fn drop_neutral_of_messages(body: &mut Value) -> Result<(), ApiError> {
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    for (i, message) in messages.into_iter().flatten().enumerate() {
        drop_neutral(
            message,
            &format!("messages[{i}]."),
            &[(&["function_call", "audio", "refusal"], is_empty)],
        )?;
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(remote = "Speaker", rename_all = "lowercase")]
enum Role {
    #[serde(alias = "developer")]
    System,
    User,
    Assistant,
    Tool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContentPart {
    #[serde(rename = "type")]
    _kind: PartKind,
    pub text: String,
    #[serde(default, deserialize_with = "label")]
    pub span: Option<String>,
}

impl ContentPart {
    pub fn named(text: String, span: String) -> Self {
        ContentPart { _kind: PartKind::Text, text, span: Some(span) }
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartKind {
    Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    #[serde(rename = "index")]
    _index: Option<IgnoredAny>,
    #[serde(rename = "type")]
    _kind: Option<FunctionKind>,
    id: String,
    function: CalledFunction,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FunctionKind {
    Function,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CalledFunction {
    name: String,
    #[serde(default, deserialize_with = "arguments")]
    arguments: Map<String, Value>,
}

fn arguments<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    let text = String::deserialize(from)?;
    match text.trim() {
        "" => Ok(Map::new()),
        text => serde_json::from_str(text).map_err(|_| wrong("the text of a JSON object")),
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    pub role: Speaker,
    /// One part for string content, none without content.
    pub parts: Vec<ContentPart>,
    /// Inlined documents before the parts.
    pub lead: Vec<ContentPart>,
    pub has_parts: bool,
    calls: Vec<ToolCall>,
    call_id: Option<String>,
    name: Option<String>,
    thought: Option<String>,
}

impl Sent {
    /// Refuses fields that do not fit a message's role.
    pub fn all(messages: Vec<Message>) -> Result<Vec<Sent>, ApiError> {
        messages.into_iter().enumerate().map(|(i, message)| Sent::new(i, message)).collect()
    }

    fn new(i: usize, message: Message) -> Result<Sent, ApiError> {
        let Message { role, tool_calls, tool_call_id: call_id, name, content, .. } = message;
        // Precedence as in transformers: most servers, GPT-OSS, OpenRouter and newer vLLM.
        let thought = message.reasoning_content.or(message.thinking).or(message.reasoning);
        let said = |text: &String| !text.is_empty();
        let (name, thought) =
            (name.filter(said), thought.filter(|text| said(text) && role == Speaker::Assistant));
        let field = |key: &str| format!("messages[{i}].{key}");
        if !tool_calls.is_empty() && role != Speaker::Assistant {
            let reason = "is for messages of the assistant; leave it out";
            return Err(ApiError::at(field("tool_calls"), reason));
        }
        if role == Speaker::Tool && call_id.is_none() {
            return Err(ApiError::missing(field("tool_call_id")));
        }
        if role != Speaker::Tool && call_id.is_some() {
            let reason = "is for messages of the role tool; leave it out";
            return Err(ApiError::at(field("tool_call_id"), reason));
        }
        let part = |text| ContentPart { _kind: PartKind::Text, text, span: None };
        let (parts, has_parts) = match content {
            Some(OneOf::Text(text)) => (vec![part(text)], false),
            Some(OneOf::Other(parts)) if parts.len() <= MOST_PARTS => (parts, true),
            Some(OneOf::Other(parts)) => {
                let reason = format!("has {} parts; give at most {MOST_PARTS}", parts.len());
                return Err(ApiError::at(field("content"), reason));
            }
            Some(other) => return Err(other.wrong(field("content"), "a string or an array of parts")),
            None if !tool_calls.is_empty() => (Vec::new(), false),
            None => return Err(ApiError::missing(field("content"))),
        };
        let call =
            |Call { id, function: CalledFunction { name, arguments }, .. }| ToolCall { id, name, arguments };
        let lead = Vec::new();
        let calls = tool_calls.into_iter().map(call).collect();
        Ok(Sent { role, parts, lead, has_parts, calls, call_id, name, thought })
    }

    pub fn of_tools(&self) -> bool {
        self.role == Speaker::Tool || !self.calls.is_empty()
    }

    pub fn turn(&self, before: &[Sent]) -> ChatTurn {
        let of_call = |call: &&ToolCall| Some(&call.id) == self.call_id.as_ref();
        let call = before.iter().rev().flat_map(|sent| &sent.calls).find(of_call);
        ChatTurn {
            role: self.role,
            content: self.content(),
            calls: self.calls.clone(),
            call_id: self.call_id.clone(),
            name: call.map(|call| call.name.clone()).or_else(|| self.name.clone()),
            thought: self.thought.clone(),
        }
    }

    /// Text including inlined documents.
    pub fn content(&self) -> String {
        self.lead.iter().chain(&self.parts).map(|part| part.text.as_str()).collect()
    }
}
