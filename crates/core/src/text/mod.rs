//! Text to tokens and back: tokenisers, chat templates, tool calls and thoughts, with exact spans.
//!
//! [`ChatTemplate`] renders a conversation, its parts are located in the text, [`Tokenizer`] tokenises the whole text at once, and
//! [`Borders`] converts byte ranges to token ranges. Touches no tensors.

mod borders;
mod bounds;
mod chat_template;
mod count;
mod encode;
mod error;
mod gguf_tokenizer;
mod jinja;
mod longest;
mod message;
mod placed;
mod prompt;
mod python_json;
mod rewrite;
pub mod sandbox;
mod sentences;
mod special_tokens;
mod stream;
mod thinking;
mod thoughts;
mod token_bytes;
mod tokenizer;
mod tokenizer_limits;
mod tools;

pub use borders::{BorderRule, Borders};
pub use chat_template::{ChatTemplate, DEFAULT_DATE, FOLD_SEPARATOR};
pub use count::{CharsPerToken, CountTokens};
pub use encode::TokenizedPrompt;
pub use error::TextError;
pub use gguf_tokenizer::{GgufTokenizer, known_pre_tokenizers};
pub use message::{Document, Message, MessageRole};
pub use placed::{ContentPlace, Placed};
pub use prompt::Prompt;
pub use sentences::Sentence;
pub use special_tokens::{SpecialTokens, known_special_tokens};
pub use stream::{StreamDecoder, TextPiece};
pub use thoughts::{
    ReasoningEffort, ReplyPhase, Split, Thinking, ThinkingMode, ThoughtFormat, ThoughtReader, Thoughts,
};
pub use token_bytes::TokenBytes;
pub use tokenizer::{Encoded, Tokenizer, check_runs};
pub use tools::{
    Arguments, CallGrammarError, CallLayout, CallPiece, CallReader, ChatTurn, Composed, ContentSource,
    Ending, Read, Speaker, Tool, ToolCall, ToolLayout, call_grammar, compose,
};
