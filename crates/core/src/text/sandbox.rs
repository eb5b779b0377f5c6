//! Bounded rendering of untrusted templates: chat templates, prompt templates and judge templates. Limits steps (fuel), output, and by
//! `bounds` each value, the sum of all values, depth and time. A template stands alone: it includes and imports no other.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::thread;

use minijinja::machinery::{CodeGenerator, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};

use super::bounds::{self, Rendering};
use super::{TextError, rewrite};

/// Maximum steps per rendering, of which the checks are up to a half. The longest known chat templates need a few thousand for a short
/// conversation.
const FUEL: u64 = 4_000_000;

/// Stack of the thread that parses and renders; only what is used takes memory. The engine recurses on tags of up to 2,000 tokens, on 500
/// blocks, and on values 160 deep.
const STACK: usize = 64 << 20;

/// Output bytes allowed beyond a multiple of the input.
const OUTPUT_ALLOWANCE: usize = 1 << 20;

/// Maximum length of a reason in an error: the engine prints operands.
const LONGEST_REASON: usize = 2000;

/// Templates by name, and what they can call.
#[derive(Debug, Clone)]
pub struct Sandbox {
    env: Environment<'static>,
    sources: BTreeMap<String, String>,
}

impl Sandbox {
    /// transformers' white-space rules, no escaping, limited steps.
    pub fn new(undefined: UndefinedBehavior) -> Result<Self, TextError> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|error| template_error("(syntax)", "", &error))?);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_undefined_behavior(undefined);
        env.set_fuel(Some(FUEL));
        env.set_formatter(|output, state, value| {
            bounds::charge_printed(value)?;
            minijinja::escape_formatter(output, state, value)
        });
        bounds::add(&mut env);
        Ok(Sandbox { env, sources: BTreeMap::new() })
    }

    pub(super) fn env(&mut self) -> &mut Environment<'static> {
        &mut self.env
    }

    /// Adds `source` as template `name`. Fails if it does not parse, or is too large to.
    pub fn add_template(&mut self, name: &str, source: String) -> Result<(), TextError> {
        rewrite::check_source(&source, self.env.syntax()).map_err(|(line, reason)| TextError::Template {
            name: name.to_owned(),
            line,
            reason,
            raised: false,
        })?;
        let parsed = with_stack(|| {
            let parsed = parse(&source, name, self.env.syntax().clone());
            parsed.and_then(|stmt| rewrite::statement(&stmt)).map(drop)
        });
        parsed.map_err(|error| template_error(name, "", &error))?;
        self.sources.insert(name.to_owned(), source);
        Ok(())
    }

    /// True if a template reads a variable.
    pub fn reads(&self, name: &str, variable: &str) -> bool {
        self.variables(name, false).contains(variable)
    }

    /// Variables that a template reads and does not set, the engine's functions apart; `nested`: with their attributes, as
    /// `settings.seed`.
    pub fn variables(&self, name: &str, nested: bool) -> BTreeSet<String> {
        let Some(source) = self.sources.get(name) else { return BTreeSet::new() };
        let read = with_stack(|| Ok(self.env.template_from_str(source)?.undeclared_variables(nested)));
        let is_function = |variable: &String| self.env.globals().any(|(name, _)| name == variable);
        read.into_iter().flatten().filter(|variable| !is_function(variable)).collect()
    }

    /// Renders template `name`; `input_bytes` is the size of its variables, for the limits.
    pub fn render(&self, name: &str, context: Value, input_bytes: usize) -> Result<String, TextError> {
        let source = self.sources.get(name);
        let unknown = || Error::new(ErrorKind::TemplateNotFound, "it was not added");
        let source = source.ok_or_else(|| template_error(name, "", &unknown()))?;
        let limit = input_bytes.saturating_mul(4).saturating_add(OUTPUT_ALLOWANCE);
        let rendered = with_stack(|| {
            let _rendering = Rendering::start(input_bytes, limit);
            self.eval(name, source, context)
        });
        let text = rendered.map_err(|error| template_error(name, source, &error))?;
        match text.len() > limit {
            true => Err(template_error(name, source, &failed(format!("the output exceeds {limit} bytes")))),
            false => Ok(text),
        }
    }

    fn eval(&self, name: &str, source: &str, context: Value) -> Result<String, Error> {
        let stmt = rewrite::statement(&parse(source, name, self.env.syntax().clone())?)?;
        let mut generator = CodeGenerator::new(name, source);
        generator.compile_stmt(&stmt);
        let (instructions, blocks) = generator.finish();
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        eval(&self.env, &instructions, context, &blocks, &mut output, AutoEscape::None)?;
        drop(output);
        Ok(text)
    }
}

/// Runs on a thread of its own; a panic of the engine is an error.
fn with_stack<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("template".to_owned()).stack_size(STACK);
        let running = thread
            .spawn_scoped(scope, work)
            .map_err(|error| failed(format!("its thread cannot start: {error}")))?;
        running.join().unwrap_or_else(|_| Err(failed("the template engine panics".to_owned())))
    })
}

fn failed(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
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
    if let Some((end, _)) = reason.char_indices().nth(LONGEST_REASON) {
        reason.truncate(end);
        reason.push('…');
    }
    TextError::Template { name: name.to_owned(), line: error.line(), reason, raised }
}

/// Marks errors from `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("raised")]
pub(super) struct Raised;
