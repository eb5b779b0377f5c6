//! From a prompt's text with byte ranges to its tokens with token ranges.
//!
//! The whole text is tokenised once: piece by piece, merges across the borders would differ from what the model sees in
//! real use.

use super::{Borders, CharSpan, Encoded, Prompt, SpecialTokens, TextError, Tokenizer};
use crate::span::{QUERY, Span};

/// A prompt's tokens with the spans that tile them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizedPrompt {
    /// Token ids of the whole prompt.
    pub tokens: Vec<u32>,
    /// In token order; every token belongs to exactly one, and none is empty.
    pub spans: Vec<Span>,
    /// Spans that lie over them.
    pub overlays: Vec<Span>,
}

impl Prompt {
    /// Tokenises the prompt. A token across a border belongs as [`Borders`] say.
    ///
    /// With the borders that the laboratory's builder of prompts chooses, decoding the tokens of `session[i]` gives that
    /// session's text back; where the tokeniser itself normalises (Qwen's composes accents, NFC), its normalised form. Segments end
    /// with line breaks and begin with none, which no token of a usual vocabulary holds together with a word behind them; of one
    /// that does, a segment's last token is its successor's.
    ///
    /// A span whose whole text went into its neighbours' tokens (a lone newline of a template, say) is left out; for the query,
    /// segments and overlays that is an error, since the analysis is about them.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<TokenizedPrompt, TextError> {
        let encoded = self.encode_text(tokenizer)?;
        let borders = Borders::new(&encoded, &self.text);
        let tokens_of = |span: &CharSpan| {
            let range = borders.tokens(&(span.start..span.end));
            let span = Span { role: span.role.clone(), ..Span::new(span.label.clone(), range) };
            if span.is_empty() { Err(TextError::EmptySpan { label: span.label }) } else { Ok(span) }
        };
        let mut spans = Vec::with_capacity(self.spans.len());
        for span in &self.spans {
            match tokens_of(span) {
                Ok(tokens) => spans.push(tokens),
                Err(empty) => {
                    let query = span.role.as_deref() == Some(QUERY);
                    if query || span.segment().is_some() {
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
}

impl Prompt {
    /// The tokens of the text; what segments and the query spell is plain text where it is to be.
    pub fn encode_text(&self, tokenizer: &Tokenizer) -> Result<Encoded, TextError> {
        let is_content = |span: &&CharSpan| span.segment().is_some() || span.role.as_deref() == Some(QUERY);
        match self.special_tokens {
            SpecialTokens::Control => tokenizer.encode_with_offsets(&self.text),
            SpecialTokens::Text => {
                let content = self.spans.iter().filter(is_content).map(|span| span.start..span.end);
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

    /// The tokens of a span; empty where the span is not of this prompt.
    pub fn tokens_of(&self, span: &Span) -> &[u32] {
        self.tokens.get(span.range()).unwrap_or_default()
    }
}
