//! The grammar of calls, in the Lark notation of the crate `llguidance`.

use serde_json::{Map, Value};

use super::{Arguments, CallLayout, Tool};

/// Most calls of one answer.
const MOST_CALLS: usize = 16;

/// White space that may stand where a layout has some: what models were trained on, and little else.
const SPACE: &str = "[ \\n]{0,2}";

/// A function whose calls have no grammar in a layout.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub struct CallGrammarError {
    /// Its number among the functions.
    pub tool: usize,
    /// The fault of its parameters.
    pub fault: ParametersFault,
}

/// A fault of a function's parameters, where a model writes each argument by itself.
#[derive(Debug, thiserror::Error)]
pub enum ParametersFault {
    /// Properties of another type.
    #[error("`properties` is no object")]
    NoObject,
    /// Properties that stand elsewhere, too.
    #[error(
        "`{0}` stands beside `properties`; this model writes each argument by itself, so list them all in `properties`"
    )]
    Combined(&'static str),
    /// A text with bounds.
    #[error(
        "the text `{0}` is bounded by more than `enum`, which cannot be enforced for this model's calls; leave `strict` out"
    )]
    Bounded(String),
}

/// The rule `calls` and what it needs: one call of `tools` in this layout, or several where `many` is set. `json` is what a schema
/// becomes before it is embedded.
///
/// # Errors
/// A tool whose parameters this layout cannot hold.
pub fn call_grammar(
    layout: &CallLayout,
    tools: &[Tool],
    many: bool,
    json: &dyn Fn(Value, bool) -> Value,
) -> Result<String, CallGrammarError> {
    let mut grammar = String::new();
    let (open, close) = (terminal(layout.open), terminal(layout.close));
    let again = if many && layout.many { format!(" call{{0,{}}}", MOST_CALLS - 1) } else { String::new() };
    let opened = if open.is_empty() { "" } else { "OPEN " };
    let closed = if close.is_empty() { "" } else { " CLOSE" };
    grammar.push_str(&format!("calls: {opened}call{again}{closed}\n"));
    for (name, text) in [("OPEN", open), ("CLOSE", close)] {
        if !text.is_empty() {
            grammar.push_str(&format!("{name}: /{SPACE}{text}/\n"));
        }
    }
    let choices: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
    grammar.push_str(&format!("call: {}\nEND: /{SPACE}{}/\n", choices.join(" | "), terminal(layout.end)));
    for (i, tool) in tools.iter().enumerate() {
        let head = format!(
            "{SPACE}{}{}{}",
            terminal(layout.call),
            terminal(&tool.name),
            terminal(layout.after_name)
        );
        let arguments = match layout.arguments {
            Arguments::Json => {
                let schema = json(tool.parameters.clone().into(), tool.strict);
                format!("arguments_{i}: %json {schema}\n")
            }
            Arguments::Tags { key, after_key, after_value } => {
                tags(i, tool, [key, after_key, after_value], json)
                    .map_err(|fault| CallGrammarError { tool: i, fault })?
            }
        };
        let has_arguments = !arguments.is_empty();
        let body = if has_arguments { format!(" arguments_{i}") } else { String::new() };
        grammar.push_str(&format!("call_{i}: HEAD_{i}{body} END\nHEAD_{i}: /{head}/\n{arguments}"));
    }
    Ok(grammar)
}

/// Arguments in tags, in the order of the schema; those that are not required may be left out.
fn tags(
    i: usize,
    tool: &Tool,
    [key, after_key, after_value]: [&str; 3],
    json: &dyn Fn(Value, bool) -> Value,
) -> Result<String, ParametersFault> {
    let none = Map::new();
    let properties = match tool.parameters.get("properties") {
        Some(Value::Object(properties)) => properties,
        Some(_) => return Err(ParametersFault::NoObject),
        None => &none,
    };
    if let Some(other) =
        ["$ref", "anyOf", "oneOf", "allOf"].iter().find(|key| tool.parameters.contains_key(**key))
    {
        return Err(ParametersFault::Combined(other));
    }
    let required = |name: &str| {
        let list = tool.parameters.get("required").and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(|one| one == name))
    };
    let after = terminal(after_value.trim_start());
    let (mut parts, mut rules) = (Vec::new(), String::new());
    for (k, (name, schema)) in properties.iter().enumerate() {
        let question = if required(name) { "" } else { "?" };
        parts.push(format!("argument_{i}_{k}{question}"));
        let head = format!("{SPACE}{}{}", terminal(key), terminal(name));
        if !is_text(schema) {
            let mut schema = schema.clone();
            // Definitions lie in the whole schema.
            for key in ["$defs", "definitions"] {
                if let (Some(definitions), Value::Object(schema)) = (tool.parameters.get(key), &mut schema) {
                    schema.entry(key).or_insert_with(|| definitions.clone());
                }
            }
            let schema = json(schema, tool.strict);
            let begun = terminal(after_key);
            rules.push_str(&format!(
                "KEY_{i}_{k}: /{head}{begun}/\nargument_{i}_{k}: KEY_{i}_{k} value_{i}_{k} AFTER_{i}_{k}\n\
                 value_{i}_{k}: %json {schema}\nAFTER_{i}_{k}: /{SPACE}{after}/\n"
            ));
            continue;
        }
        // White space around a text is of the text, but for the layout's own.
        let begun = format!("{}{}", terminal(after_key.trim_end()), escaped(space_after(after_key)));
        let after = format!("{}{after}", escaped(space_before(after_value)));
        let text = match choices(schema) {
            Some(choices) => {
                let choices: Vec<String> = choices.iter().map(|choice| escaped(choice)).collect();
                format!("({}){after}", choices.join("|"))
            }
            None if tool.strict && bounded(schema) => {
                return Err(ParametersFault::Bounded(name.clone()));
            }
            // Up to the first end tag.
            None => format!("([^<]|<[^\\/])*{after}"),
        };
        rules.push_str(&format!(
            "KEY_{i}_{k}: /{head}{begun}/\nargument_{i}_{k}: KEY_{i}_{k} TEXT_{i}_{k}\nTEXT_{i}_{k}: /{text}/\n"
        ));
    }
    if parts.is_empty() {
        return Ok(String::new());
    }
    // A rule of optional parts alone may be empty.
    Ok(format!("arguments_{i}: {}\n{rules}", parts.join(" ")))
}

/// True if values of a schema are texts and nothing else, which tags hold as they are.
pub(super) fn is_text(schema: &Value) -> bool {
    match &schema["type"] {
        Value::String(kind) => kind == "string",
        Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(|kind| kind == "string"),
        _ => choices(schema).is_some(),
    }
}

/// The texts that a schema lists.
fn choices(schema: &Value) -> Option<Vec<&str>> {
    match (&schema["const"], &schema["enum"]) {
        (Value::String(text), _) => Some(vec![text]),
        (_, Value::Array(list)) if !list.is_empty() => list.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn bounded(schema: &Value) -> bool {
    ["pattern", "format", "minLength", "maxLength"].iter().any(|key| !schema[*key].is_null())
}

/// The white space that a text ends with.
fn space_after(text: &str) -> &str {
    text.get(text.trim_end().len()..).unwrap_or_default()
}

/// The white space that a text begins with.
fn space_before(text: &str) -> &str {
    text.get(..text.len() - text.trim_start().len()).unwrap_or_default()
}

/// A text of a layout as a regular expression: white space may vary.
fn terminal(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let space = first.is_whitespace();
        let end = rest.find(|c: char| c.is_whitespace() != space).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        out.push_str(&if space { SPACE.to_owned() } else { escaped(run) });
        rest = after;
    }
    out
}

/// A text as a regular expression between slashes.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_punctuation() && c != '_' && c != '<' && c != '>' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}
