//! Grammar of tool calls, in `llguidance`'s Lark syntax.

use serde_json::{Map, Value};

use super::{Arguments, CallLayout, Tool};

/// Maximum calls per answer.
const MOST_CALLS: usize = 16;

/// Optional white space, close to what models were trained on.
const SPACE: &str = "[ \\n]{0,2}";

/// A function whose parameters the layout cannot express.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
pub struct CallGrammarError {
    /// Index of the function.
    pub tool: usize,
    fault: String,
}

/// Rule `calls`: one call of `tools`, or several if `many`. `json` maps schemas. Fails if the layout cannot represent parameters.
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

/// Tagged arguments in schema order; optional ones may be omitted.
fn tags(
    i: usize,
    tool: &Tool,
    [key, after_key, after_value]: [&str; 3],
    json: &dyn Fn(Value, bool) -> Value,
) -> Result<String, String> {
    let none = Map::new();
    let properties = match tool.parameters.get("properties") {
        Some(Value::Object(properties)) => properties,
        Some(_) => return Err("`properties` is no object".to_owned()),
        None => &none,
    };
    if let Some(other) =
        ["$ref", "anyOf", "oneOf", "allOf"].iter().find(|key| tool.parameters.contains_key(**key))
    {
        return Err(format!(
            "`{other}` stands beside `properties`; this model writes each argument by itself, so list them all in `properties`"
        ));
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
            // Definitions are in the root schema.
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
        // White space around a string belongs to it, except for the layout's own.
        let begun = format!("{}{}", terminal(after_key.trim_end()), escaped(space_after(after_key)));
        let text = match choices(schema) {
            Some(choices) => {
                let choices: Vec<String> = choices.iter().map(|choice| escaped(choice)).collect();
                format!("/({}){}{after}/", choices.join("|"), escaped(space_before(after_value)))
            }
            None if tool.strict && bounded(schema) => {
                return Err(format!(
                    "the text `{name}` is bounded by more than `enum`, which cannot be enforced for this model's calls; leave `strict` out"
                ));
            }
            None => text_before(after_value),
        };
        rules.push_str(&format!(
            "KEY_{i}_{k}: /{head}{begun}/\nargument_{i}_{k}: KEY_{i}_{k} TEXT_{i}_{k}\nTEXT_{i}_{k}: {text}\n"
        ));
    }
    if parts.is_empty() {
        return Ok(String::new());
    }
    // A rule of only optional parts may be empty.
    Ok(format!("arguments_{i}: {}\n{rules}", parts.join(" ")))
}

/// Any text up to the first end tag, as the reader parses it. White space before the tag is optional.
fn text_before(after_value: &str) -> String {
    let (tag, after) = (escaped(after_value.trim()), terminal(after_value.trim_start()));
    format!("/(?s:.*){after}/ & ~/(?s:.*){tag}(?s:.*){tag}(?s:.*)/")
}

/// True if a schema allows strings only; these are written verbatim.
pub(super) fn is_text(schema: &Value) -> bool {
    match &schema["type"] {
        Value::String(kind) => kind == "string",
        Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(|kind| kind == "string"),
        _ => choices(schema).is_some(),
    }
}

/// Strings allowed by `const` or `enum`.
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

fn space_after(text: &str) -> &str {
    text.get(text.trim_end().len()..).unwrap_or_default()
}

fn space_before(text: &str) -> &str {
    text.get(..text.len() - text.trim_start().len()).unwrap_or_default()
}

/// A layout's text as a regex with optional white space.
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

/// Escapes a text for a regex between slashes.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use llguidance::api::TopLevelGrammar;
    use llguidance::earley::SlicedBiasComputer;
    use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities};
    use llguidance::{Matcher, ParserFactory};
    use serde_json::json;

    use super::super::layout::FAMILIES;
    use super::super::{CallReader, Ending, ToolCall};
    use super::*;

    /// All combinations of pieces that could end a tag.
    fn texts(tag: &str) -> Vec<String> {
        let pieces = ["a", "<", "/", ">", "\n", "</b>", tag, tag.split_at(tag.len() - 1).0, "é🤖"];
        let mut texts = vec![String::new()];
        for length in 0..3 {
            let longer = texts.clone().into_iter().filter(|text| text.chars().count() >= length);
            texts.extend(longer.flat_map(|text| pieces.map(|piece| text.clone() + piece)));
        }
        texts.extend(
            ["if a <", "a << b", "<div>\n</div>", "</function>\n</tool_call>", "<tool_call>"]
                .map(str::to_owned),
        );
        texts
    }

    #[test]
    fn m07_an_argument_is_any_text_but_the_end_tag_and_is_read_back() {
        let env = ApproximateTokEnv::single_byte_env();
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).unwrap();
        let Value::Object(parameters) =
            json!({"properties": {"text": {"type": "string"}}, "required": ["text"]})
        else {
            unreachable!()
        };
        let tool = Tool { name: "write".to_owned(), description: None, parameters, strict: false };
        let mut layouts = 0;
        for layout in &FAMILIES {
            let Arguments::Tags { after_value, .. } = layout.arguments else { continue };
            layouts += 1;
            let tag = after_value.trim();
            let rules =
                call_grammar(layout, std::slice::from_ref(&tool), false, &|schema, _| schema).unwrap();
            let grammar = TopLevelGrammar::from_lark(format!("start: calls\n{rules}"));
            let prototype = Matcher::new(factory.create_parser(grammar));
            for text in texts(tag) {
                let arguments = Map::from_iter([("text".to_owned(), Value::from(text.as_str()))]);
                let call = ToolCall { id: String::new(), name: "write".to_owned(), arguments };
                let written = layout.write(std::slice::from_ref(&call));
                let tokens: Vec<u32> = written.bytes().map(u32::from).collect();
                let mut matcher = prototype.deep_clone();
                let taken = matcher.validate_tokens(&tokens).unwrap() == tokens.len();
                let whole =
                    taken && matcher.consume_tokens(&tokens).is_ok() && matcher.is_accepting().unwrap();
                assert_eq!(whole, !text.contains(tag), "{text:?} in {written}");
                if whole {
                    let mut reader = CallReader::new(layout, Arc::new([tool.clone()]));
                    let read = reader.push(&written);
                    let json: String = read.calls.iter().map(|piece| piece.arguments.as_str()).collect();
                    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), json!({"text": text}));
                    assert_eq!(reader.finish(Ending::Turn).text, "");
                }
            }
        }
        assert_eq!(layouts, 3);
    }
}
