//! Errors of templates and tokenizers. Every message names the thing, the value and the remedy.

use std::path::PathBuf;

/// A chat template, a tokenizer or a span could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The text that was to be read.
        path: PathBuf,
        /// The operating system's reason.
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
    /// A tokeniser file or the tokeniser part of a GGUF file is unusable.
    #[error("tokeniser {name}: {reason}")]
    Tokenizer {
        /// The file, or what it was built from.
        name: String,
        /// The fault and the remedy.
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
    /// A GGUF file with a byte-level vocabulary does not name its pre-tokeniser.
    #[error(
        "the GGUF file has no tokenizer.ggml.pre, by which its text is cut into words; without it the model would get other tokens than \
         it was trained with. Write it with `gguf-new-metadata --pre-tokenizer NAME OLD.gguf NEW.gguf` (of `pip install gguf`), NAME one \
         of {known}, or convert the model again"
    )]
    MissingPreTokenizer {
        /// The names that are known.
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
        /// True if the template refused its input itself, by `raise_exception`.
        raised: bool,
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
        /// The limitation and the remedy.
        problem: &'static str,
    },
    /// A placed text does not occur exactly once.
    #[error("template {name} places the {what} {count} times; it must place it exactly once, unaltered")]
    Placement {
        /// The template.
        name: String,
        /// Which text: `system text`, `user content`, `history`, `query`.
        what: &'static str,
        /// The number of times it was found.
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
    /// A span that must hold tokens holds none.
    #[error("span {label} holds no token; its text is too short for this tokeniser, or white space")]
    EmptySpan {
        /// The span.
        label: String,
    },
}

impl TextError {
    /// True if a template refused its input itself, by `raise_exception`.
    pub fn is_raised(&self) -> bool {
        matches!(self, TextError::Template { raised: true, .. })
    }
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}
