//! Jinja templates and expressions of specs. Strict: a variable that is not there is an error.

use std::collections::BTreeSet;

use minijinja::UndefinedBehavior;
use minijinja::value::Serde;
use palimpsest_core::text::sandbox::Sandbox;
use serde_json::{Map, Value};

const NAME: &str = "of the spec";

/// In the errors of templates and expressions that read what is not there.
pub const UNDEFINED: &str = "undefined value";

/// The variables that a template reads, with their attributes. Err with the reason if it does not parse.
pub fn parse_template(source: &str) -> Result<BTreeSet<String>, String> {
    Ok(sandbox(source)?.variables(NAME, true))
}

/// The variables that an expression reads. Err with the reason if it does not parse.
pub fn parse_expression(expression: &str) -> Result<BTreeSet<String>, String> {
    Ok(sandbox(&json_of(expression))?.variables(NAME, false))
}

/// The text of a template for these variables, without white space at its ends.
pub fn render(template: &str, fields: &Map<String, Value>) -> Result<String, String> {
    let bytes = fields.values().map(|value| value.to_string().len()).sum();
    let text = sandbox(template)?.render(NAME, minijinja::Value::from(Serde(fields)), bytes);
    text.map(|text| text.trim().to_owned()).map_err(|error| error.to_string())
}

/// True if a Jinja expression over the fields is true; Err if it is no boolean, or has a variable that is not there.
pub fn holds(expression: &str, fields: &Map<String, Value>) -> Result<bool, String> {
    match render(&json_of(expression), fields)?.as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(format!(
            "`{expression}` is {other}, and true or false belongs there; compare it with a value"
        )),
    }
}

fn json_of(expression: &str) -> String {
    format!("{{{{ ({expression}) | tojson }}}}")
}

fn sandbox(source: &str) -> Result<Sandbox, String> {
    let mut sandbox = Sandbox::new(UndefinedBehavior::Strict).map_err(|error| error.to_string())?;
    sandbox.add_template(NAME, source.to_owned()).map_err(|error| error.to_string())?;
    Ok(sandbox)
}
