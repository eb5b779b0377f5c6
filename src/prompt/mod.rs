//! A case and a probe become chat-template text with labelled spans, and then tokens with labelled spans.
//!
//! Owns the prompts' wording ([`Templates`]), the model's chat template ([`ChatTemplate`]), the tokeniser
//! ([`Tokenizer`]), the encodings that hosted models are counted in ([`BytePairEncoding`]) and the exact bookkeeping between them ([`PromptBuilder`], [`Prompt`], [`TokenizedPrompt`]). Called
//! by the runner, by truncation (for token costs) and by the local engine (to render and decode conversations). It
//! must not touch tensors, and it never sees a case's judge-only fields: [`PromptBuilder::build`] takes the history, the
//! evidence's positions and the probe, which is all that a model under test may be shown.

mod borders;
mod bpe;
mod build;
mod chat_template;
mod count;
mod encode;
mod error;
mod gguf_tokenizer;
mod longest;
mod message;
mod numbers;
mod placed;
pub(crate) mod sandbox;
mod span;
mod special_tokens;
mod stream;
mod templates;
mod thinking;
mod thoughts;
mod token_bytes;
mod tokenizer;
mod tools;

pub use borders::{BorderRule, Borders};
pub use bpe::{BytePairEncoding, ENCODINGS};
pub use build::{BORDER_TOKENS, CharSpan, Prompt, PromptBuilder};
pub use chat_template::{ChatTemplate, DEFAULT_DATE};
pub use count::{CharsPerToken, CountTokens};
pub use encode::TokenizedPrompt;
pub use error::PromptError;
pub use gguf_tokenizer::{GgufTokenizer, KNOWN_PRE_TOKENIZERS};
pub use message::{Message, MessageRole};
pub use numbers::SegmentNumbers;
pub use placed::{ContentPlace, Placed};
pub use span::{NO_SEGMENTS, Span};
pub use special_tokens::{SpecialTokens, contents, known_special_tokens};
pub use stream::StreamDecoder;
pub use templates::{JUDGE_FILE, Templates};
pub use thoughts::{
    Place, ReasoningEffort, Split, Thinking, ThinkingMode, ThoughtFormat, ThoughtReader, Thoughts,
};
pub use token_bytes::TokenBytes;
pub use tokenizer::{Encoded, Tokenizer};
pub use tools::{
    Arguments, CallLayout, CallPiece, CallReader, ChatTurn, Composed, Ending, Part, Read, Speaker, Tool,
    ToolCall, ToolLayout, call_grammar, compose,
};
