//! `response_format` as a grammar.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::json::text;
use super::model::ServedModel;
use palimpsest_core::engine::json_schema::{fault, grammar_rule};
use palimpsest_core::engine::{ConstraintError, Starts};

const SCHEMA: &str = "response_format.json_schema.schema";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    #[serde(rename = "type")]
    kind: FormatKind,
    json_schema: Option<JsonSchema>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonSchema {
    #[serde(rename = "name", deserialize_with = "name")]
    _name: String,
    #[serde(rename = "description")]
    _description: Option<String>,
    schema: Option<Map<String, Value>>,
    #[serde(default)]
    strict: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    Text,
    Object,
    Schema {
        schema: Value,
        /// Refuse schemas that cannot be enforced in full.
        strict: bool,
    },
}

impl Format {
    pub fn new(field: Option<ResponseFormat>) -> Result<Self, ApiError> {
        let Some(ResponseFormat { kind, json_schema }) = field else { return Ok(Format::Text) };
        let at = "response_format.json_schema";
        match (kind, json_schema) {
            (FormatKind::Text, None) => Ok(Format::Text),
            (FormatKind::JsonObject, None) => Ok(Format::Object),
            (FormatKind::JsonSchema, None) => Err(ApiError::missing(at)),
            (FormatKind::JsonSchema, Some(JsonSchema { schema, strict, .. })) => {
                let schema = schema.map_or_else(|| json!({"type": "object"}), Value::Object);
                let fault = fault(&schema, strict);
                fault.map_or(Ok(Format::Schema { schema, strict }), |fault| Err(ApiError::at(SCHEMA, fault)))
            }
            (FormatKind::Text | FormatKind::JsonObject, Some(_)) => Err(ApiError::unknown(at)),
        }
    }

    /// Grammar rule of the answer; `None` for free text.
    pub fn rule(&self) -> Option<String> {
        Some(match self {
            Format::Text => return None,
            Format::Object => grammar_rule("format", json!({"type": "object"}), true),
            Format::Schema { schema, strict } => grammar_rule("format", schema.clone(), *strict),
        })
    }

    pub fn field(&self) -> &'static str {
        match self {
            Format::Schema { .. } => SCHEMA,
            Format::Text | Format::Object => "response_format",
        }
    }

    /// Why the format alone cannot be enforced, if so.
    pub fn refusal(&self, model: &ServedModel) -> Option<ConstraintError> {
        let grammar = format!("start: format\n{}", self.rule()?);
        let vocabulary = model.vocabulary();
        vocabulary.and_then(|words| words.compile(grammar, Starts::AtOnce, self.field())).err()
    }
}

/// `deserialize_with` of a name valid in OpenAI's API.
pub fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let known = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let fits = |name: &str| (1..=64).contains(&name.len()) && name.chars().all(known);
    text(from, "1 to 64 letters, digits, underscores and dashes", fits)
}
