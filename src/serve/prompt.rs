//! A request's conversation or text becomes tokens, and its messages, parts and ranges become spans of them.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::Value;

use super::attention_request::{AttentionRequest, RangeRequest, check_label};
use super::error::ApiError;
use super::fields::{Fields, wrong};
use crate::prompt::{ChatTemplate, Encoded, Message, MessageRole, Span, Tokenizer};

/// Most messages of a conversation, and most parts of a message.
const MOST_MESSAGES: usize = 4096;

/// Fields of a message.
pub const MESSAGE_FIELDS: [&str; 4] = ["role", "content", "reasoning_content", "annotations"];

/// Fields of a message that are not served yet; empty ones ask for nothing.
pub const MESSAGE_NOT_YET: [&str; 6] =
    ["tool_calls", "tool_call_id", "function_call", "audio", "name", "refusal"];

/// Fields of a part.
pub const PART_FIELDS: [&str; 3] = ["type", "text", "span"];

/// A message as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Who speaks.
    pub role: MessageRole,
    /// Its parts; one where the content is a string.
    pub parts: Vec<Part>,
    /// Whether the content is an array of parts.
    pub has_parts: bool,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its text.
    pub text: String,
    /// Its own name.
    pub span: Option<String>,
}

/// A prompt's tokens with its spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPrompt {
    /// Ids.
    pub tokens: Vec<u32>,
    /// What tiles them, in order.
    pub tiles: Vec<Span>,
    /// Ranges that lie over them.
    pub overlays: Vec<Span>,
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
            "system" | "developer" => MessageRole::System,
            "user" => MessageRole::User,
            "assistant" => MessageRole::Assistant,
            role @ ("tool" | "function") => {
                let message =
                    format!("messages of role {role:?} are not served by this version of palimpsest");
                return Err(ApiError::field(fields.name("role"), message));
            }
            role => {
                let role: String = role.chars().take(40).collect();
                let message = format!("`{at}.role` is {role:?}; give system, developer, user or assistant");
                return Err(ApiError::field(fields.name("role"), message));
            }
        };
        let content = fields.name("content");
        match fields.required("content")? {
            Value::String(text) => {
                Ok(Sent { role, parts: vec![Part { text: text.clone(), span: None }], has_parts: false })
            }
            Value::Array(parts) if parts.len() > MOST_MESSAGES => {
                let message = format!("`{content}` has {} parts; give at most {MOST_MESSAGES}", parts.len());
                Err(ApiError::field(content, message))
            }
            Value::Array(parts) => {
                let parts = parts.iter().enumerate();
                let parts = parts.map(|(j, part)| Part::read(&format!("{content}[{j}]"), part));
                Ok(Sent { role, parts: parts.collect::<Result<_, _>>()?, has_parts: true })
            }
            value => Err(wrong(&content, value, "a string or an array of parts")),
        }
    }

    fn message(&self) -> Message {
        Message { role: self.role, content: self.parts.iter().map(|part| part.text.as_str()).collect() }
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

/// The messages as the chat template gets them.
pub fn messages(sent: &[Sent]) -> Vec<Message> {
    sent.iter().map(Sent::message).collect()
}

/// The tokens of a conversation, up to the answer.
///
/// # Errors
/// What the template or the tokeniser cannot do with it.
pub fn chat_tokens(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    sent: &[Sent],
) -> Result<Vec<u32>, ApiError> {
    Ok(tokenizer.encode(&template.render(&messages(sent), true)?)?)
}

/// [`chat_tokens`] with the spans that `asked` names.
///
/// # Errors
/// Those, and of spans that are none.
pub fn chat_spans(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    sent: &[Sent],
    asked: &AttentionRequest,
) -> Result<TokenPrompt, ApiError> {
    let placed = template.place(&messages(sent)).map_err(|error| ApiError::from(error).of("palimpsest"))?;
    let encoded = tokenizer.encode_with_offsets(&placed.text)?;
    let mut order: Vec<usize> = (0..sent.len()).collect();
    order.sort_by_key(|&i| placed.contents[i].bytes.start);
    let mut tiles = Tiles { encoded: &encoded, length: placed.text.len(), at: 0, tiles: Vec::new() };
    let mut templates = 0;
    let mut between = |tiles: &mut Tiles<'_>, until: usize| {
        if until > tiles.at {
            tiles.push(format!("template[{templates}]"), until);
            templates += 1;
        }
    };
    for i in order {
        let (one, place) = (&sent[i], &placed.contents[i]);
        between(&mut tiles, place.bytes.start);
        if !one.has_parts {
            tiles.push(format!("messages[{i}]"), place.bytes.end);
            continue;
        }
        let mut end = 0;
        for (j, part) in one.parts.iter().enumerate() {
            end += part.text.len();
            // White space around a content may be left out.
            let byte = (place.bytes.start + end.saturating_sub(place.cut)).min(place.bytes.end);
            let label = part.span.clone().unwrap_or_else(|| format!("messages[{i}].content[{j}]"));
            tiles.push(label, byte);
        }
    }
    between(&mut tiles, placed.text.len());
    let Tiles { tiles, .. } = tiles;
    let overlay = |range: &RangeRequest| {
        let field = &range.field;
        let Some(message) = range.message else {
            let name = format!("{field}.message");
            let message = format!("`{name}` is missing; say in which message the span lies");
            return Err(ApiError::field(name, message));
        };
        let Some(one) = sent.get(message) else {
            let name = format!("{field}.message");
            let message = format!("`{name}` is {message}; there are {} messages", sent.len());
            return Err(ApiError::field(name, message));
        };
        let part = match (range.part, one.has_parts) {
            (Some(part), _) => part,
            (None, false) => 0,
            (None, true) => {
                let name = format!("{field}.part");
                let message = format!("`{name}` is missing; messages[{message}] has parts, so say which");
                return Err(ApiError::field(name, message));
            }
        };
        let Some(text) = one.parts.get(part).map(|part| part.text.as_str()) else {
            let name = format!("{field}.part");
            let message = format!("`{name}` is {part}; messages[{message}] has {} parts", one.parts.len());
            return Err(ApiError::field(name, message));
        };
        let bytes = bytes_of(text, range)?;
        let before: usize = one.parts.iter().take(part).map(|part| part.text.len()).sum();
        let place = &placed.contents[message];
        let shift = |byte: usize| place.bytes.start + (before + byte).saturating_sub(place.cut);
        let bytes = shift(bytes.start).min(place.bytes.end)..shift(bytes.end).min(place.bytes.end);
        overlay_of(range, bytes, &encoded, placed.text.len())
    };
    let overlays = asked.ranges.iter().map(overlay).collect::<Result<Vec<_>, _>>()?;
    check_unique(&tiles, &overlays)?;
    Ok(TokenPrompt { tokens: encoded.ids, tiles, overlays })
}

/// The tokens of a text that is to be continued, which is one span, `prompt`, with the ranges that `asked` names.
///
/// # Errors
/// What the tokeniser cannot do with it, and ranges that are none.
pub fn text_spans(
    tokenizer: &Tokenizer,
    text: &str,
    asked: &AttentionRequest,
) -> Result<TokenPrompt, ApiError> {
    let encoded = tokenizer.encode_with_offsets(text).map_err(|error| ApiError::from(error).of("prompt"))?;
    let overlay = |range: &RangeRequest| {
        if range.message.is_some() || range.part.is_some() {
            let name = format!("{}.message", range.field);
            let message = "a prompt has no messages; give start and end as characters of the prompt";
            return Err(ApiError::field(name, message));
        }
        overlay_of(range, bytes_of(text, range)?, &encoded, text.len())
    };
    let overlays = asked.ranges.iter().map(overlay).collect::<Result<Vec<_>, _>>()?;
    let tiles = vec![Span::new("prompt", 0..encoded.ids.len())];
    check_unique(&tiles, &overlays)?;
    Ok(TokenPrompt { tokens: encoded.ids, tiles, overlays })
}

/// A prompt of tokens, which is one span.
///
/// # Errors
/// Ranges, which are characters of a text.
pub fn token_spans(tokens: Vec<u32>, asked: &AttentionRequest) -> Result<TokenPrompt, ApiError> {
    if let Some(range) = asked.ranges.first() {
        let message =
            "a prompt of tokens has no characters; give the prompt as a text, or leave the spans out";
        return Err(ApiError::field(range.field.clone(), message));
    }
    let tiles = vec![Span::new("prompt", 0..tokens.len())];
    Ok(TokenPrompt { tokens, tiles, overlays: Vec::new() })
}

/// Spans that tile a text, as tokens.
struct Tiles<'e> {
    encoded: &'e Encoded,
    /// Bytes of the text.
    length: usize,
    /// Bytes that have a span.
    at: usize,
    tiles: Vec<Span>,
}

impl Tiles<'_> {
    fn push(&mut self, label: String, until: usize) {
        let first = self.tiles.last().map_or(0, |span| span.end);
        let end = border(self.encoded, until, self.length);
        self.tiles.push(Span::new(label, first..end.max(first)));
        self.at = until;
    }
}

/// The first token that begins at this byte or after it: a token across a border belongs to the span of its first byte.
fn border(encoded: &Encoded, byte: usize, length: usize) -> usize {
    match byte >= length {
        true => encoded.ids.len(),
        false => encoded.offsets.partition_point(|&(start, _)| start < byte),
    }
}

/// Characters as bytes.
fn bytes_of(text: &str, range: &RangeRequest) -> Result<Range<usize>, ApiError> {
    let at = |character: usize| text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(character);
    match (at(range.start), at(range.end)) {
        (Some(start), Some(end)) => Ok(start..end),
        _ => {
            let name = format!("{}.end", range.field);
            let (start, end, characters) = (range.start, range.end, text.chars().count());
            let message =
                format!("`{}` is characters {start} to {end} of a text of {characters}", range.field);
            Err(ApiError::field(name, message))
        }
    }
}

fn overlay_of(
    range: &RangeRequest,
    bytes: Range<usize>,
    encoded: &Encoded,
    length: usize,
) -> Result<Span, ApiError> {
    let tokens = border(encoded, bytes.start, length)..border(encoded, bytes.end, length);
    if bytes.is_empty() || tokens.is_empty() {
        let message = format!(
            "`{}` holds no token: its characters lie inside one that begins before them, or the chat template leaves them \
             out; make it longer",
            range.field
        );
        return Err(ApiError::field(range.field.clone(), message));
    }
    Ok(Span::new(range.label.clone(), tokens).as_overlay())
}

fn check_unique(tiles: &[Span], overlays: &[Span]) -> Result<(), ApiError> {
    let mut seen = BTreeSet::new();
    for span in tiles.iter().chain(overlays) {
        if !seen.insert(span.label.as_str()) {
            let field = if span.overlay { "palimpsest.spans" } else { "messages" };
            let message = format!("two spans are called {:?}; names are unique", span.label);
            return Err(ApiError::field(field, message));
        }
    }
    Ok(())
}
