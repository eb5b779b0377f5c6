//! The served model without weights: text side and shape.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use palimpsest_core::engine::{ConstraintError, GrammarVocabulary, ModelText, Thinker};
use palimpsest_core::model::{DecoderSpec, Formats};
use palimpsest_core::text::{
    BorderRule, ChatTemplate, ReasoningEffort, ThinkingMode, ThoughtReader, Thoughts, TokenBytes, ToolLayout,
};

use super::error::ApiError;

/// (decoder layer, head).
pub type Pairs = Arc<[(usize, usize)]>;

#[derive(Debug)]
pub struct ServedModel {
    pub text: ModelText,
    pub spec: DecoderSpec,
    pub formats: Formats,
    /// Unix time at startup.
    pub created: i64,
    pub limit: TextLimit,
    pub retrieval: Option<Pairs>,
    /// Built on first use, as the next two.
    vocabulary: OnceLock<Result<Arc<GrammarVocabulary>, ConstraintError>>,
    tools: OnceLock<Result<ToolLayout, ApiError>>,
    bytes: OnceLock<Vec<TokenBytes>>,
}

impl ServedModel {
    /// Texts above `longest_text` bytes are not tokenised.
    pub fn new(
        text: ModelText,
        spec: DecoderSpec,
        formats: Formats,
        retrieval: Option<Pairs>,
        longest_text: usize,
    ) -> Self {
        let limit =
            TextLimit { context: text.context, longest: text.tokenizer.longest(), bytes: longest_text };
        let created = jiff::Timestamp::now().as_second();
        let (vocabulary, tools, bytes) = Default::default();
        ServedModel { text, spec, formats, created, limit, retrieval, vocabulary, tools, bytes }
    }

    /// Vocabulary for grammar compilation, built once: about 100,000 tokens take some tenths of a second.
    pub fn vocabulary(&self) -> Result<Arc<GrammarVocabulary>, ConstraintError> {
        let ModelText { tokenizer, stop, .. } = &self.text;
        let make = || GrammarVocabulary::new(tokenizer, self.spec.vocab, stop).map(Arc::new);
        self.vocabulary.get_or_init(make).clone()
    }

    /// Layout of functions and calls; fails if the chat template cannot render them.
    pub fn tool_layout(&self) -> Result<ToolLayout, ApiError> {
        let layout =
            || ToolLayout::of(&self.text.template).map_err(|error| ApiError::from(error).of("tools"));
        self.tools.get_or_init(layout).clone()
    }

    pub fn name(&self) -> &str {
        &self.text.name
    }

    /// Entry of `/v1/models`: OpenAI's fields, and under `palimpsest` what clients need for attention requests.
    pub fn json(&self) -> Value {
        let layers = || self.spec.layers.iter().enumerate();
        let softmax: Vec<_> = layers().filter_map(|(i, layer)| Some((i, layer.attention()?))).collect();
        let of_softmax: Vec<usize> = softmax.iter().map(|(i, _)| *i).collect();
        let windows: Vec<Option<usize>> = softmax.iter().map(|(_, spec)| spec.window).collect();
        let of_delta: Vec<usize> = layers().filter(|(_, l)| l.linear().is_some()).map(|(i, _)| i).collect();
        json!({
            "id": self.name(), "object": "model", "created": self.created, "owned_by": "palimpsest",
            "palimpsest": {
                "version": env!("CARGO_PKG_VERSION"), "context": self.text.context,
                "dtype": self.formats.dtype.as_str(), "cache_dtype": self.formats.cache.as_str(),
                "attention": {
                    "layers": of_softmax, "heads": softmax.first().map_or(0, |(_, spec)| spec.heads), "windows": windows,
                    "borders": BorderRule::FirstCharacter
                },
                "delta_layers": of_delta, "dimensions": self.spec.hidden
            }
        })
    }

    /// Template and thoughts of the server, with thinking switched and effort set by the request. No thoughts if the template has none.
    pub fn voice(
        &self,
        thinking: Option<bool>,
        effort: Option<ReasoningEffort>,
    ) -> Result<(ChatTemplate, Option<Thoughts>), ApiError> {
        let ModelText { template, thoughts, .. } = &self.text;
        if thinking.is_none() && effort.is_none() {
            return Ok((template.clone(), *thoughts));
        }
        let on = thinking.unwrap_or(thoughts.is_some_and(|thoughts| thoughts.on));
        let mode = match (on, thoughts) {
            (true, _) => ThinkingMode::On,
            (false, None) => ThinkingMode::Auto,
            (false, Some(_)) => ThinkingMode::Off,
        };
        let field = if thinking.is_some() { "chat_template_kwargs" } else { "reasoning_effort" };
        template.with_thinking(mode, effort).map_err(|error| ApiError::from(error).of(field))
    }

    /// Thought parser with a limit of `most` tokens.
    pub fn thinker(&self, thoughts: Option<Thoughts>, most: usize) -> Option<Thinker> {
        let thoughts = thoughts.filter(|thoughts| thoughts.on)?;
        let reader = ThoughtReader::new(thoughts, Arc::clone(&self.text.tokenizer));
        Some(Thinker { reader, budget: self.text.max_thinking.min(most) })
    }

    /// Empty for unknown ids.
    pub fn token_bytes(&self, token: u32) -> &TokenBytes {
        static NONE: TokenBytes = TokenBytes { bytes: Vec::new(), special: false };
        let all = self.bytes.get_or_init(|| self.text.tokenizer.token_bytes());
        all.get(token as usize).unwrap_or(&NONE)
    }

    pub fn token_texts(&self, tokens: &[u32]) -> Vec<String> {
        let mut known: HashMap<u32, String> = HashMap::new();
        let text = |token: &u32| known.entry(*token).or_insert_with(|| self.token_text(*token)).clone();
        tokens.iter().map(text).collect()
    }

    /// Text of a token after other text; incomplete characters become U+FFFD.
    pub fn token_text(&self, token: u32) -> String {
        let tokenizer = &self.text.tokenizer;
        let decode = |tokens: &[u32]| tokenizer.decode(tokens, false).unwrap_or_default();
        // Anchored by a letter, since decoders may strip a leading space.
        let Ok(anchor) = tokenizer.encode("a") else { return decode(&[token]) };
        let with = decode(&[anchor.as_slice(), &[token]].concat());
        match with.strip_prefix(&decode(&anchor)) {
            Some(text) => text.to_owned(),
            None => decode(&[token]),
        }
    }
}

/// Refuses oversized texts by byte length, before tokenising.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimit {
    pub context: usize,
    /// Maximum bytes per token, if known.
    pub longest: Option<usize>,
    pub bytes: usize,
}

impl TextLimit {
    /// Refuses a text that must exceed the context or the tokenising memory.
    pub fn check(&self, field: &str, bytes: usize) -> Result<(), ApiError> {
        let TextLimit { context, longest, bytes: most } = *self;
        let message = match longest {
            Some(longest) if bytes.div_ceil(longest) > context => format!(
                "the text of `{field}` has {bytes} bytes, which are {} tokens at least, and the context holds {context}; shorten it, \
                 to {} bytes at the very most",
                bytes.div_ceil(longest),
                context.saturating_mul(longest).min(most)
            ),
            _ if bytes > most => format!(
                "the text of `{field}` has {bytes} bytes, and at most {most} are read at once; shorten it"
            ),
            _ => return Ok(()),
        };
        Err(ApiError::field(field, message).with_code("context_length_exceeded"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_refused_only_where_its_longest_tokens_are_too_many() {
        let limit = TextLimit { context: 10, longest: Some(7), bytes: usize::MAX };
        let unknown = TextLimit { longest: None, bytes: 1000, ..limit };
        assert!(limit.check("prompt", 70).is_ok() && unknown.check("prompt", 1000).is_ok());
        for (limit, bytes, said) in
            [(limit, 71, "has 71 bytes, which are 11 tokens"), (unknown, 1001, "at most 1000")]
        {
            let Err(error) = limit.check("prompt", bytes) else { panic!("{bytes} are too many") };
            assert!(error.param.as_deref() == Some("prompt") && error.message.contains(said), "{error:?}");
        }
    }
}
