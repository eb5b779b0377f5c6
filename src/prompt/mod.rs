//! A case and a probe become chat-template text with labelled spans, and then tokens with labelled spans.
//!
//! Owns the prompts' wording ([`Templates`]), the model's chat template ([`ChatTemplate`]), the tokeniser
//! ([`Tokenizer`]) and the exact bookkeeping between them ([`PromptBuilder`], [`Prompt`], [`TokenizedPrompt`]). Called
//! by the runner, by truncation (for token costs) and by the local engine (to render and decode conversations). It
//! must not touch tensors, and it never sees a case's judge-only fields: [`PromptBuilder::build`] takes the history, the
//! evidence's positions and the probe, which is all that a model under test may be shown.

mod build;
mod chat_template;
mod encode;
mod error;
mod gguf_tokenizer;
mod message;
mod sandbox;
mod span;
mod special_tokens;
mod stream;
mod templates;
mod thinking;
mod thoughts;
mod tokenizer;

pub use build::{CharSpan, Prompt, PromptBuilder};
pub use chat_template::{ChatTemplate, DEFAULT_DATE};
pub use encode::TokenizedPrompt;
pub use error::PromptError;
pub use gguf_tokenizer::{GgufTokenizer, KNOWN_PRE_TOKENIZERS};
pub use message::{Message, MessageRole};
pub use span::{NO_SEGMENTS, Span};
pub use special_tokens::{SpecialTokens, contents, known_special_tokens};
pub use stream::StreamDecoder;
pub use templates::Templates;
pub use thoughts::{
    Place, ReasoningEffort, Split, Thinking, ThinkingMode, ThoughtFormat, ThoughtReader, Thoughts,
};
pub use tokenizer::{Encoded, Tokenizer};
