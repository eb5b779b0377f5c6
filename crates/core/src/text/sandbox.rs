//! Bounded rendering of untrusted templates: chat templates, prompt templates and judge templates. Limits steps (fuel) and output size. A
//! template's own variables are bounded only by the fuel.

use std::error::Error as _;
use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};

use super::TextError;

/// Maximum steps per rendering. The longest known chat templates need a few thousand for a short conversation.
const FUEL: u64 = 2_000_000;

/// Output bytes allowed beyond a multiple of the input.
const OUTPUT_ALLOWANCE: usize = 1 << 20;

/// transformers' white-space rules, no escaping, limited steps.
pub fn environment(undefined: UndefinedBehavior) -> Result<Environment<'static>, TextError> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.map_err(|error| template_error("(syntax)", "", &error))?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(undefined);
    env.set_fuel(Some(FUEL));
    Ok(env)
}

/// Compiles `source` as template `name`.
pub fn add_template(env: &mut Environment<'static>, name: &str, source: String) -> Result<(), TextError> {
    env.add_template_owned(name.to_owned(), source).map_err(|error| template_error(name, "", &error))
}

/// Renders template `name`; `input_bytes` is the size of its variables, for the output limit.
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

/// Converts an engine error with its causes to one line.
fn template_error(name: &str, source: &str, error: &Error) -> TextError {
    let mut reason = error.kind().to_string();
    if let Some(detail) = error.detail() {
        reason = format!("{reason}: {detail}");
    }
    // The engine does not name the undefined value.
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

/// Marks errors from `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("raised")]
pub(super) struct Raised;

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
