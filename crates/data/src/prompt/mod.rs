//! A case and a probe become the text that a model reads, with labelled spans.
//!
//! Owns the prompts' wording ([`Templates`]), the bookkeeping of spans ([`PromptBuilder`]) and the encodings that hosted models are
//! counted in ([`BytePairEncoding`]). It touches no tensors, and it never sees a case's judge-only fields:
//! [`PromptBuilder::build`] takes the history, the evidence's positions and the probe, which is all that a model under test may be
//! shown.

mod bpe;
mod build;
mod error;
mod templates;

pub use bpe::{BytePairEncoding, ENCODINGS};
pub use build::{BORDER_TOKENS, PromptBuilder, contents};
pub use error::PromptError;
pub use templates::{JUDGE_FILE, SegmentNumbers, Templates};
