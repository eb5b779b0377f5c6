//! Labelled half-open token ranges. The spans of a prompt tile it: every token belongs to exactly one. Overlays lie over them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The role of the span that asks: the rows whose attention is measured first of all.
pub const QUERY: &str = "query";

/// The label of the span that begins the answer behind the generation prompt.
pub const PREFIX: &str = "prefix";

/// Labels of numbered spans that are no segments.
pub const NO_SEGMENTS: [&str; 2] = ["instructions", "template"];

/// A labelled half-open range of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// `bos`, `system`, `preamble`, `session[3]`, `query`, `template[0]`, `prefix`, ...; a segment's number is its original index.
    pub label: String,
    /// The part the span plays in the analysis, if any: one word, such as `query`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// It lies over the spans that tile the prompt instead of being one of them: a turn, a fact inside a turn, a stretch
    /// of several segments. Overlays are left out of sums over a prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlay: bool,
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
}

impl Span {
    /// A span with a label and a range, without a role.
    pub fn new(label: impl Into<String>, range: Range<usize>) -> Self {
        Span { label: label.into(), role: None, overlay: false, start: range.start, end: range.end }
    }

    /// The same span in a role.
    #[must_use]
    pub fn with_role(mut self, role: impl Into<String>) -> Self {
        self.role = Some(role.into());
        self
    }

    /// The same span as an overlay.
    #[must_use]
    pub fn as_overlay(mut self) -> Self {
        self.overlay = true;
        self
    }

    /// True if it has this role.
    pub fn is(&self, role: &str) -> bool {
        self.role.as_deref() == Some(role)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True if the span holds no token.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The token range.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// The original index of a segment's span; `None` for all others.
    pub fn segment(&self) -> Option<usize> {
        let (kind, number) = self.label.split_once('[')?;
        let index = number.strip_suffix(']')?.parse().ok()?;
        (!self.overlay && !NO_SEGMENTS.contains(&kind)).then_some(index)
    }
}

/// The ascending borders of the segments that spans are made of.
pub(crate) fn borders(spans: &[Span]) -> Vec<usize> {
    let mut borders: Vec<usize> = spans.iter().flat_map(|span| [span.start, span.end]).collect();
    borders.sort_unstable();
    borders.dedup();
    borders
}
