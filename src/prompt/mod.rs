//! A case and a probe become chat-template text with labelled spans, and then tokens with labelled spans.

mod span;

pub use span::{Span, SpanRole};
