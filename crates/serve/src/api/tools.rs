//! `tools` and `tool_choice`: callable functions and the grammar of calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::format::{Format, name, with_options};
use super::json::{OneOf, shown};
use super::model::ServedModel;
use super::schema;
use super::sent::FunctionKind;
use palimpsest_core::engine::{Constraint, ConstraintError, Starts};
use palimpsest_core::text::{CallLayout, CallReader, Tool, ToolLayout, call_grammar};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolField {
    #[serde(rename = "type")]
    _kind: FunctionKind,
    function: FunctionField,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// `none`, `auto`, `required`, or a function.
pub type ToolChoice = OneOf<NamedTool>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedTool {
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
    pub fn new(tools: Vec<ToolField>, choice: Option<ToolChoice>, many: bool) -> Result<Self, ApiError> {
        let tool = |ToolField { function, .. }| {
            let FunctionField { name, description, parameters, strict } = function;
            Tool { name, description, parameters, strict }
        };
        let tools: Vec<Tool> = tools.into_iter().map(tool).collect();
        let mut seen = BTreeSet::new();
        if let Some(i) = tools.iter().position(|tool| !seen.insert(tool.name.as_str())) {
            let message = "two functions have this name; names are unique";
            return Err(ApiError::field(format!("tools[{i}].function.name"), message));
        }
        let fault = |tool: &Tool| schema::fault(&tool.parameters.clone().into()).filter(|_| tool.strict);
        if let Some((i, fault)) = tools.iter().enumerate().find_map(|(i, tool)| Some((i, fault(tool)?))) {
            return Err(ApiError::at(format!("tools[{i}].function.parameters"), fault));
        }
        let choice = match choice {
            None if tools.is_empty() => Choice::None,
            None => Choice::Auto,
            Some(OneOf::Text(word)) if word == "auto" => Choice::Auto,
            Some(OneOf::Text(word)) if word == "none" => Choice::None,
            Some(OneOf::Text(word)) if word == "required" && tools.is_empty() => {
                let reason = "wants a call and `tools` has no function; give one, or leave it out";
                return Err(ApiError::at("tool_choice", reason));
            }
            Some(OneOf::Text(word)) if word == "required" => Choice::Required,
            Some(OneOf::Other(NamedTool { function: NamedFunction { name }, .. })) => {
                let known = tools.iter().position(|tool| tool.name == name);
                Choice::Named(known.ok_or_else(|| {
                    let reason = format!("is {}, which `tools` has not", shown(&name));
                    ApiError::at("tool_choice.function.name", reason)
                })?)
            }
            Some(other) => {
                let wanted =
                    "\"none\", \"auto\", \"required\" or an object with the name of one of the functions";
                return Err(other.wrong("tool_choice", wanted));
            }
        };
        Ok(ToolRequest { tools: tools.into(), choice, many })
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
        // Without functions the model's layout is not needed.
        let layout = if self.told().is_empty() { ToolLayout::PLAIN } else { model.tool_layout()? }.calls;
        let (calls, starts) = match (&self.choice, format) {
            _ if self.told().is_empty() => (None, Starts::AtOnce),
            (Choice::Auto, Format::Text) => {
                let CallLayout { marker, at_start, .. } = *layout;
                (Some(self.calls(layout)?), Starts::At { marker: marker.to_owned(), at_start })
            }
            _ => (Some(self.calls(layout)?), Starts::AtOnce),
        };
        let format_rule = if calls.is_some() && self.choice != Choice::Auto { None } else { format.rule() };
        let start = match (&format_rule, &calls) {
            (None, None) => return Ok(None),
            (Some(_), None) => "start: format\n",
            (None, Some(_)) => "start: calls\n",
            (Some(_), Some(_)) if layout.at_start => {
                let message = "this model's calls are JSON, as the answers in this format are; give one of `tools` and \
                               `response_format`, or `tool_choice` \"required\"";
                return Err(ApiError::field("response_format", message));
            }
            (Some(_), Some(_)) => "start: format | calls\n",
        };
        let name = if format_rule.is_some() { format.field() } else { "tools" };
        let (calls, rule) = (calls.unwrap_or_default(), format_rule.unwrap_or_default());
        let made = model
            .vocabulary()
            .and_then(|vocabulary| vocabulary.compile(format!("{start}{calls}{rule}"), starts, name));
        match made {
            Ok(constraint) => Ok(Some(Arc::new(constraint))),
            Err(error @ ConstraintError::Refused(_)) => {
                Err(self.refused(model, format, name).unwrap_or(ApiError::constraint(&error, name)))
            }
            Err(error) => Err(ApiError::constraint(&error, name)),
        }
    }

    /// Rule `calls` over the allowed functions.
    fn calls(&self, layout: &CallLayout) -> Result<String, ApiError> {
        let named = match &self.choice {
            Choice::Named(i) => self.tools.get(*i).map(std::slice::from_ref),
            _ => None,
        };
        // A named function is called once.
        let many = self.many && named.is_none();
        let first = if let Choice::Named(i) = self.choice { i } else { 0 };
        let grammar = call_grammar(layout, named.unwrap_or(&self.tools), many, &with_options);
        grammar.map_err(|error| {
            let field = format!("tools[{}].function.parameters", first + error.tool);
            ApiError::at(field, format_args!("cannot be enforced: {error}"))
        })
    }

    /// Names the invalid one of several schemas.
    fn refused(&self, model: &ServedModel, format: &Format, name: &str) -> Option<ApiError> {
        if let Some(error) = format.refusal(model) {
            return Some(ApiError::constraint(&error, format.field()));
        }
        let alone =
            |tool: &Tool| Format::Schema { schema: tool.parameters.clone().into(), strict: tool.strict };
        let faults =
            self.told().iter().enumerate().filter(|_| name == "tools" || self.choice == Choice::Auto);
        faults.into_iter().find_map(|(i, tool)| {
            let error = alone(tool).refusal(model)?;
            Some(ApiError::constraint(&error, &format!("tools[{i}].function.parameters")))
        })
    }
}
