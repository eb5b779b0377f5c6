//! Chat messages and documents as sent.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::attention_request::{is_label, label};
use super::error::{ApiError, ensure};
use super::json::{drop_neutral, found, is_empty, list, read_at, wrong};
use palimpsest_core::text::{ChatTurn, Document, Speaker, ToolCall};

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
    content: Option<Value>,
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContentPart {
    #[serde(rename = "type")]
    _kind: PartKind,
    text: String,
    #[serde(default, deserialize_with = "label")]
    span: Option<String>,
}

#[derive(Debug, Deserialize)]
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
    /// Without its content.
    pub turn: ChatTurn,
    /// One part for string content, none without content.
    pub parts: Vec<Part>,
    /// Inlined documents before the parts.
    pub lead: Vec<Part>,
    pub has_parts: bool,
}

/// A text of a message, with the label of its span.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    pub text: String,
    pub label: String,
    /// By the client, not by its place.
    pub named: bool,
}

impl Sent {
    /// Refuses fields that do not fit a message's role.
    pub fn all(messages: Vec<Message>) -> Result<Vec<Sent>, ApiError> {
        let mut all = Vec::with_capacity(messages.len());
        for message in messages {
            let sent = Sent::new(message, &all)?;
            all.push(sent);
        }
        Ok(all)
    }

    fn new(message: Message, before: &[Sent]) -> Result<Sent, ApiError> {
        let i = before.len();
        let Message { role, tool_calls, tool_call_id: call_id, name, content, .. } = message;
        // Precedence as in transformers: most servers, GPT-OSS, OpenRouter and newer vLLM.
        let thought = message.reasoning_content.or(message.thinking).or(message.reasoning);
        let said = |text: &String| !text.is_empty();
        let thought = thought.filter(|text| said(text) && role == Speaker::Assistant);
        let field = |key: &str| format!("messages[{i}].{key}");
        let (calls, is_result) = (!tool_calls.is_empty(), role == Speaker::Tool);
        let reason = "is for messages of the assistant; leave it out";
        ensure(!calls || role == Speaker::Assistant, field("tool_calls"), reason)?;
        if is_result && call_id.is_none() {
            return Err(ApiError::missing(field("tool_call_id")));
        }
        let reason = "is for messages of the role tool; leave it out";
        ensure(is_result || call_id.is_none(), field("tool_call_id"), reason)?;
        let has_parts = content.as_ref().is_some_and(Value::is_array);
        let parts = match content {
            Some(Value::String(text)) => vec![Part { text, label: format!("messages[{i}]"), named: false }],
            Some(list @ Value::Array(_)) => {
                let parts: Vec<ContentPart> = read_at(&field("content"), &list)?;
                let reason = format_args!("has {} parts; give at most {MOST_PARTS}", parts.len());
                ensure(parts.len() <= MOST_PARTS, field("content"), reason)?;
                let part = |(j, ContentPart { text, span, .. }): (usize, ContentPart)| {
                    let named = span.is_some();
                    let label = span.unwrap_or_else(|| format!("messages[{i}].content[{j}]"));
                    Part { text, label, named }
                };
                parts.into_iter().enumerate().map(part).collect()
            }
            Some(other) => {
                let wanted = "a string or an array of parts";
                return Err(ApiError::wrong(field("content"), found(&other), wanted));
            }
            None if calls => Vec::new(),
            None => return Err(ApiError::missing(field("content"))),
        };
        let call =
            |Call { id, function: CalledFunction { name, arguments }, .. }| ToolCall { id, name, arguments };
        let calls = tool_calls.into_iter().map(call).collect();
        let mut earlier = before.iter().rev().flat_map(|sent| &sent.turn.calls);
        let answered = earlier.find(|call| Some(&call.id) == call_id.as_ref());
        let name = answered.map(|call| call.name.clone()).or(name.filter(said));
        let turn = ChatTurn { role, content: String::new(), calls, call_id, name, thought };
        Ok(Sent { turn, parts, lead: Vec::new(), has_parts })
    }

    pub fn of_tools(&self) -> bool {
        self.turn.role == Speaker::Tool || !self.turn.calls.is_empty()
    }

    pub fn turn(&self) -> ChatTurn {
        ChatTurn { content: self.content(), ..self.turn.clone() }
    }

    /// Text including inlined documents.
    pub fn content(&self) -> String {
        self.lead.iter().chain(&self.parts).map(|part| part.text.as_str()).collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentField {
    title: Option<String>,
    text: String,
    #[serde(rename = "doc_id")]
    _id: Option<IgnoredAny>,
}

impl DocumentField {
    fn title(&self) -> &str {
        self.title.as_deref().unwrap_or_default().trim()
    }
}

/// `documents` of a chat request, each a prompt span named by its title. Passed to templates that support documents; the span is then the
/// text. Other templates get them before the text of the last user message, each with a heading that belongs to its span.
#[derive(Debug, Clone, Default)]
pub struct Documents {
    pub listed: Vec<Document>,
    pub labels: Vec<String>,
}

impl Documents {
    /// `native`: the template supports documents; otherwise they are inlined into the last user message.
    pub fn new(fields: Vec<DocumentField>, native: bool, sent: &mut [Sent]) -> Result<Documents, ApiError> {
        let mut labels: Vec<String> = Vec::with_capacity(fields.len());
        for (i, field) in fields.iter().enumerate() {
            let name = format!("documents[{i}].text");
            ensure(!field.text.trim().is_empty(), name, "is empty; leave the document out")?;
            let title = Some(field.title()).filter(|title| is_label(title));
            let named = title.map_or_else(|| format!("document[{i}]"), str::to_owned);
            let same = fields[..i].iter().filter(|other| other.title() == named).count();
            labels.push(if same > 0 { format!("{named} ({})", same + 1) } else { named });
        }
        if fields.is_empty() || native {
            let listed = fields.into_iter();
            let listed =
                listed.map(|field| Document { title: field.title.unwrap_or_default(), text: field.text });
            return Ok(Documents { listed: listed.collect(), labels });
        }
        let last = sent.iter_mut().rev().find(|one| one.turn.role == Speaker::User);
        let last = last.ok_or_else(|| {
            ApiError::at("documents", "stand before the user's last message, and there is none; send one")
        })?;
        let part = |(i, field): (usize, &DocumentField)| {
            let heading = match field.title() {
                "" => format!("Document {}", i + 1),
                title => title.to_owned(),
            };
            let text = format!("# {heading}\n{}\n\n", field.text.trim());
            Part { text, label: labels[i].clone(), named: true }
        };
        last.lead = fields.iter().enumerate().map(part).collect();
        Ok(Documents { listed: Vec::new(), labels })
    }
}
