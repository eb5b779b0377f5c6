//! One bounded way to render a template, for chat templates (which come with a model, from anywhere), prompt templates and the
//! judge's template (which a user may override) alike.
//!
//! Fuel bounds the steps and the output is cut off at a limit, so that a hostile template ends in an error. What a
//! template accumulates in its own variables is bounded by the fuel only.

use std::error::Error as _;
use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};

use super::TextError;

/// Steps that one rendering may take. The longest chat templates in use need a few thousand for a short conversation.
const FUEL: u64 = 2_000_000;

/// Output that a rendering may produce beyond a few times what was put in, in bytes.
const OUTPUT_ALLOWANCE: usize = 1 << 20;

/// An environment with the whitespace rules that transformers sets, no escaping, and a limit on steps.
pub fn environment(undefined: UndefinedBehavior) -> Result<Environment<'static>, TextError> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.map_err(|error| template_error("(syntax)", "", &error))?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(undefined);
    env.set_fuel(Some(FUEL));
    Ok(env)
}

/// Compiles `source` under `name`.
pub fn add_template(env: &mut Environment<'static>, name: &str, source: String) -> Result<(), TextError> {
    env.add_template_owned(name.to_owned(), source).map_err(|error| template_error(name, "", &error))
}

/// Renders the template called `name`, whose variables hold `input_bytes` bytes of text.
pub fn render(
    env: &Environment<'static>,
    name: &str,
    context: Value,
    input_bytes: usize,
) -> Result<String, TextError> {
    let limit = input_bytes.saturating_mul(4).saturating_add(OUTPUT_ALLOWANCE);
    let mut output = Bounded { bytes: Vec::new(), limit };
    let template = env.get_template(name).map_err(|error| template_error(name, "", &error))?;
    template
        .render_captured_to(context, &mut output)
        .map_err(|error| template_error(name, template.source(), &error))?;
    String::from_utf8(output.bytes).map_err(|error| TextError::Template {
        name: name.to_owned(),
        line: None,
        reason: format!("the output is not UTF-8: {error}"),
        raised: false,
    })
}

/// An error of the template engine on `source`, with the reasons beneath it on the same line.
fn template_error(name: &str, source: &str, error: &Error) -> TextError {
    let mut reason = error.kind().to_string();
    if let Some(detail) = error.detail() {
        reason = format!("{reason}: {detail}");
    }
    // The engine does not say which value it is.
    if let (ErrorKind::UndefinedError, Some(range)) = (error.kind(), error.range())
        && let Some(expression) = source.get(range)
    {
        reason = format!("{reason}: {}", expression.trim());
    }
    let unsupported = matches!(
        error.kind(),
        ErrorKind::SyntaxError
            | ErrorKind::UnknownFilter
            | ErrorKind::UnknownTest
            | ErrorKind::UnknownFunction
            | ErrorKind::UnknownMethod
    );
    let (mut cause, mut raised) = (error.source(), false);
    while let Some(error) = cause {
        raised = error.is::<Raised>();
        if !raised {
            reason = format!("{reason}: {error}");
        }
        cause = error.source();
    }
    if unsupported {
        reason.push_str(
            "; take it out of the template (a model folder's chat_template.jinja goes before others)",
        );
    }
    TextError::Template { name: name.to_owned(), line: error.line(), reason, raised }
}

/// Marks the error of a template that refuses its input itself, by `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("raised")]
pub(super) struct Raised;

/// A buffer that refuses to grow beyond `limit` bytes.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for Bounded {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + data.len() > self.limit {
            return Err(io::Error::other(format!("the output exceeds {} bytes", self.limit)));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
