//! A model's input text with labelled byte ranges.

use std::ops::Range;

use super::{Message, MessageRole, SpecialTokens};
use crate::span::Span;

/// A probe on a history.
///
/// The spans tile the text in order, are non-empty and have unique labels: `bos`, `system`, `preamble` (before the history), segments by
/// kind and original index such as `session[3]` (header and trailing white space included), `instructions[0]`, `query`, `instructions[1]`
/// (rest of the user message), and `template[0]`, `template[1]`, ... (text of the chat template, ending with the generation prompt).
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// Rendered text, with the generation prompt.
    pub text: String,
    /// Byte ranges, on character borders, that tile the text.
    pub spans: Vec<Span>,
    /// Overlapping spans: evidence below segment level, such as `session[3].turn[1]` or `session[3].turn[1][5..20]` (bytes of the turn's
    /// content), and the case's stretches.
    pub overlays: Vec<Span>,
    /// Treatment of special tokens spelled by segments and query.
    pub special_tokens: SpecialTokens,
    /// The same as messages, for endpoints that apply a template themselves.
    pub messages: Vec<Message>,
}

impl Prompt {
    /// Removes these bytes as far as they lie in the history, rounded to whole characters. Spans shrink; emptied spans are dropped.
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
        // The history is part of the user message, whose parts are in the same order in the text.
        let of_template = |span: &&Span| {
            ["bos", "system"].contains(&span.label.as_str()) || span.label.starts_with("template[")
        };
        let user = self.spans.iter().find(|span| !of_template(span)).map_or(0, |span| span.start);
        let messages = self.messages.iter().map(|message| match message.role {
            MessageRole::User => Message { content: drained(&message.content, user), ..message.clone() },
            _ => message.clone(),
        });
        let moved = |at: usize| if at <= cut.start { at } else { at.max(cut.end) - cut.len() };
        let left = |spans: &[Span]| {
            let spans = spans.iter().map(|span| Span {
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
