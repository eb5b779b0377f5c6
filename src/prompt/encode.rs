//! From a prompt's text with byte ranges to its tokens with token ranges.
//!
//! The whole text is tokenised once: piece by piece, merges across the borders would differ from what the model sees in
//! real use.

use super::{Prompt, PromptError, Span, SpanRole, Tokenizer};

/// A prompt's tokens with the spans that tile them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizedPrompt {
    /// Token ids of the whole prompt.
    pub tokens: Vec<u32>,
    /// In token order; every token belongs to exactly one, and none is empty.
    pub spans: Vec<Span>,
}

impl Prompt {
    /// Tokenises the prompt. A token across a border belongs to the span that its first byte is in.
    ///
    /// With the borders that [`PromptBuilder`](super::PromptBuilder) chooses, decoding the tokens of `session[i]` gives that
    /// session's text back; where the tokeniser itself normalises (Qwen's composes accents, NFC), its normalised form.
    ///
    /// A span whose whole text went into its predecessor's last token (a lone newline of a template, say) is left out; for
    /// `query` and `session[i]` that is an error, since the analysis is about them.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<TokenizedPrompt, PromptError> {
        let encoded = tokenizer.encode_with_offsets(&self.text)?;
        let mut spans = Vec::with_capacity(self.spans.len());
        let mut first = 0;
        for (place, span) in self.spans.iter().enumerate() {
            // Starts never decrease, so the tokens of a span are those between two borders.
            let end = if place + 1 == self.spans.len() {
                encoded.ids.len()
            } else {
                encoded.offsets.partition_point(|&(start, _)| start < span.end)
            };
            let mut tokens = Span::new(span.label.clone(), first..end);
            tokens.role = span.role;
            if !tokens.is_empty() {
                spans.push(tokens);
            } else if span.role == Some(SpanRole::Query) || tokens.session().is_some() {
                return Err(PromptError::EmptySpan { label: span.label.clone() });
            }
            first = end;
        }
        Ok(TokenizedPrompt { tokens: encoded.ids, spans })
    }
}

impl TokenizedPrompt {
    /// The span with this label.
    pub fn span(&self, label: &str) -> Option<&Span> {
        self.spans.iter().find(|span| span.label == label)
    }

    /// The tokens of a span; empty where the span is not of this prompt.
    pub fn tokens_of(&self, span: &Span) -> &[u32] {
        self.tokens.get(span.range()).unwrap_or_default()
    }
}
