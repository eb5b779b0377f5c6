//! Tokenises a user's text or conversation with named spans. Every span is validated: its text must occur exactly once, or its character
//! range must exist.

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Context, bail, ensure};
use palimpsest_core::engine::{ModelText, RESERVED, TextSide};
use palimpsest_core::span::Span;
use palimpsest_core::text::{
    Borders, ChatTemplate, ChatTurn, Encoded, Placed, Speaker, ThinkingMode, Tokenizer,
};
use palimpsest_data::ground::words::occurrences;
use serde::Deserialize;
use serde_json::{Map, Value};

const QUOTED: usize = 60;

/// A model's tokeniser and templates; the model need not be open.
#[derive(Clone, Copy)]
pub struct TextTools<'a> {
    pub tokenizer: &'a Tokenizer,
    pub template: &'a ChatTemplate,
    pub stop: &'a [u32],
}

impl<'a> From<&'a TextSide> for TextTools<'a> {
    fn from(side: &'a TextSide) -> Self {
        TextTools { tokenizer: &side.tokenizer, template: &side.template, stop: &side.stop }
    }
}

impl<'a> From<&'a ModelText> for TextTools<'a> {
    fn from(text: &'a ModelText) -> Self {
        TextTools { tokenizer: &text.tokenizer, template: &text.template, stop: &text.stop }
    }
}

pub enum Source {
    Text(String),
    /// Rendered with the model's chat template.
    Messages(Vec<(Speaker, Content)>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SentMessage {
    role: String,
    content: Content,
}

/// Content of a message in the server's format: a string, or parts with optional names.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: String,
    #[serde(default)]
    span: Option<String>,
}

impl Content {
    fn text(&self) -> String {
        match self {
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => parts.iter().map(|part| part.text.as_str()).collect(),
        }
    }
}

impl Source {
    pub fn messages(value: Value) -> anyhow::Result<Self> {
        let Value::Array(list) = value else {
            bail!("the messages are no JSON list; give [{{\"role\": \"user\", \"content\": \"...\"}}, ...]");
        };
        ensure!(!list.is_empty(), "there is no message; give at least one");
        let message = |(i, value): (usize, Value)| -> anyhow::Result<(Speaker, Content)> {
            let wrong = || {
                format!(
                    "messages[{i}] is no message: it has a `role` and a `content`, a text or a list of {{\"type\": \"text\", \"text\", \"span\"}}"
                )
            };
            let SentMessage { role, content } = serde_json::from_value(value).with_context(wrong)?;
            let speaker = match role.as_str() {
                "system" | "developer" => Speaker::System,
                "user" => Speaker::User,
                "assistant" => Speaker::Assistant,
                other => bail!(
                    "messages[{i}].role is `{other}`; `trace` takes system, user and assistant (`serve` takes tools)"
                ),
            };
            if let Content::Parts(parts) = &content
                && let Some(part) = parts.iter().find(|part| part.kind != "text")
            {
                bail!("messages[{i}] has a part of type `{}`; the model reads `text` alone", part.kind);
            }
            Ok((speaker, content))
        };
        Ok(Source::Messages(list.into_iter().enumerate().map(message).collect::<Result<_, _>>()?))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSpan {
    label: String,
    place: SpanPlace,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SpanPlace {
    Text(String),
    /// Character range of the text, or of the only message.
    Characters(Range<usize>),
    InMessage(usize, Range<usize>),
}

impl NamedSpan {
    /// Parses `LABEL=TEXT`, `LABEL=START..END` or `LABEL=MESSAGE:START..END`.
    pub fn parse(given: &str) -> anyhow::Result<Self> {
        let Some((label, place)) = given.split_once('=') else {
            bail!("`{given}` names no span; write LABEL=TEXT or LABEL=START..END");
        };
        let number = |text: &str| text.parse::<usize>().ok();
        let range = |text: &str| {
            let (start, end) = text.split_once("..")?;
            Some(number(start)?..number(end)?)
        };
        let in_message = || {
            let (message, characters) = place.split_once(':')?;
            Some(SpanPlace::InMessage(number(message)?, range(characters)?))
        };
        let place = range(place).map(SpanPlace::Characters).or_else(in_message);
        let text = || SpanPlace::Text(given.get(label.len() + 1..).unwrap_or_default().to_owned());
        Ok(NamedSpan { label: label.to_owned(), place: place.unwrap_or_else(text) })
    }

    /// Parses `{label: text, [start, end] or [message, start, end]}`.
    pub fn from_json(spans: Map<String, Value>) -> anyhow::Result<Vec<Self>> {
        let span = |(label, value): (String, Value)| {
            let place = match &value {
                Value::String(text) => SpanPlace::Text(text.clone()),
                value => match serde_json::from_value::<Vec<usize>>(value.clone()).as_deref() {
                    Ok(&[start, end]) => SpanPlace::Characters(start..end),
                    Ok(&[message, start, end]) => SpanPlace::InMessage(message, start..end),
                    _ => bail!(
                        "span `{label}` is {value}; give its text, or [start, end] in characters ([message, start, end] of a conversation)"
                    ),
                },
            };
            Ok(NamedSpan { label, place })
        };
        spans.into_iter().map(span).collect()
    }
}

#[derive(Debug)]
pub struct NamedPrompt {
    pub text: String,
    pub encoded: Encoded,
    /// The user's spans; by default the messages (none for a text).
    pub keys: Vec<Span>,
    /// `keys` and all other named spans: messages and their parts.
    pub names: Vec<Span>,
}

struct Searched {
    content: String,
    /// Byte range in the prompt.
    bytes: Range<usize>,
    /// Bytes of leading white space that the template strips.
    cut: usize,
}

impl Searched {
    /// Maps content bytes to prompt bytes.
    fn place(&self, bytes: &Range<usize>) -> Range<usize> {
        let at = |byte: usize| (self.bytes.start + byte.saturating_sub(self.cut)).min(self.bytes.end);
        at(bytes.start)..at(bytes.end)
    }

    fn characters_before(&self, byte: usize) -> usize {
        self.content.get(..byte).unwrap_or_default().chars().count()
    }
}

/// Tokenises `source` with the spans `named`. `place` is the file or job, for errors.
pub fn prompt(
    source: &Source,
    named: &[NamedSpan],
    side: TextTools<'_>,
    place: &str,
) -> anyhow::Result<NamedPrompt> {
    let mut parts: Vec<(String, usize, Range<usize>)> = Vec::new();
    let mut user_named: Vec<&str> = Vec::new();
    let (text, searched) = match source {
        Source::Text(text) => {
            let whole = Searched { content: text.clone(), bytes: 0..text.len(), cut: 0 };
            (text.clone(), vec![whole])
        }
        Source::Messages(messages) => {
            let turns: Vec<ChatTurn> =
                messages.iter().map(|(speaker, content)| ChatTurn::new(*speaker, content.text())).collect();
            let (template, _) = side.template.with_thinking(ThinkingMode::Auto, None)?;
            let Placed { text, contents, .. } = template.place(&turns, &[], &[])?;
            for (i, (turn, (_, content))) in turns.iter().zip(messages).enumerate() {
                parts.push((format!("messages[{i}]"), i, 0..turn.content.len()));
                let Content::Parts(own) = content else { continue };
                let mut at = 0;
                for (j, part) in own.iter().enumerate() {
                    user_named.extend(part.span.as_deref());
                    let label = part.span.clone().unwrap_or_else(|| format!("messages[{i}].content[{j}]"));
                    parts.push((label, i, at..at + part.text.len()));
                    at += part.text.len();
                }
            }
            let searched = turns.into_iter().zip(contents).map(|(turn, place)| Searched {
                content: turn.content,
                bytes: place.bytes,
                cut: place.cut,
            });
            (text, searched.collect())
        }
    };
    let encoded = side.tokenizer.encode_with_offsets(&text)?;
    let borders = Borders::new(&encoded, &text);
    let tokens = |label: &str, bytes: &Range<usize>| Span::new(label, borders.tokens(bytes));
    let of_part = |(label, i, bytes): &(String, usize, Range<usize>)| {
        let place = searched.get(*i).map(|message| message.place(bytes)).unwrap_or_default();
        tokens(label, &place)
    };
    let mut names: Vec<Span> = parts.iter().map(of_part).filter(|span| !span.is_empty()).collect();
    let of_user = |span: &&Span| user_named.contains(&span.label.as_str());
    let mut keys: Vec<Span> = names.iter().filter(of_user).cloned().collect();
    for span in named {
        let NamedSpan { label, .. } = span;
        ensure!(!label.is_empty(), "{place}: a span has no name; write LABEL=TEXT or LABEL=START..END");
        let found = tokens(label, &find(span, &searched, place)?);
        ensure!(
            !found.is_empty(),
            "{place}: span `{label}` holds no token: its characters lie inside one whose first character that is no white space is elsewhere, or the chat template leaves them out; make it longer"
        );
        keys.push(found.clone());
        names.push(found);
    }
    let mut seen = BTreeSet::new();
    for label in parts.iter().map(|(label, ..)| label).chain(named.iter().map(|span| &span.label)) {
        ensure!(seen.insert(label), "{place}: two spans are called `{label}`; give each a name of its own");
        ensure!(
            !RESERVED.contains(&label.as_str()),
            "{place}: a span is called `{label}`, which names a row of `trace`; call it something else"
        );
    }
    if keys.is_empty() && matches!(source, Source::Messages(_)) {
        keys = names.iter().filter(|span| !span.label.contains("].")).cloned().collect();
    }
    Ok(NamedPrompt { text, encoded, keys, names })
}

fn find(span: &NamedSpan, searched: &[Searched], place: &str) -> anyhow::Result<Range<usize>> {
    let label = &span.label;
    let (message, range) = match &span.place {
        SpanPlace::Text(text) => return find_text(label, text, searched, place),
        SpanPlace::InMessage(message, range) => (*message, range),
        SpanPlace::Characters(range) => match searched {
            [_] => (0, range),
            _ => bail!(
                "{place}: span `{label}` is characters {}..{} of {} messages; say of which one, as {label}=MESSAGE:{}..{}",
                range.start,
                range.end,
                searched.len(),
                range.start,
                range.end
            ),
        },
    };
    let Some(of) = searched.get(message) else {
        bail!(
            "{place}: span `{label}` lies in message {message}, and there are {}, counted from 0",
            searched.len()
        );
    };
    let at = |character: usize| {
        of.content.char_indices().map(|(at, _)| at).chain([of.content.len()]).nth(character)
    };
    match (at(range.start), at(range.end)) {
        (Some(start), Some(end)) if start < end => Ok(of.place(&(start..end))),
        _ => bail!(
            "{place}: span `{label}` is characters {}..{}, and the text has {}; give START..END with START before END, both within it",
            range.start,
            range.end,
            of.content.chars().count()
        ),
    }
}

fn find_text(label: &str, text: &str, searched: &[Searched], place: &str) -> anyhow::Result<Range<usize>> {
    ensure!(
        !text.is_empty(),
        "{place}: span `{label}` names no text; write {label}=TEXT or {label}=START..END"
    );
    let places = searched.iter().enumerate();
    let found: Vec<(usize, usize)> = (places)
        .flat_map(|(i, of)| occurrences(&of.content, text).into_iter().map(move |at| (i, at)))
        .collect();
    let of = |(i, at): (usize, usize)| searched.get(i).map(|of| (of, at));
    let range = |(i, at): (usize, usize)| {
        let start = of((i, at)).map_or(0, |(of, at)| of.characters_before(at));
        let end = start + text.chars().count();
        if searched.len() > 1 { format!("{i}:{start}..{end}") } else { format!("{start}..{end}") }
    };
    let quoted: String = match text.chars().count() > QUOTED {
        true => text.chars().take(QUOTED).chain("...".chars()).collect(),
        false => text.to_owned(),
    };
    match *found.as_slice() {
        [one] => of(one)
            .map(|(of, at)| of.place(&(at..at + text.len())))
            .context("This is a bug: a place that was found is gone"),
        [] => bail!(
            "{place}: span `{label}`: its text {quoted:?} occurs 0 times; capitals, spaces and line breaks count: copy it from there, or give its characters as {label}=START..END"
        ),
        [first, ..] => bail!(
            "{place}: span `{label}`: its text {quoted:?} occurs {} times, at {}; give more of the text around the one that is meant, or its characters as {label}={}",
            found.len(),
            found.iter().take(4).map(|one| range(*one)).collect::<Vec<_>>().join(", "),
            range(first)
        ),
    }
}
