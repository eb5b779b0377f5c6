//! Errors of templates and prompts.

use std::path::PathBuf;

use palimpsest_core::text::TextError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(
        "template {0} puts the query before the history; put it after, so that its tokens can attend to the segments"
    )]
    QueryFirst(String),
    #[error(
        "template {0} must start {{{{ history }}}} on a line of its own, below some text, so that no token straddles the first segment's border"
    )]
    HistoryNotOnOwnLine(String),
    #[error(
        "there is no template {name} (the benchmark has {known}); name segments and probes after its templates"
    )]
    NoTemplate { name: String, known: String },
    #[error("evidence names segment {segment}, but the history holds no segment with that index")]
    EvidenceMissing { segment: usize },
    #[error("evidence names turn {turn} of segment {segment}, which has {turns}; count turns from 0")]
    NoSuchTurn { segment: usize, turn: usize, turns: usize },
    #[error(
        "evidence {label} is no text of that turn; give bytes of its content, on the borders of characters"
    )]
    NoSuchBytes { label: String },
    #[error("segment {segment} plays two parts for one probe, {roles}; give it one, or name turns of it")]
    TwoRoles { segment: usize, roles: String },
    #[error("the history holds two segments with index {segment}; indices must be unique")]
    DuplicateSegment { segment: usize },
    #[error(
        "a segment cannot be of the kind `{kind}`; use one word other than `instructions` and `template`"
    )]
    SegmentKind { kind: String },
    #[error("probe {probe} has an empty query")]
    EmptyQuery { probe: String },
    #[error("{}: unknown prompt template (known: {known}); rename or remove it", path.display())]
    UnknownTemplateFile { path: PathBuf, known: String },
}
