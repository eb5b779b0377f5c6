//! Jinja templates and expressions of specs. Strict: a variable that is not there is an error.

use minijinja::UndefinedBehavior;
use minijinja::value::Serde;
use palimpsest_core::text::sandbox::Sandbox;
use serde_json::{Map, Value};

const NAME: &str = "of the spec";

/// Err with the reason if a template does not parse.
pub fn parse_template(source: &str) -> Result<(), String> {
    sandbox(source).map(drop)
}

/// Err with the reason if an expression does not parse.
pub fn parse_expression(expression: &str) -> Result<(), String> {
    sandbox(&json_of(expression)).map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_expression_is_true_false_or_an_error_with_its_text() {
        let Value::Object(fields) =
            json!({"verdict": "yes", "turns": [{"role": "user"}], "n": 3, "none": null})
        else {
            panic!()
        };
        for (expression, is) in [
            ("verdict == 'yes'", true),
            ("verdict in ['no', 'unsure']", false),
            ("turns | length >= 2", false),
            ("turns and turns[-1].role == 'user'", true),
            ("not (n > 2 and n < 5)", false),
            ("none is none", true),
        ] {
            assert_eq!(holds(expression, &fields), Ok(is), "{expression}");
        }
        for (expression, said) in
            [("verdict", "\"yes\""), ("missing == 1", "missing"), ("n + 1", "is 4"), ("n ==", "template")]
        {
            let error = holds(expression, &fields).unwrap_err();
            assert!(error.contains(said), "{expression}: {error}");
        }
        assert!(parse_expression("n ==").is_err() && parse_expression("n == 1").is_ok());
    }

    #[test]
    fn a_template_is_strict_and_its_ends_are_trimmed() {
        let Value::Object(fields) = json!({"old": "tea", "list": [1, 2]}) else { panic!() };
        let text = render("\n{% for n in list %}\n{{ n }} {{ old }}\n{% endfor %}\n", &fields);
        assert_eq!(text, Ok("1 tea\n2 tea".to_owned()));
        assert!(render("{{ new }}", &fields).unwrap_err().contains("new"));
        assert!(parse_template("{% for n in %}").is_err());
    }
}
