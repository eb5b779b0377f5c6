//! `tools` and `tool_choice`: callable functions and the grammar of calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::error::{ApiError, ensure};
use super::format::{Format, name};
use super::json::{found, read_at, shown};
use super::model::ServedModel;
use super::sent::FunctionKind;
use palimpsest_core::engine::json_schema::{fault, with_options};
use palimpsest_core::engine::{Constraint, ConstraintError, Starts};
use palimpsest_core::text::{CallLayout, CallReader, Tool, ToolLayout, call_grammar};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolField {
    #[serde(rename = "type")]
    _kind: FunctionKind,
    #[serde(with = "FunctionField")]
    function: Tool,
}

#[derive(Deserialize)]
#[serde(remote = "Tool", deny_unknown_fields)]
struct FunctionField {
    #[serde(deserialize_with = "name")]
    name: String,
    description: Option<String>,
    #[serde(default = "no_parameters", deserialize_with = "parameters")]
    parameters: Map<String, Value>,
    #[serde(default)]
    strict: bool,
}

/// Argument schemas are objects.
fn parameters<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Value>, D::Error> {
    let mut parameters = Map::deserialize(from)?;
    match *parameters.entry("type").or_insert_with(|| "object".into()) == "object" {
        true => Ok(parameters),
        false => Err(D::Error::custom("has a `type` other than \"object\"; arguments are an object")),
    }
}

fn no_parameters() -> Map<String, Value> {
    let none = [("properties", json!({})), ("additionalProperties", json!(false)), ("type", json!("object"))];
    none.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedTool {
    #[serde(rename = "type")]
    _kind: Option<FunctionKind>,
    function: NamedFunction,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedFunction {
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Functions are not shown to the model.
    None,
    Auto,
    Required,
    Named(usize),
}

#[derive(Debug, Clone)]
pub struct ToolRequest {
    tools: Arc<[Tool]>,
    choice: Choice,
    many: bool,
}

impl ToolRequest {
    /// `choice` is `none`, `auto`, `required`, or a function.
    pub fn new(tools: Vec<ToolField>, choice: Option<Value>, many: bool) -> Result<Self, ApiError> {
        let tools: Arc<[Tool]> = tools.into_iter().map(|field| field.function).collect();
        let mut seen = BTreeSet::new();
        if let Some(i) = tools.iter().position(|tool| !seen.insert(tool.name.as_str())) {
            let message = "two functions have this name; names are unique";
            return Err(ApiError::field(format!("tools[{i}].function.name"), message));
        }
        for (i, tool) in tools.iter().enumerate() {
            if let Some(fault) = fault(&tool.parameters.clone().into(), tool.strict) {
                return Err(ApiError::at(format!("tools[{i}].function.parameters"), fault));
            }
        }
        let field = "tool_choice";
        let choice = match choice.as_ref().map(|choice| (choice, choice.as_str())) {
            None if tools.is_empty() => Choice::None,
            None | Some((_, Some("auto"))) => Choice::Auto,
            Some((_, Some("none"))) => Choice::None,
            Some((_, Some("required"))) => {
                let reason = "wants a call and `tools` has no function; give one, or leave it out";
                ensure(!tools.is_empty(), field, reason)?;
                Choice::Required
            }
            Some((choice @ Value::Object(_), _)) => {
                let NamedTool { function: NamedFunction { name }, .. } = read_at(field, choice)?;
                let known = tools.iter().position(|tool| tool.name == name);
                Choice::Named(known.ok_or_else(|| {
                    let reason = format!("is {}, which `tools` has not", shown(&name));
                    ApiError::at("tool_choice.function.name", reason)
                })?)
            }
            Some((other, _)) => {
                let wanted =
                    "\"none\", \"auto\", \"required\" or an object with the name of one of the functions";
                return Err(ApiError::wrong(field, found(other), wanted));
            }
        };
        Ok(ToolRequest { tools, choice, many })
    }

    pub fn told(&self) -> &[Tool] {
        if self.choice == Choice::None { &[] } else { &self.tools }
    }

    pub fn reader(&self, model: &ServedModel) -> Result<Option<CallReader>, ApiError> {
        if self.told().is_empty() {
            return Ok(None);
        }
        Ok(Some(CallReader::new(model.tool_layout()?.calls, Arc::clone(&self.tools))))
    }

    /// Grammar of the answer: format, calls or either; `None` for free text.
    pub fn constraint(
        &self,
        model: &ServedModel,
        format: &Format,
    ) -> Result<Option<Arc<Constraint>>, ApiError> {
        let (told, is_auto) = (!self.told().is_empty(), self.choice == Choice::Auto);
        // Without functions the model's layout is not needed.
        let layout = if told { model.tool_layout()? } else { ToolLayout::PLAIN }.calls;
        let calls = told.then(|| self.calls(layout)).transpose()?;
        let rule = format.rule().filter(|_| !told || is_auto);
        let (start, starts) = match (&rule, &calls) {
            (None, None) => return Ok(None),
            (Some(_), None) => ("format", Starts::AtOnce),
            (None, Some(_)) if is_auto => {
                let CallLayout { marker, at_start, .. } = *layout;
                ("calls", Starts::At { marker: marker.to_owned(), at_start })
            }
            (None, Some(_)) => ("calls", Starts::AtOnce),
            (Some(_), Some(_)) if layout.at_start => {
                let message = "this model's calls are JSON, as the answers in this format are; give one of `tools` and \
                               `response_format`, or `tool_choice` \"required\"";
                return Err(ApiError::field("response_format", message));
            }
            (Some(_), Some(_)) => ("format | calls", Starts::AtOnce),
        };
        let name = if rule.is_some() { format.field() } else { "tools" };
        let grammar = format!("start: {start}\n{}{}", calls.unwrap_or_default(), rule.unwrap_or_default());
        let made = model.vocabulary().and_then(|vocabulary| vocabulary.compile(grammar, starts, name));
        made.map(|constraint| Some(Arc::new(constraint))).map_err(|error| {
            let refused =
                matches!(error, ConstraintError::Refused(_)).then(|| self.refused(model, format, name));
            refused.flatten().unwrap_or_else(|| ApiError::constraint(&error, name))
        })
    }

    /// Rule `calls` over the allowed functions.
    fn calls(&self, layout: &CallLayout) -> Result<String, ApiError> {
        let (first, tools) = match self.choice {
            Choice::Named(i) => (i, &self.tools[i..=i]),
            _ => (0, &self.tools[..]),
        };
        // A named function is called once.
        let many = self.many && !matches!(self.choice, Choice::Named(_));
        call_grammar(layout, tools, many, &with_options).map_err(|error| {
            let field = format!("tools[{}].function.parameters", first + error.tool);
            ApiError::at(field, format_args!("cannot be enforced: {error}"))
        })
    }

    /// Names the invalid one of several schemas.
    fn refused(&self, model: &ServedModel, format: &Format, name: &str) -> Option<ApiError> {
        if let Some(error) = format.refusal(model) {
            return Some(ApiError::constraint(&error, format.field()));
        }
        if name != "tools" && self.choice != Choice::Auto {
            return None;
        }
        self.told().iter().enumerate().find_map(|(i, tool)| {
            let alone = Format::Schema { schema: tool.parameters.clone().into(), strict: tool.strict };
            let error = alone.refusal(model)?;
            Some(ApiError::constraint(&error, &format!("tools[{i}].function.parameters")))
        })
    }
}
