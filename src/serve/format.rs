//! `response_format`: what an answer may be, as a grammar.

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::model::ServedModel;
use palimpsest_core::engine::{ConstraintError, Starts};

/// The field of a schema.
const SCHEMA: &str = "response_format.json_schema.schema";

/// White space between the parts of JSON: none, a space, or a new line with its indent. Unbounded, a model may write it for ever.
const SPACE: &str = "( |\\n {0,64})";

/// What an answer may be.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    /// Any text.
    Text,
    /// A JSON object.
    Object,
    /// JSON that fits a schema.
    Schema {
        /// The schema.
        schema: Value,
        /// Whether a schema that cannot be enforced in full is refused.
        strict: bool,
    },
}

impl Format {
    /// The value of `response_format`.
    ///
    /// # Errors
    /// What cannot be served, with its field.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let Some(value) = fields.get("response_format") else { return Ok(Format::Text) };
        let format = Fields::of(value, "response_format")?;
        format.required("type")?;
        match format.text("type")?.unwrap_or_default() {
            "text" => format.only(&["type"]).map(|()| Format::Text),
            "json_object" => format.only(&["type"]).map(|()| Format::Object),
            "json_schema" => {
                format.only(&["type", "json_schema"])?;
                read_schema(format.required("json_schema")?)
            }
            other => {
                let other: String = other.chars().take(40).collect();
                let message =
                    format!("`response_format.type` is {other:?}; give text, json_object or json_schema");
                Err(ApiError::field("response_format.type", message))
            }
        }
    }

    /// The rule of a grammar that the answer is; `None` for any text.
    pub fn rule(&self) -> Option<String> {
        let schema = match self {
            Format::Text => return None,
            Format::Object => with_options(json!({"type": "object"}), true),
            Format::Schema { schema, strict } => with_options(schema.clone(), *strict),
        };
        Some(format!("format: %json {schema}\n"))
    }

    /// The field that an error of it names.
    pub fn field(&self) -> &'static str {
        match self {
            Format::Schema { .. } => SCHEMA,
            Format::Text | Format::Object => "response_format",
        }
    }

    /// Why it cannot be enforced by itself, where it cannot.
    pub fn refusal(&self, model: &ServedModel) -> Option<ConstraintError> {
        let grammar = format!("start: format\n{}", self.rule()?);
        model
            .vocabulary()
            .and_then(|vocabulary| vocabulary.compile(grammar, Starts::AtOnce, self.field()))
            .err()
    }
}

fn read_schema(value: &Value) -> Result<Format, ApiError> {
    let fields = Fields::of(value, "response_format.json_schema")?;
    fields.only(&["name", "description", "schema", "strict"])?;
    fields.required("name")?;
    check_name(&fields.name("name"), fields.text("name")?.unwrap_or_default())?;
    fields.text("description")?;
    let strict = fields.flag("strict")?.unwrap_or(false);
    let schema = match fields.get("schema") {
        None => json!({"type": "object"}),
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(value) => return Err(wrong(SCHEMA, value, "an object")),
    };
    Ok(Format::Schema { schema, strict })
}

/// Refuses names that OpenAI's API does not take.
pub fn check_name(field: &str, name: &str) -> Result<(), ApiError> {
    let known = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(known) {
        let name: String = name.chars().take(80).collect();
        let message = format!("`{field}` is {name:?}; give 1 to 64 letters, digits, underscores and dashes");
        return Err(ApiError::field(field, message));
    }
    Ok(())
}

/// A schema with how it is to be enforced: where it is not `strict`, what a grammar cannot say is left to the model.
pub fn with_options(schema: Value, strict: bool) -> Value {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        // `true` and `false` are schemas, too.
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    let options = json!({"whitespace_flexible": true, "whitespace_pattern": SPACE, "lenient": !strict});
    schema.insert("x-guidance".to_owned(), options);
    schema.into()
}
