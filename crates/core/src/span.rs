//! Labelled half-open token ranges. A prompt's spans tile it; overlays may overlap them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Role of the question's span, whose rows are measured by default.
pub const QUERY: &str = "query";

/// Label of the answer prefix after the generation prompt.
pub const PREFIX: &str = "prefix";

/// Labels of numbered spans that are not segments.
pub const NO_SEGMENTS: [&str; 2] = ["instructions", "template"];

/// A labelled half-open range of tokens, or of bytes of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// `bos`, `system`, `preamble`, `session[3]`, `query`, `template[0]`, `prefix`, ...; segments are numbered by original index.
    pub label: String,
    /// Role in the analysis, if any, such as `query`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// True for a span over the tiling ones: a turn, a fact in a turn, a stretch of segments. Overlays are excluded from sums over a
    /// prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlay: bool,
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
}

impl Span {
    /// A span without a role.
    pub fn new(label: impl Into<String>, range: Range<usize>) -> Self {
        Span { label: label.into(), role: None, overlay: false, start: range.start, end: range.end }
    }

    /// Sets the role.
    #[must_use]
    pub fn with_role(mut self, role: impl Into<String>) -> Self {
        self.role = Some(role.into());
        self
    }

    /// Marks the span as an overlay.
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

    /// True if the span has no tokens.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The token range.
    pub fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Original index of a segment; `None` for other spans.
    pub fn segment(&self) -> Option<usize> {
        let (kind, number) = self.label.split_once('[')?;
        let index = number.strip_suffix(']')?.parse().ok()?;
        (!self.overlay && !NO_SEGMENTS.contains(&kind)).then_some(index)
    }
}

/// Ascending segment borders of spans.
pub(crate) fn borders(spans: &[Span]) -> Vec<usize> {
    let mut borders: Vec<usize> = spans.iter().flat_map(|span| [span.start, span.end]).collect();
    borders.sort_unstable();
    borders.dedup();
    borders
}

/// Segments between ascending `borders`, its own among them, that make up a span.
pub(crate) fn segments_of(span: &Span, borders: &[usize]) -> Range<usize> {
    let place = |border: usize| borders.partition_point(|other| *other < border);
    place(span.start)..place(span.end)
}
