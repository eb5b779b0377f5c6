//! Errors of prompt templates and of cases that no prompt can be made of.

use std::path::PathBuf;

use palimpsest_core::text::TextError;

/// A prompt could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    #[error(transparent)]
    Text(#[from] TextError),
    /// A prompt template puts the query before the history.
    #[error(
        "template {0} puts the query before the history; put it after, so that its tokens can attend to the segments"
    )]
    QueryFirst(String),
    /// A prompt template does not start the history on its own line below some text.
    #[error(
        "template {0} must start {{{{ history }}}} on a line of its own, below some text, so that no token straddles the first segment's border"
    )]
    HistoryNotOnOwnLine(String),
    /// A benchmark's prompts need a template that it does not have.
    #[error(
        "there is no template {name} (the benchmark has {known}); name segments and probes after its templates"
    )]
    NoTemplate { name: String, known: String },
    #[error("evidence names segment {segment}, but the history holds no segment with that index")]
    EvidenceMissing { segment: usize },
    #[error("evidence names turn {turn} of segment {segment}, which has {turns}; count turns from 0")]
    NoSuchTurn { segment: usize, turn: usize, turns: usize },
    /// Bytes of a turn that are none, or that cut a character.
    #[error(
        "evidence {label} is no text of that turn; give bytes of its content, on the borders of characters"
    )]
    NoSuchBytes { label: String },
    #[error("segment {segment} plays two parts for one probe, {roles}; give it one, or name turns of it")]
    TwoRoles { segment: usize, roles: String },
    #[error("the history holds two segments with index {segment}; indices must be unique")]
    DuplicateSegment { segment: usize },
    /// A segment's kind cannot be a span's name.
    #[error(
        "a segment cannot be of the kind `{kind}`; use one word other than `instructions` and `template`"
    )]
    SegmentKind { kind: String },
    #[error("probe {probe} has an empty query")]
    EmptyQuery { probe: String },
    #[error("{}: unknown prompt template (known: {known}); rename or remove it", path.display())]
    UnknownTemplateFile { path: PathBuf, known: String },
}
