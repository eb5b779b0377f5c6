//! The text that a model reads, with labelled byte ranges of its parts.

use std::ops::Range;

use super::{Message, MessageRole, SpecialTokens};
use crate::span::Span;

/// A labelled half-open byte range of a prompt's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CharSpan {
    /// As [`Span::label`](crate::span::Span::label).
    pub label: String,
    /// The part the span plays in the analysis, if any.
    pub role: Option<String>,
    /// First byte; on a character border.
    pub start: usize,
    /// One past the last byte; on a character border.
    pub end: usize,
}

impl CharSpan {
    /// The original index of a segment's span; `None` for all others. Of what tiles a prompt.
    pub fn segment(&self) -> Option<usize> {
        Span::new(self.label.clone(), 0..0).segment()
    }
}

/// A probe on a history, ready for a model.
///
/// The spans tile the text, in text order, and none is empty: `bos` (where the text begins with that token), `system`,
/// `preamble` (before the history), the segments, by their kind and original index, as `session[3]` (its header and the white
/// space that follows it included), `instructions[0]`, `query`, `instructions[1]` (what else the user message holds), and
/// `template[0]`, `template[1]`, ... (the chat template's own text, ending with the generation prompt). Labels are unique.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// The model's input: the chat template's text with the generation prompt.
    pub text: String,
    /// The spans that tile it.
    pub spans: Vec<CharSpan>,
    /// Spans over these: evidence that is no whole segment, as `session[3].turn[1]` or `session[3].turn[1][5..20]` (bytes of
    /// the turn's content), and the case's stretches.
    pub overlays: Vec<CharSpan>,
    /// The reading of text in segments and query that spells a special token.
    pub special_tokens: SpecialTokens,
    /// The same as messages, for endpoints, which apply a template themselves.
    pub messages: Vec<Message>,
}

impl Prompt {
    /// The same with these bytes of the text cut out, as far as they are of the history; of a character all or nothing goes. Spans keep
    /// what is left of them, and those of which nothing is left are gone.
    #[must_use]
    pub fn without(&self, bytes: Range<usize>) -> Prompt {
        let segments = || self.spans.iter().filter(|span| span.segment().is_some());
        let history =
            segments().map(|s| s.start).min().unwrap_or(0)..segments().map(|s| s.end).max().unwrap_or(0);
        let mut cut = bytes.start.max(history.start)..bytes.end.min(history.end);
        while !self.text.is_char_boundary(cut.start) {
            cut.start -= 1;
        }
        while !self.text.is_char_boundary(cut.end) {
            cut.end += 1;
        }
        if cut.is_empty() {
            return self.clone();
        }
        let drained = |text: &str, from: usize| {
            let (before, after) = (text.get(..cut.start - from), text.get(cut.end - from..));
            format!("{}{}", before.unwrap_or_default(), after.unwrap_or_default())
        };
        // The history is of the user message, whose parts stand in the text one after the other as they do in the message.
        let of_template = |span: &&CharSpan| {
            ["bos", "system"].contains(&span.label.as_str()) || span.label.starts_with("template[")
        };
        let user = self.spans.iter().find(|span| !of_template(span)).map_or(0, |span| span.start);
        let messages = self.messages.iter().map(|message| match message.role {
            MessageRole::User => Message { content: drained(&message.content, user), ..message.clone() },
            _ => message.clone(),
        });
        let moved = |at: usize| if at <= cut.start { at } else { at.max(cut.end) - cut.len() };
        let left = |spans: &[CharSpan]| {
            let spans = spans.iter().map(|span| CharSpan {
                start: moved(span.start),
                end: moved(span.end),
                ..span.clone()
            });
            spans.filter(|span| span.start < span.end).collect()
        };
        Prompt {
            text: drained(&self.text, 0),
            spans: left(&self.spans),
            overlays: left(&self.overlays),
            special_tokens: self.special_tokens,
            messages: messages.collect(),
        }
    }
}
