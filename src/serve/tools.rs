//! `tools` and `tool_choice`: functions that an answer may or must call, and the grammar of such answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::format::{Format, check_name, with_options};
use super::model::ServedModel;
use palimpsest_core::engine::{Constraint, ConstraintError, Starts};
use palimpsest_core::text::{CallLayout, CallReader, Tool, call_grammar};

/// Most functions of a request, as at OpenAI.
const MOST_TOOLS: usize = 128;

/// Which functions an answer calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// None; the model is not told of them.
    None,
    /// As the model likes.
    Auto,
    /// One at least.
    Required,
    /// This one.
    Named(usize),
}

/// The functions of a request.
#[derive(Debug, Clone)]
pub struct ToolRequest {
    tools: Arc<[Tool]>,
    choice: Choice,
    many: bool,
}

impl ToolRequest {
    /// The values of `tools`, `tool_choice` and `parallel_tool_calls`.
    ///
    /// # Errors
    /// What cannot be served, with its field.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let list = fields.list("tools")?.unwrap_or_default();
        if list.len() > MOST_TOOLS {
            let message = format!("`tools` has {} functions; give at most {MOST_TOOLS}", list.len());
            return Err(ApiError::field("tools", message));
        }
        let tools: Vec<Tool> =
            list.iter().enumerate().map(|(i, value)| read_tool(i, value)).collect::<Result<_, _>>()?;
        let mut seen = BTreeSet::new();
        if let Some(i) = tools.iter().position(|tool| !seen.insert(tool.name.as_str())) {
            let message = "two functions have this name; names are unique";
            return Err(ApiError::field(format!("tools[{i}].function.name"), message));
        }
        let choice = read_choice(fields, &tools)?;
        let many = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        Ok(ToolRequest { tools: tools.into(), choice, many })
    }

    /// The functions that the model is told of.
    pub fn told(&self) -> &[Tool] {
        if self.choice == Choice::None { &[] } else { &self.tools }
    }

    /// What tells calls from the text of an answer, where it may call.
    pub fn reader(&self, model: &ServedModel) -> Option<CallReader> {
        let layout = model.tool_layout().calls;
        (!self.told().is_empty()).then(|| CallReader::new(layout, Arc::clone(&self.tools)))
    }

    /// What the answer is held to: its format, its calls, or either; `None` where it is free.
    ///
    /// # Errors
    /// What cannot be enforced, with its field.
    pub fn constraint(
        &self,
        model: &ServedModel,
        format: &Format,
    ) -> Result<Option<Arc<Constraint>>, ApiError> {
        let layout = model.tool_layout().calls;
        let (calls, starts) = match (&self.choice, format) {
            _ if self.told().is_empty() => (None, Starts::AtOnce),
            (Choice::Auto, Format::Text) => {
                let CallLayout { marker, at_start, .. } = *layout;
                (Some(self.calls(layout)?), Starts::At { marker: marker.to_owned(), at_start })
            }
            _ => (Some(self.calls(layout)?), Starts::AtOnce),
        };
        // An answer that must call is no text.
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

    /// The rule `calls` of those functions that may be called.
    fn calls(&self, layout: &CallLayout) -> Result<String, ApiError> {
        let named = match &self.choice {
            Choice::Named(i) => self.tools.get(*i).map(std::slice::from_ref),
            _ => None,
        };
        // One function by name is called once.
        let many = self.many && named.is_none();
        let first = if let Choice::Named(i) = self.choice { i } else { 0 };
        let grammar = call_grammar(layout, named.unwrap_or(&self.tools), many, &with_options);
        grammar.map_err(|(i, reason)| {
            let field = format!("tools[{}].function.parameters", first + i);
            ApiError::field(field.clone(), format!("`{field}` cannot be enforced: {reason}"))
        })
    }

    /// Which schema of several is at fault, with the reason.
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

fn read_tool(i: usize, value: &Value) -> Result<Tool, ApiError> {
    let fields = Fields::of(value, &format!("tools[{i}]"))?;
    fields.only(&["type", "function"])?;
    fields.required("type")?;
    let kind = fields.text("type")?.unwrap_or_default();
    if kind != "function" {
        let kind: String = kind.chars().take(40).collect();
        let name = fields.name("type");
        return Err(ApiError::field(name.clone(), format!("`{name}` is {kind:?}; give \"function\"")));
    }
    let function = Fields::of(fields.required("function")?, &fields.name("function"))?;
    function.only(&["name", "description", "parameters", "strict"])?;
    function.required("name")?;
    let name = function.text("name")?.unwrap_or_default();
    check_name(&function.name("name"), name)?;
    let mut parameters = match function.get("parameters") {
        // A function without arguments.
        None => Map::from_iter([
            ("properties".to_owned(), json!({})),
            ("additionalProperties".to_owned(), json!(false)),
        ]),
        Some(Value::Object(parameters)) => parameters.clone(),
        Some(value) => return Err(wrong(&function.name("parameters"), value, "an object")),
    };
    match parameters.get("type") {
        None => drop(parameters.insert("type".to_owned(), "object".into())),
        Some(kind) if kind == "object" => {}
        Some(_) => {
            let field = function.name("parameters");
            let message = format!("`{field}.type` is not \"object\"; arguments are an object");
            return Err(ApiError::field(field, message));
        }
    }
    Ok(Tool {
        name: name.to_owned(),
        description: function.text("description")?.map(str::to_owned),
        parameters,
        strict: function.flag("strict")?.unwrap_or(false),
    })
}

fn read_choice(fields: &Fields<'_>, tools: &[Tool]) -> Result<Choice, ApiError> {
    let name = "tool_choice";
    let choice = match fields.get(name) {
        None => return Ok(if tools.is_empty() { Choice::None } else { Choice::Auto }),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Choice::None,
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            other => {
                let other: String = other.chars().take(40).collect();
                let message =
                    format!("`{name}` is {other:?}; give none, auto, required or one of the functions");
                return Err(ApiError::field(name, message));
            }
        },
        Some(value @ Value::Object(_)) => {
            let choice = Fields::of(value, name)?;
            choice.only(&["type", "function"])?;
            if choice.text("type")?.is_some_and(|kind| kind != "function") {
                let message = "`tool_choice.type` is not \"function\"; give that";
                return Err(ApiError::field("tool_choice.type", message));
            }
            let function = Fields::of(choice.required("function")?, "tool_choice.function")?;
            function.only(&["name"])?;
            function.required("name")?;
            let named = function.text("name")?.unwrap_or_default();
            match tools.iter().position(|tool| tool.name == named) {
                Some(i) => Choice::Named(i),
                None => {
                    let named: String = named.chars().take(80).collect();
                    let message = format!("`tool_choice.function.name` is {named:?}, which `tools` has not");
                    return Err(ApiError::field("tool_choice.function.name", message));
                }
            }
        }
        Some(value) => return Err(wrong(name, value, "none, auto, required or one of the functions")),
    };
    if tools.is_empty() && choice == Choice::Required {
        let message = "`tool_choice` wants a call and `tools` has no function; give one, or leave it out";
        return Err(ApiError::field(name, message));
    }
    Ok(choice)
}
