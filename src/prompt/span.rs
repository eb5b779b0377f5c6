//! Labelled half-open token ranges. The spans of a prompt tile it: every token belongs to exactly one.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A labelled half-open range of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// `bos`, `system`, `preamble`, `session[3]`, `query`, `template`, ...; the number is the session's original index.
    pub label: String,
    /// The part the span plays in the analysis, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<SpanRole>,
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
}

/// The part that a span plays in the analysis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanRole {
    /// The session that was overwritten.
    Old,
    /// The session that overwrites it.
    New,
    /// The question.
    Query,
}

impl Span {
    /// A span with a label and a range, without a role.
    pub fn new(label: impl Into<String>, range: Range<usize>) -> Self {
        Span { label: label.into(), role: None, start: range.start, end: range.end }
    }

    /// The same span in a role.
    #[must_use]
    pub fn with_role(mut self, role: SpanRole) -> Self {
        self.role = Some(role);
        self
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether the span holds no token.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The token range.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The original session index of a `session[i]` span.
    pub fn session(&self) -> Option<usize> {
        self.label.strip_prefix("session[")?.strip_suffix(']')?.parse().ok()
    }
}
