//! Messages as they were sent.

use serde_json::Value;

use super::attention_request::check_label;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use palimpsest_core::text::{ChatTurn, Message, MessageRole, Speaker, ToolCall};

/// Most messages of a conversation, and most parts of a message.
const MOST_MESSAGES: usize = 4096;

/// Most calls of a message.
const MOST_CALLS: usize = 128;

/// Fields of a message.
pub const MESSAGE_FIELDS: [&str; 6] =
    ["role", "content", "reasoning_content", "annotations", "tool_calls", "tool_call_id"];

/// Fields of a message that are not served yet; empty ones ask for nothing.
pub const MESSAGE_NOT_YET: [&str; 4] = ["function_call", "audio", "name", "refusal"];

/// Fields of a part.
pub const PART_FIELDS: [&str; 3] = ["type", "text", "span"];

/// A message as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    /// Who speaks.
    pub role: Speaker,
    /// Its parts; one where the content is a string, none where there is no content.
    pub parts: Vec<Part>,
    /// Whether the content is an array of parts.
    pub has_parts: bool,
    /// Calls of functions, of the assistant.
    calls: Vec<ToolCall>,
    /// Which call it is the result of, of a function.
    call_id: Option<String>,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its text.
    pub text: String,
    /// Its own name.
    pub span: Option<String>,
}

impl Sent {
    /// The value of `messages`.
    ///
    /// # Errors
    /// What cannot be served, with its field.
    pub fn read_all(fields: &Fields<'_>) -> Result<Vec<Sent>, ApiError> {
        fields.required("messages")?;
        let list = fields.list("messages")?.unwrap_or_default();
        if list.is_empty() || list.len() > MOST_MESSAGES {
            let message = format!("`messages` has {} messages; give 1 to {MOST_MESSAGES}", list.len());
            return Err(ApiError::field("messages", message));
        }
        list.iter().enumerate().map(|(i, value)| Sent::read(&format!("messages[{i}]"), value)).collect()
    }

    fn read(at: &str, value: &Value) -> Result<Sent, ApiError> {
        let fields = Fields::of(value, at)?;
        for key in MESSAGE_NOT_YET {
            if fields.get(key).is_some_and(|value| !super::fields::empty(value)) {
                return Err(ApiError::not_yet(fields.name(key)));
            }
        }
        // A client gives back what it was given; a thought is not shown to the model again.
        fields.only(&[&MESSAGE_FIELDS[..], &MESSAGE_NOT_YET].concat())?;
        fields.required("role")?;
        let role = match fields.text("role")?.unwrap_or_default() {
            "system" | "developer" => Speaker::System,
            "user" => Speaker::User,
            "assistant" => Speaker::Assistant,
            "tool" => Speaker::Tool,
            role => {
                let role: String = role.chars().take(40).collect();
                let message =
                    format!("`{at}.role` is {role:?}; give system, developer, user, assistant or tool");
                return Err(ApiError::field(fields.name("role"), message));
            }
        };
        let calls = read_calls(&fields)?;
        if !calls.is_empty() && role != Speaker::Assistant {
            let name = fields.name("tool_calls");
            let message = format!("`{name}` is for messages of the assistant; leave it out");
            return Err(ApiError::field(name, message));
        }
        let call_id = fields.text("tool_call_id")?.map(str::to_owned);
        match (role, &call_id) {
            (Speaker::Tool, None) => drop(fields.required("tool_call_id")?),
            (Speaker::Tool, Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                let name = fields.name("tool_call_id");
                let message = format!("`{name}` is for messages of the role tool; leave it out");
                return Err(ApiError::field(name, message));
            }
        }
        let content = fields.name("content");
        let (parts, has_parts) = match fields.get("content") {
            // As OpenAI has it: an answer of calls, a refusal or a cut thought has no content, and comes back so.
            None if !calls.is_empty() => (Vec::new(), false),
            None if role == Speaker::Assistant && fields.has("content") => {
                (vec![Part { text: String::new(), span: None }], false)
            }
            _ => match fields.required("content")? {
                Value::String(text) => (vec![Part { text: text.clone(), span: None }], false),
                Value::Array(parts) if parts.len() > MOST_MESSAGES => {
                    let message =
                        format!("`{content}` has {} parts; give at most {MOST_MESSAGES}", parts.len());
                    return Err(ApiError::field(content, message));
                }
                Value::Array(parts) => {
                    let parts = parts.iter().enumerate();
                    let parts = parts.map(|(j, part)| Part::read(&format!("{content}[{j}]"), part));
                    (parts.collect::<Result<_, _>>()?, true)
                }
                value => return Err(wrong(&content, value, "a string or an array of parts")),
            },
        };
        Ok(Sent { role, parts, has_parts, calls, call_id })
    }

    /// Whether functions play a part in it.
    pub fn of_tools(&self) -> bool {
        self.role == Speaker::Tool || !self.calls.is_empty()
    }

    /// As the chat template gets it.
    pub fn turn(&self, before: &[Sent]) -> ChatTurn {
        let of_call = |call: &&ToolCall| Some(&call.id) == self.call_id.as_ref();
        let call = before.iter().rev().flat_map(|sent| &sent.calls).find(of_call);
        ChatTurn {
            role: self.role,
            content: self.content(),
            calls: self.calls.clone(),
            call_id: self.call_id.clone(),
            name: call.map(|call| call.name.clone()),
        }
    }

    fn content(&self) -> String {
        self.parts.iter().map(|part| part.text.as_str()).collect()
    }

    /// As a message that no function plays a part in; `None` where one does.
    pub fn message(&self) -> Option<Message> {
        let role = match self.role {
            Speaker::System => MessageRole::System,
            Speaker::User => MessageRole::User,
            Speaker::Assistant => MessageRole::Assistant,
            Speaker::Tool => return None,
        };
        self.calls.is_empty().then(|| Message { role, content: self.content() })
    }
}

/// `tool_calls` of a message.
fn read_calls(fields: &Fields<'_>) -> Result<Vec<ToolCall>, ApiError> {
    let list = fields.list("tool_calls")?.unwrap_or_default();
    let name = fields.name("tool_calls");
    if list.len() > MOST_CALLS {
        let message = format!("`{name}` has {} calls; give at most {MOST_CALLS}", list.len());
        return Err(ApiError::field(name, message));
    }
    list.iter().enumerate().map(|(i, value)| read_call(&format!("{name}[{i}]"), value)).collect()
}

fn read_call(at: &str, value: &Value) -> Result<ToolCall, ApiError> {
    let fields = Fields::of(value, at)?;
    fields.only(&["id", "type", "function", "index"])?;
    if let Some(kind) = fields.text("type")?.filter(|kind| *kind != "function") {
        let kind: String = kind.chars().take(40).collect();
        let message = format!("`{at}.type` is {kind:?}; give \"function\"");
        return Err(ApiError::field(fields.name("type"), message));
    }
    fields.required("id")?;
    let id = fields.text("id")?.unwrap_or_default().to_owned();
    let function = Fields::of(fields.required("function")?, &fields.name("function"))?;
    function.only(&["name", "arguments"])?;
    function.required("name")?;
    let name = function.text("name")?.unwrap_or_default().to_owned();
    let arguments = function.text("arguments")?.unwrap_or_default();
    let read = match arguments.trim() {
        "" => Ok(Value::Object(serde_json::Map::new())),
        arguments => serde_json::from_str(arguments),
    };
    match read {
        Ok(Value::Object(arguments)) => Ok(ToolCall { id, name, arguments }),
        _ => {
            let name = function.name("arguments");
            let message = format!("`{name}` is not the text of a JSON object; give one");
            Err(ApiError::field(name, message))
        }
    }
}

impl Part {
    fn read(at: &str, value: &Value) -> Result<Part, ApiError> {
        let fields = Fields::of(value, at)?;
        fields.required("type")?;
        match fields.text("type")?.unwrap_or_default() {
            "text" => {}
            kind => {
                let kind: String = kind.chars().take(40).collect();
                let message = format!(
                    "`{at}.type` is {kind:?}; the model reads text alone, so give parts of type \"text\""
                );
                return Err(ApiError::field(fields.name("type"), message));
            }
        }
        fields.only(&PART_FIELDS)?;
        fields.required("text")?;
        let span = fields.text("span")?.map(str::to_owned);
        if let Some(span) = &span {
            check_label(span, &fields.name("span"))?;
        }
        Ok(Part { text: fields.text("text")?.unwrap_or_default().to_owned(), span })
    }
}
