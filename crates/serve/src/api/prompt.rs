//! Converts conversations and texts to tokens, with spans for messages, parts and ranges.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::Value;

use super::attention_request::{AttentionRequest, RangeRequest, Units};
use super::documents::Documents;
use super::error::ApiError;
use super::model::ServedModel;
use super::sent::{ContentPart, Sent};
use palimpsest_core::span::Span;
use palimpsest_core::text::{
    Borders, ChatTemplate, ChatTurn, ContentPlace, ContentSource, Placed, Tokenizer, Tool, compose,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPrompt {
    pub tokens: Vec<u32>,
    /// In order; they tile the prompt.
    pub tiles: Vec<Span>,
    pub overlays: Vec<Span>,
    pub documents: Vec<String>,
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
        let turns: Vec<ChatTurn> =
            sent.iter().enumerate().map(|(i, one)| one.turn(sent.get(..i).unwrap_or_default())).collect();
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
            // Templates may trim content.
            let at = |byte: usize| (place.bytes.start + byte.saturating_sub(place.cut)).min(place.bytes.end);
            for ContentSource { message, bytes } in parts {
                if let Some(found) = places.get_mut(*message) {
                    let cut = place.cut.saturating_sub(bytes.start);
                    *found = Some(ContentPlace { bytes: at(bytes.start)..at(bytes.end), cut });
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
    let sent = conversation.sent;
    let placed = template.place(&conversation.turns, &conversation.listed, &conversation.documents.listed);
    let placed = placed.map_err(|error| ApiError::from(error).of("palimpsest"))?;
    let places = conversation.places(&placed);
    let ServedModel { limit, text, .. } = conversation.model;
    limit.check("messages", placed.text.len())?;
    let encoded = text.tokenizer.encode_with_offsets(&placed.text)?;
    let documents = placed.documents.iter().enumerate().map(|(i, place)| (sent.len() + i, place));
    let messages = places.iter().enumerate().filter_map(|(i, place)| Some((i, place.as_ref()?)));
    let mut order: Vec<(usize, &ContentPlace)> = messages.chain(documents).collect();
    order.sort_by_key(|(_, place)| place.bytes.start);
    let borders = Borders::new(&encoded, &placed.text);
    let mut tiles = Tiles { borders: &borders, at: 0, tiles: Vec::new() };
    let mut templates = 0;
    let mut between = |tiles: &mut Tiles<'_>, until: usize| {
        if until > tiles.at {
            tiles.push(format!("template[{templates}]"), until);
            templates += 1;
        }
    };
    for (i, place) in order {
        between(&mut tiles, place.bytes.start);
        let Some(one) = sent.get(i) else {
            tiles.push(conversation.documents.labels[i - sent.len()].clone(), place.bytes.end);
            continue;
        };
        let mut end = 0;
        let mut push = |part: &ContentPart, label: String| {
            end += part.text.len();
            // Templates may trim content.
            let byte = (place.bytes.start + end.saturating_sub(place.cut)).min(place.bytes.end);
            tiles.push(label, byte);
        };
        one.lead.iter().for_each(|part| push(part, part.span.clone().unwrap_or_default()));
        if !one.has_parts {
            tiles.push(format!("messages[{i}]"), place.bytes.end);
            continue;
        }
        for (j, part) in one.parts.iter().enumerate() {
            push(part, part.span.clone().unwrap_or_else(|| format!("messages[{i}].content[{j}]")));
        }
    }
    between(&mut tiles, placed.text.len());
    let Tiles { tiles, .. } = tiles;
    let overlay = |range: &RangeRequest| {
        let field = &range.field;
        let Some(message) = range.message else {
            let name = format!("{field}.message");
            return Err(ApiError::at(name, "is missing; say in which message the span lies"));
        };
        let Some(one) = sent.get(message) else {
            let reason = format!("is {message}; there are {} messages", sent.len());
            return Err(ApiError::at(format!("{field}.message"), reason));
        };
        let part = match (range.part, one.has_parts) {
            (Some(part), _) => part,
            (None, false) => 0,
            (None, true) => {
                let reason = format!("is missing; messages[{message}] has parts, so say which");
                return Err(ApiError::at(format!("{field}.part"), reason));
            }
        };
        let Some(text) = one.parts.get(part).map(|part| part.text.as_str()) else {
            let reason = format!("is {part}; messages[{message}] has {} parts", one.parts.len());
            return Err(ApiError::at(format!("{field}.part"), reason));
        };
        let bytes = bytes_of(text, range)?;
        let before: usize =
            one.lead.iter().chain(one.parts.iter().take(part)).map(|part| part.text.len()).sum();
        let Some(place) = places.get(message).and_then(Option::as_ref) else {
            let reason = format!("lies in messages[{message}], which has no content");
            return Err(ApiError::at(field, reason));
        };
        let shift = |byte: usize| place.bytes.start + (before + byte).saturating_sub(place.cut);
        let bytes = shift(bytes.start).min(place.bytes.end)..shift(bytes.end).min(place.bytes.end);
        overlay_of(range, &bytes, &borders)
    };
    let documents = conversation.documents.labels.clone();
    let overlays = overlays(&tiles, asked, overlay)?;
    Ok(TokenPrompt { tokens: encoded.ids, tiles, overlays, documents })
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
    let overlay = |range: &RangeRequest| {
        no_message(range, "characters")?;
        overlay_of(range, &bytes_of(text, range)?, &borders)
    };
    let tiles = vec![Span::new("prompt", 0..encoded.ids.len())];
    let overlays = overlays(&tiles, asked, overlay)?;
    Ok(TokenPrompt { tokens: encoded.ids, tiles, overlays, documents: Vec::new() })
}

/// A token prompt as one span `prompt`, with the token ranges in `asked`.
pub fn token_spans(tokens: Vec<u32>, asked: &AttentionRequest) -> Result<TokenPrompt, ApiError> {
    let n = tokens.len();
    let overlay = |range: &RangeRequest| {
        if asked.units == Units::Characters {
            let message = "a prompt of tokens has no characters; give the prompt as a text, set palimpsest.units to \"tokens\", or leave \
                           the spans out";
            return Err(ApiError::field(range.field.clone(), message));
        }
        no_message(range, "tokens")?;
        let RangeRequest { field, label, start, end, .. } = range;
        if *end > n {
            let message = format!("`{field}` is tokens {start} to {end} of a prompt of {n}");
            return Err(ApiError::field(format!("{field}.end"), message));
        }
        Ok(Span::new(label.clone(), *start..*end).as_overlay())
    };
    let tiles = vec![Span::new("prompt", 0..n)];
    let overlays = overlays(&tiles, asked, overlay)?;
    Ok(TokenPrompt { tokens, tiles, overlays, documents: Vec::new() })
}

fn only_characters(asked: &AttentionRequest) -> Result<(), ApiError> {
    match asked.units {
        Units::Characters => Ok(()),
        Units::Tokens => {
            let reason = "is \"tokens\" for a prompt of text; give the prompt as token ids to /v1/completions, or leave it out";
            Err(ApiError::at("palimpsest.units", reason))
        }
    }
}

/// Refuses ranges with a message or part, for prompts without messages.
fn no_message(range: &RangeRequest, units: &str) -> Result<(), ApiError> {
    if range.message.is_none() && range.part.is_none() {
        return Ok(());
    }
    let message = format!("a prompt has no messages; give start and end as {units} of the prompt");
    Err(ApiError::field(format!("{}.message", range.field), message))
}

struct Tiles<'b> {
    borders: &'b Borders,
    /// End of the last tile, in bytes.
    at: usize,
    tiles: Vec<Span>,
}

impl Tiles<'_> {
    fn push(&mut self, label: String, until: usize) {
        let until = until.max(self.at);
        self.tiles.push(Span::new(label, self.borders.tokens(&(self.at..until))));
        self.at = until;
    }
}

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

fn overlay_of(range: &RangeRequest, bytes: &Range<usize>, borders: &Borders) -> Result<Span, ApiError> {
    let tokens = borders.tokens(bytes);
    if bytes.is_empty() || tokens.is_empty() {
        let reason = "holds no token: its characters lie inside one whose first character that is no white space is elsewhere, or the \
                      chat template leaves them out; make it longer";
        return Err(ApiError::at(&range.field, reason));
    }
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
