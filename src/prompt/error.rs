//! What can go wrong between a case and its tokens. Every message names the thing, the value and the remedy.

use std::path::PathBuf;

/// Why a prompt, a chat template or a tokeniser could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A JSON file does not parse, or a field has an unexpected shape.
    #[error("{}: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tokeniser file or the tokeniser part of a GGUF file is unusable.
    #[error("tokeniser {name}: {reason}")]
    Tokenizer {
        /// The file, or what it was built from.
        name: String,
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// A GGUF file names a pre-tokeniser that is not built in.
    #[error(
        "GGUF pre-tokeniser {found:?} is not known (known: {known}); use a model folder with tokenizer.json instead"
    )]
    UnknownPreTokenizer {
        /// The name in the file.
        found: String,
        /// The names that are.
        known: String,
    },
    /// A template does not compile, raises, or uses more than it may.
    #[error("template {name}{}: {reason}", at_line(*line))]
    Template {
        /// The template.
        name: String,
        /// One-based line, where known.
        line: Option<usize>,
        /// The reason in the template engine's words.
        reason: String,
    },
    /// A chat template writes a token that the tokeniser does not define.
    #[error(
        "template {template} writes {variable}, which the tokeniser does not define; add it to tokenizer_config.json, or use the files that belong to the model"
    )]
    UndefinedToken {
        /// The template.
        template: String,
        /// `bos_token` or `eos_token`.
        variable: &'static str,
    },
    /// A chat template writes a special token that the vocabulary does not hold.
    #[error(
        "template {template} writes {token:?}, which is no token of the tokeniser: the model would read it letter by letter; use the template and the tokeniser that belong to the model"
    )]
    MissingToken {
        /// The template.
        template: String,
        /// The token's text.
        token: String,
    },
    /// A chat template cannot do what is asked about thoughts.
    #[error("template {template} {problem}")]
    Thinking {
        /// The template.
        template: String,
        /// What it cannot, and the remedy.
        problem: &'static str,
    },
    /// A placed text does not occur exactly once.
    #[error("template {name} places the {what} {count} times; it must place it exactly once, unaltered")]
    Placement {
        /// The template.
        name: String,
        /// Which text: `system text`, `user content`, `history`, `query`.
        what: &'static str,
        /// How often it was found.
        count: usize,
    },
    /// A template changes what is put into it, so that spans cannot be exact.
    #[error(
        "template {name} alters or depends on the {what} that it places, so spans cannot be exact; place it as it is"
    )]
    Altered {
        /// The template.
        name: String,
        /// Which text.
        what: &'static str,
    },
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
    NoTemplate {
        /// The file that is missing.
        name: String,
        /// Those that are there.
        known: String,
    },
    /// An evidence segment is not part of the history.
    #[error("evidence names segment {segment}, but the history holds no segment with that index")]
    EvidenceMissing {
        /// The original index.
        segment: usize,
    },
    /// A piece of evidence is in a turn that is not there.
    #[error("evidence names turn {turn} of segment {segment}, which has {turns}; count turns from 0")]
    NoSuchTurn {
        /// The segment's original index.
        segment: usize,
        /// The turn.
        turn: usize,
        /// How many there are.
        turns: usize,
    },
    /// Bytes of a turn that are none, or that cut a character.
    #[error(
        "evidence {label} is no text of that turn; give bytes of its content, on the borders of characters"
    )]
    NoSuchBytes {
        /// The place.
        label: String,
    },
    /// A whole segment plays two parts.
    #[error("segment {segment} plays two parts for one probe, {roles}; give it one, or name turns of it")]
    TwoRoles {
        /// The original index.
        segment: usize,
        /// Both.
        roles: String,
    },
    /// Two segments share an index.
    #[error("the history holds two segments with index {segment}; indices must be unique")]
    DuplicateSegment {
        /// The original index.
        segment: usize,
    },
    /// A segment's kind cannot be a span's name.
    #[error(
        "a segment cannot be of the kind `{kind}`; use one word other than `instructions` and `template`"
    )]
    SegmentKind {
        /// The kind.
        kind: String,
    },
    /// A probe asks nothing.
    #[error("probe {probe} has an empty query")]
    EmptyQuery {
        /// The probe's id.
        probe: String,
    },
    /// A span that must hold tokens holds none.
    #[error("span {label} holds no token; its text is too short for this tokeniser, or white space")]
    EmptySpan {
        /// The span.
        label: String,
    },
    /// The folder of prompt templates holds a file of another name.
    #[error("{}: unknown prompt template (known: {known}); rename or remove it", path.display())]
    UnknownTemplateFile {
        /// The file.
        path: PathBuf,
        /// The names that are read.
        known: String,
    },
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}
