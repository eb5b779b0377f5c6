//! Converts conversations and texts to tokens, with spans for messages, parts and ranges.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::Value;

use super::attention_request::{AttentionRequest, RangeRequest, Units};
use super::error::{ApiError, ensure};
use super::model::ServedModel;
use super::sent::{Documents, Sent};
use palimpsest_core::span::Span;
use palimpsest_core::text::{
    Borders, ChatTemplate, ChatTurn, ContentPlace, ContentSource, Placed, Speaker, Tokenizer, Tool, compose,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPrompt {
    pub tokens: Vec<u32>,
    /// In order; they tile the prompt.
    pub tiles: Vec<Span>,
    pub overlays: Vec<Span>,
    pub documents: Vec<String>,
    /// Last part of the user's last message.
    pub question: Option<String>,
    /// Documents, and parts of messages but the system's; ranges of a prompt without messages.
    pub sessions: Vec<String>,
}

/// Turns for the chat template, and their sources in the client's messages.
#[derive(Debug)]
pub struct Conversation<'s> {
    sent: &'s [Sent],
    model: &'s ServedModel,
    turns: Vec<ChatTurn>,
    parts: Vec<Vec<ContentSource>>,
    listed: Vec<Value>,
    documents: &'s Documents,
}

impl<'s> Conversation<'s> {
    pub fn new(
        model: &'s ServedModel,
        sent: &'s [Sent],
        tools: &[Tool],
        documents: &'s Documents,
    ) -> Result<Self, ApiError> {
        let turns: Vec<ChatTurn> = sent.iter().map(Sent::turn).collect();
        let with_tools = !tools.is_empty() || sent.iter().any(Sent::of_tools);
        if with_tools && !model.tool_layout()?.native {
            let composed = compose(&turns, tools);
            let (turns, parts) = composed.into_iter().map(|one| (one.turn, one.parts)).unzip();
            return Ok(Conversation { sent, model, turns, parts, listed: Vec::new(), documents });
        }
        let whole =
            |(message, turn): (usize, &ChatTurn)| match turn.content.is_empty() && !turn.calls.is_empty() {
                true => Vec::new(),
                false => vec![ContentSource { message, bytes: 0..turn.content.len() }],
            };
        let parts = turns.iter().enumerate().map(whole).collect();
        let listed = tools.iter().map(Tool::json).collect();
        Ok(Conversation { sent, model, turns, parts, listed, documents })
    }

    /// Tokens of the prompt, including the generation prompt.
    pub fn tokens(&self, template: &ChatTemplate) -> Result<Vec<u32>, ApiError> {
        let text = template.render_turns(&self.turns, &self.listed, &self.documents.listed, true)?;
        self.model.limit.check("messages", text.len())?;
        Ok(self.model.text.tokenizer.encode(&text)?)
    }

    /// Position of each message's content in the rendered text.
    fn places(&self, placed: &Placed) -> Vec<Option<ContentPlace>> {
        let mut places = vec![None; self.sent.len()];
        for (parts, place) in self.parts.iter().zip(&placed.contents) {
            for ContentSource { message, bytes } in parts {
                if let Some(found) = places.get_mut(*message) {
                    let cut = place.cut.saturating_sub(bytes.start);
                    *found = Some(ContentPlace { bytes: place.at(bytes.start)..place.at(bytes.end), cut });
                }
            }
        }
        places
    }
}

/// Tokens of a conversation, including the generation prompt, with the spans in `asked`.
pub fn chat_spans(
    template: &ChatTemplate,
    conversation: &Conversation<'_>,
    asked: &AttentionRequest,
) -> Result<TokenPrompt, ApiError> {
    only_characters(asked)?;
    let Conversation { sent, model, turns, listed, documents, .. } = conversation;
    let placed = template.place(turns, listed, &documents.listed);
    let placed = placed.map_err(|error| ApiError::from(error).of("palimpsest"))?;
    let places = conversation.places(&placed);
    model.limit.check("messages", placed.text.len())?;
    let encoded = model.text.tokenizer.encode_with_offsets(&placed.text)?;
    let borders = Borders::new(&encoded, &placed.text);
    let (mut tiles, mut at, mut templates) = (Vec::new(), 0, 0);
    // Without a label: of the template.
    let mut tile = |label: Option<String>, until: usize| {
        if label.is_none() && until <= at {
            return;
        }
        let label = label.unwrap_or_else(|| {
            templates += 1;
            format!("template[{}]", templates - 1)
        });
        let until = until.max(at);
        tiles.push(Span::new(label, borders.tokens(&(at..until))));
        at = until;
    };
    let listed = placed.documents.iter().enumerate().map(|(i, place)| (sent.len() + i, place));
    let messages = places.iter().enumerate().filter_map(|(i, place)| Some((i, place.as_ref()?)));
    let mut order: Vec<(usize, &ContentPlace)> = messages.chain(listed).collect();
    order.sort_by_key(|(_, place)| place.bytes.start);
    for (i, place) in order {
        tile(None, place.bytes.start);
        let Some(one) = sent.get(i) else {
            tile(Some(documents.labels[i - sent.len()].clone()), place.bytes.end);
            continue;
        };
        let mut end = 0;
        for part in one.lead.iter().chain(&one.parts) {
            end += part.text.len();
            tile(Some(part.label.clone()), place.at(end));
        }
    }
    tile(None, placed.text.len());
    let overlay = |range: &RangeRequest| {
        let wrong = |key: &str, reason: String| ApiError::at(format!("{}.{key}", range.field), reason);
        let missing = || wrong("message", "is missing; say in which message the span lies".to_owned());
        let message = range.message.ok_or_else(missing)?;
        let unknown = || wrong("message", format!("is {message}; there are {} messages", sent.len()));
        let one = sent.get(message).ok_or_else(unknown)?;
        let has_parts = || wrong("part", format!("is missing; messages[{message}] has parts, so say which"));
        let part = range.part.or((!one.has_parts).then_some(0)).ok_or_else(has_parts)?;
        let count = one.parts.len();
        let unknown = || wrong("part", format!("is {part}; messages[{message}] has {count} parts"));
        let text = &one.parts.get(part).ok_or_else(unknown)?.text;
        let bytes = bytes_of(text, range)?;
        let before: usize =
            one.lead.iter().chain(one.parts.iter().take(part)).map(|part| part.text.len()).sum();
        let Some(place) = places.get(message).and_then(Option::as_ref) else {
            let reason = format!("lies in messages[{message}], which has no content");
            return Err(ApiError::at(&range.field, reason));
        };
        overlay_of(range, &(place.at(before + bytes.start)..place.at(before + bytes.end)), &borders)
    };
    let overlays = overlays(&tiles, asked, overlay)?;
    let of_user = |one: &&Sent| one.turn.role == Speaker::User && !one.parts.is_empty();
    let last = sent.iter().rfind(of_user).and_then(|one| one.parts.last());
    let parts = sent.iter().filter(|one| one.turn.role != Speaker::System).flat_map(|one| &one.parts);
    let documents = documents.labels.clone();
    let sessions = parts.map(|part| &part.label).chain(&documents).cloned().collect();
    let question = last.map(|part| part.label.clone());
    Ok(TokenPrompt { tokens: encoded.ids, tiles, overlays, documents, question, sessions })
}

/// Tokens of a text as one span `prompt`, with the ranges in `asked`.
pub fn text_spans(
    tokenizer: &Tokenizer,
    text: &str,
    asked: &AttentionRequest,
) -> Result<TokenPrompt, ApiError> {
    only_characters(asked)?;
    let encoded = tokenizer.encode_with_offsets(text).map_err(|error| ApiError::from(error).of("prompt"))?;
    let borders = Borders::new(&encoded, text);
    TokenPrompt::whole(encoded.ids, asked, |range| {
        no_message(range, "characters")?;
        overlay_of(range, &bytes_of(text, range)?, &borders)
    })
}

/// A token prompt as one span `prompt`, with the token ranges in `asked`.
pub fn token_spans(tokens: Vec<u32>, asked: &AttentionRequest) -> Result<TokenPrompt, ApiError> {
    let n = tokens.len();
    TokenPrompt::whole(tokens, asked, |range| {
        let RangeRequest { field, label, start, end, .. } = range;
        if asked.units == Units::Characters {
            let message = "a prompt of tokens has no characters; give the prompt as a text, set palimpsest.units to \"tokens\", or leave \
                           the spans out";
            return Err(ApiError::field(field, message));
        }
        no_message(range, "tokens")?;
        if *end > n {
            let message = format!("`{field}` is tokens {start} to {end} of a prompt of {n}");
            return Err(ApiError::field(format!("{field}.end"), message));
        }
        Ok(Span::new(label.clone(), *start..*end).as_overlay())
    })
}

impl TokenPrompt {
    /// A prompt of one tile.
    fn whole(
        tokens: Vec<u32>,
        asked: &AttentionRequest,
        overlay: impl FnMut(&RangeRequest) -> Result<Span, ApiError>,
    ) -> Result<Self, ApiError> {
        let tiles = vec![Span::new("prompt", 0..tokens.len())];
        let overlays = overlays(&tiles, asked, overlay)?;
        let sessions = overlays.iter().map(|span| span.label.clone()).collect();
        Ok(TokenPrompt { tokens, tiles, overlays, documents: Vec::new(), question: None, sessions })
    }

    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.tiles.iter().chain(&self.overlays)
    }
}

fn only_characters(asked: &AttentionRequest) -> Result<(), ApiError> {
    let reason = "is \"tokens\" for a prompt of text; give the prompt as token ids to /v1/completions, or leave it out";
    ensure(asked.units == Units::Characters, "palimpsest.units", reason)
}

/// Refuses ranges with a message or part, for prompts without messages.
fn no_message(range: &RangeRequest, units: &str) -> Result<(), ApiError> {
    if range.message.is_none() && range.part.is_none() {
        return Ok(());
    }
    let message = format!("a prompt has no messages; give start and end as {units} of the prompt");
    Err(ApiError::field(format!("{}.message", range.field), message))
}

fn bytes_of(text: &str, range: &RangeRequest) -> Result<Range<usize>, ApiError> {
    let at = |character: usize| text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(character);
    if let (Some(start), Some(end)) = (at(range.start), at(range.end)) {
        return Ok(start..end);
    }
    let RangeRequest { field, start, end, .. } = range;
    let count = text.chars().count();
    let message = format!("`{field}` is characters {start} to {end} of a text of {count}");
    Err(ApiError::field(format!("{field}.end"), message))
}

fn overlay_of(range: &RangeRequest, bytes: &Range<usize>, borders: &Borders) -> Result<Span, ApiError> {
    let tokens = borders.tokens(bytes);
    let reason = "holds no token: its characters lie inside one whose first character that is no white space is elsewhere, or the \
                  chat template leaves them out; make it longer";
    ensure(!bytes.is_empty() && !tokens.is_empty(), &range.field, reason)?;
    Ok(Span::new(range.label.clone(), tokens).as_overlay())
}

/// Resolves the request's ranges with `overlay`; refuses duplicate names.
fn overlays(
    tiles: &[Span],
    asked: &AttentionRequest,
    overlay: impl FnMut(&RangeRequest) -> Result<Span, ApiError>,
) -> Result<Vec<Span>, ApiError> {
    let overlays = asked.ranges.iter().map(overlay).collect::<Result<Vec<_>, _>>()?;
    let mut seen = BTreeSet::new();
    match tiles.iter().chain(&overlays).find(|span| !seen.insert(span.label.as_str())) {
        None => Ok(overlays),
        Some(span) => {
            let field = if span.overlay { "palimpsest.spans" } else { "messages" };
            let message = format!("two spans are called {:?}; names are unique", span.label);
            Err(ApiError::field(field, message))
        }
    }
}
