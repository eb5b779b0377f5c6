//! A prompt for Python: text, tokens and named spans.

use palimpsest::observe::{NamedPrompt, NamedSpan, Source, TextTools, prompt};
use palimpsest_core::span::Span;
use pyo3::prelude::*;
use serde_json::{Map, Value};

/// Prefix of prompt errors.
pub const PLACE: &str = "prompt";

/// Tokens with named spans.
#[pyclass(module = "palimpsest._native", frozen)]
pub struct Prompt {
    pub named: NamedPrompt,
    /// Character range of each token.
    characters: Vec<(usize, usize)>,
    /// SHA-256 of the model's weights and tokenizer.
    pub digest: String,
}

/// Label, first token, one past the last.
type NamedRange = (String, usize, usize);

fn ranges(spans: &[Span]) -> Vec<NamedRange> {
    spans.iter().map(|span| (span.label.clone(), span.start, span.end)).collect()
}

impl Prompt {
    /// `source`: JSON text or list of messages; `spans`: JSON object. Fails if a span is invalid or rendering does.
    pub fn new(source: &str, spans: &str, tools: TextTools<'_>, digest: String) -> anyhow::Result<Self> {
        let source = match serde_json::from_str::<Value>(source)? {
            Value::String(text) => Source::Text(text),
            messages => Source::messages(messages)?,
        };
        let spans: Map<String, Value> = serde_json::from_str(spans)?;
        let named = prompt(&source, &NamedSpan::from_json(spans)?, tools, PLACE)?;
        // Byte offset to character index.
        let mut numbers = vec![0; named.text.len() + 1];
        let mut count = 0;
        for (at, _) in named.text.char_indices() {
            numbers[at] = count;
            count += 1;
        }
        numbers[named.text.len()] = count;
        let character = |byte: usize| numbers.get(byte).copied().unwrap_or(count);
        let offsets = &named.encoded.offsets;
        let characters = offsets.iter().map(|&(start, end)| (character(start), character(end))).collect();
        Ok(Prompt { named, characters, digest })
    }
}

#[pymethods]
impl Prompt {
    /// The model's input as text.
    #[getter]
    fn text(&self) -> &str {
        &self.named.text
    }

    /// Token ids.
    #[getter]
    fn tokens(&self) -> Vec<u32> {
        self.named.encoded.ids.clone()
    }

    /// Of each token the characters of the text that it covers, half-open.
    #[getter]
    fn characters(&self) -> Vec<(usize, usize)> {
        self.characters.clone()
    }

    /// The spans that attention is summed over: label, first token, one past the last.
    #[getter]
    fn spans(&self) -> Vec<NamedRange> {
        ranges(&self.named.keys)
    }

    /// The spans that rows and knock-outs may name.
    #[getter]
    fn names(&self) -> Vec<NamedRange> {
        ranges(&self.named.names)
    }
}
