//! Tokenises a prompt and converts byte spans to token spans. Tokenises the whole text: pieces would merge differently at borders.

use super::{Borders, Encoded, Prompt, SpecialTokens, TextError, Tokenizer};
use crate::span::{QUERY, Span};

/// Tokens and spans of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizedPrompt {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// In token order; non-empty, and every token belongs to exactly one.
    pub spans: Vec<Span>,
    /// Overlapping spans.
    pub overlays: Vec<Span>,
}

impl Prompt {
    /// Tokenises the prompt. [`Borders`] assigns tokens that cross a border.
    ///
    /// With the laboratory's prompt builder, decoding the tokens of `session[i]` returns that session's text, in the tokeniser's
    /// normalisation (Qwen: NFC). Segments end, but do not start, with line breaks; if a vocabulary joins a line break with a following
    /// word, the segment's last token belongs to its successor.
    ///
    /// A span without tokens of its own (such as a template's lone newline) is dropped; for query, segments and overlays that is an error.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<TokenizedPrompt, TextError> {
        let encoded = self.encode_text(tokenizer)?;
        let borders = Borders::new(&encoded, &self.text);
        let tokens_of = |span: &Span| {
            let tokens = borders.tokens(&span.range());
            let span = Span { start: tokens.start, end: tokens.end, ..span.clone() };
            if span.is_empty() { Err(TextError::EmptySpan { label: span.label }) } else { Ok(span) }
        };
        let mut spans = Vec::with_capacity(self.spans.len());
        for span in &self.spans {
            match tokens_of(span) {
                Ok(tokens) => spans.push(tokens),
                Err(empty) => {
                    if span.is(QUERY) || span.segment().is_some() {
                        return Err(empty);
                    }
                }
            }
        }
        let overlays = self.overlays.iter();
        let overlays =
            overlays.map(|span| Ok(tokens_of(span)?.as_overlay())).collect::<Result<_, TextError>>()?;
        Ok(TokenizedPrompt { tokens: encoded.ids, spans, overlays })
    }

    /// Tokenises the text; special tokens spelled by segments and query follow `special_tokens`.
    pub fn encode_text(&self, tokenizer: &Tokenizer) -> Result<Encoded, TextError> {
        let is_content = |span: &&Span| span.segment().is_some() || span.is(QUERY);
        match self.special_tokens {
            SpecialTokens::Control => tokenizer.encode_with_offsets(&self.text),
            SpecialTokens::Text => {
                let content = self.spans.iter().filter(is_content).map(Span::range);
                tokenizer.encode_content(&self.text, &content.collect::<Vec<_>>())
            }
        }
    }
}

impl TokenizedPrompt {
    /// The span with this label.
    pub fn span(&self, label: &str) -> Option<&Span> {
        self.spans.iter().chain(&self.overlays).find(|span| span.label == label)
    }

    /// Tokens of a span; empty if out of range.
    pub fn tokens_of(&self, span: &Span) -> &[u32] {
        self.tokens.get(span.range()).unwrap_or_default()
    }
}
