//! Renders a case and a probe to the model's text with labelled spans. No tensors.
//! [`PromptBuilder::build`] takes only model-visible data, never judge-only fields.

mod bpe;
mod build;
mod error;
mod templates;

pub use bpe::{BytePairEncoding, ENCODINGS};
pub use build::{BORDER_TOKENS, PromptBuilder, contents};
pub use error::PromptError;
pub use templates::{JUDGE_FILE, SegmentNumbers, Templates};
