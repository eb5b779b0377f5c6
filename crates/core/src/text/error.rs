//! Errors of templates and tokenisers.

use std::path::PathBuf;

/// A chat template, tokeniser or span is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The OS error.
        source: std::io::Error,
    },
    /// A JSON file does not parse, or a field has an unexpected shape.
    #[error("{}: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A tokeniser file or GGUF tokeniser metadata is unusable.
    #[error("tokeniser {name}: {reason}")]
    Tokenizer {
        /// The file or other source.
        name: String,
        /// The fault and the remedy.
        reason: String,
    },
    /// A GGUF file names an unknown pre-tokeniser.
    #[error(
        "GGUF pre-tokeniser {found:?} is not known (known: {known}); use a model folder with tokenizer.json instead"
    )]
    UnknownPreTokenizer {
        /// The file's value.
        found: String,
        /// Known values.
        known: String,
    },
    /// A byte-level GGUF file lacks its pre-tokeniser.
    #[error(
        "the GGUF file has no tokenizer.ggml.pre, by which its text is cut into words; without it the model would get other tokens than \
         it was trained with. Write it with `gguf-new-metadata --pre-tokenizer NAME OLD.gguf NEW.gguf` (of `pip install gguf`), NAME one \
         of {known}, or convert the model again"
    )]
    MissingPreTokenizer {
        /// Known values.
        known: String,
    },
    /// A template does not compile, raises, or exceeds a limit.
    #[error("template {name}{}: {reason}", at_line(*line))]
    Template {
        /// The template.
        name: String,
        /// One-based line, if known.
        line: Option<usize>,
        /// The template engine's message.
        reason: String,
        /// True for `raise_exception`.
        raised: bool,
    },
    /// A chat template writes an undefined special token.
    #[error(
        "template {template} writes {variable}, which the tokeniser does not define; add it to tokenizer_config.json, or use the files that belong to the model"
    )]
    UndefinedToken {
        /// The template.
        template: String,
        /// `bos_token` or `eos_token`.
        variable: &'static str,
    },
    /// A chat template writes a special token that is not in the vocabulary.
    #[error(
        "template {template} writes {token:?}, which is no token of the tokeniser: the model would read it letter by letter; use the template and the tokeniser that belong to the model"
    )]
    MissingToken {
        /// The template.
        template: String,
        /// The token's text.
        token: String,
    },
    /// A chat template lacks the requested thinking option.
    #[error("template {template} {problem}")]
    Thinking {
        /// The template.
        template: String,
        /// The limitation and the remedy.
        problem: &'static str,
    },
    /// A placed text does not occur exactly once.
    #[error("template {name} places the {what} {count} times; it must place it exactly once, unaltered")]
    Placement {
        /// The template.
        name: String,
        /// Kind of text: `system text`, `user content`, `history`, `query`.
        what: &'static str,
        /// Number of occurrences.
        count: usize,
    },
    /// A template alters placed text, so spans cannot be exact.
    #[error(
        "template {name} alters or depends on the {what} that it places, so spans cannot be exact; place it as it is"
    )]
    Altered {
        /// The template.
        name: String,
        /// Kind of text.
        what: &'static str,
    },
    /// A required span has no tokens.
    #[error("span {label} holds no token; its text is too short for this tokeniser, or white space")]
    EmptySpan {
        /// The span.
        label: String,
    },
}

impl TextError {
    /// True for `raise_exception`.
    pub fn is_raised(&self) -> bool {
        matches!(self, TextError::Template { raised: true, .. })
    }
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}
