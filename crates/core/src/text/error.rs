//! Errors of templates and tokenisers.

use std::path::PathBuf;

/// A chat template, tokeniser or span is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // printed by the messages
pub enum TextError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {reason}", path.display())]
    Json { path: PathBuf, reason: String },
    #[error("tokeniser {name}: {reason}")]
    Tokenizer { name: String, reason: String },
    #[error(
        "GGUF pre-tokeniser {found:?} is not known (known: {known}); use a model folder with tokenizer.json instead"
    )]
    UnknownPreTokenizer { found: String, known: String },
    #[error(
        "the GGUF file has no tokenizer.ggml.pre, by which its text is cut into words; without it the model would get other tokens than \
         it was trained with. Write it with `gguf-new-metadata --pre-tokenizer NAME OLD.gguf NEW.gguf` (of `pip install gguf`), NAME one \
         of {known}, or convert the model again"
    )]
    MissingPreTokenizer { known: String },
    /// A template does not compile, raises (`raise_exception`), or exceeds a limit; `line` counts from 1.
    #[error("template {name}{}: {reason}", at_line(*line))]
    Template { name: String, line: Option<usize>, reason: String, raised: bool },
    #[error(
        "template {template} writes {variable}, which the tokeniser does not define; add it to tokenizer_config.json, or use the files that belong to the model"
    )]
    UndefinedToken { template: String, variable: &'static str },
    #[error(
        "template {template} writes {token:?}, which is no token of the tokeniser: the model would read it letter by letter; use the template and the tokeniser that belong to the model"
    )]
    MissingToken { template: String, token: String },
    #[error("template {template} {problem}")]
    Thinking { template: String, problem: &'static str },
    /// A placed text (`system text`, `user content`, `history`, `query`) does not occur exactly once.
    #[error("template {name} places the {what} {count} times; it must place it exactly once, unaltered")]
    Placement { name: String, what: &'static str, count: usize },
    #[error(
        "template {name} alters or depends on the {what} that it places, so spans cannot be exact; place it as it is"
    )]
    Altered { name: String, what: &'static str },
    #[error("span {label} holds no token; its text is too short for this tokeniser, or white space")]
    EmptySpan { label: String },
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
