//! Reads specs and refuses what is wrong in them before anything is asked.

use super::error::BuildError;
use super::expression::{parse_expression, parse_template};
use super::spec::{Ask, Spec, Stage};
use super::table::{self, KINDS};
use crate::ground::schema;

impl Spec {
    /// Parses a spec and checks names and references; `name` is used in errors.
    pub fn parse(name: &str, text: &str) -> Result<Self, BuildError> {
        let spec: Spec = toml::from_str(text)
            .map_err(|error| BuildError::Toml { name: name.to_owned(), message: error.to_string() })?;
        spec.check(name)?;
        Ok(spec)
    }

    fn check(&self, name: &str) -> Result<(), BuildError> {
        let wrong = |field: &str, found: String, remedy: String| {
            let (name, field) = (name.to_owned(), field.to_owned());
            Err(BuildError::Field { name, field, found, remedy })
        };
        let one_of = |known: &[&str]| format!("write one of {}", known.join(", "));
        let kinds = KINDS.map(|kind| kind.name);
        if !kinds.contains(&self.kind.as_str()) {
            return wrong("kind", format!("{:?} is no kind", self.kind), one_of(&kinds));
        }
        if self.stages.is_empty() {
            return wrong("stage", "there is none".to_owned(), "write at least one [[stage]]".to_owned());
        }
        let mut known: Vec<&str> =
            self.tables.keys().chain(self.sources.keys()).map(String::as_str).collect();
        for stage in &self.stages {
            let place = format!("stage {}", stage.name);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if stage.name.is_empty() || !stage.name.chars().all(is_plain) {
                let remedy = "name it by letters, digits, - and _";
                return wrong("stage", format!("{:?} is no name", stage.name), remedy.to_owned());
            }
            if known.contains(&stage.name.as_str()) {
                return wrong(&place, "the name is taken".to_owned(), "give it a name of its own".to_owned());
            }
            if let Some(rows) = stage.rows.iter().find(|rows| !known.contains(&rows.as_str())) {
                return wrong(&format!("{place}: rows"), format!("{rows:?} is not there"), one_of(&known));
            }
            if stage.rows.is_empty() {
                return wrong(&format!("{place}: rows"), "there are none".to_owned(), one_of(&known));
            }
            let makers: Vec<&str> = table::makers(&self.kind).map(|(name, _)| name).collect();
            if let Some(make) = stage.make.as_deref().filter(|make| !makers.contains(make)) {
                return wrong(&format!("{place}: make"), format!("{make:?} is no maker"), one_of(&makers));
            }
            if stage.make.is_some() && stage.ask.is_some() {
                let remedy = "write two stages".to_owned();
                return wrong(&place, "it has a maker and an ask".to_owned(), remedy);
            }
            if stage.steps.as_ref().is_some_and(|steps| steps.over.is_none() && steps.most.is_none()) {
                let remedy = "write `over` or `most`".to_owned();
                return wrong(&format!("{place}: steps"), "they have no end".to_owned(), remedy);
            }
            if stage.steps.as_ref().is_some_and(|steps| steps.over.is_none() && steps.keep_item) {
                let remedy = "write `over`, or no `keep_item`".to_owned();
                return wrong(&format!("{place}: steps"), "they have no items to keep".to_owned(), remedy);
            }
            if stage.steps.is_some() && stage.ask.is_none() {
                let remedy = "write an ask, or no steps".to_owned();
                return wrong(&place, "it has steps and asks nothing".to_owned(), remedy);
            }
            if stage.tries == 0 || stage.times == 0 {
                return wrong(&place, "tries or times is 0".to_owned(), "write 1 or more".to_owned());
            }
            let checks: Vec<&str> = table::checks(&self.kind).map(|(name, _)| name).collect();
            for (nth, call) in stage.checks.iter().enumerate() {
                if !checks.contains(&call.check.as_str()) {
                    let place = format!("{place}: checks[{nth}]");
                    return wrong(&place, format!("{:?} is no check", call.check), one_of(&checks));
                }
            }
            if let Err((field, fault)) = check_asks(stage) {
                let remedy = "mend it in the spec".to_owned();
                return wrong(&format!("{place}: {field}"), fault, remedy);
            }
            known.push(&stage.name);
        }
        Ok(())
    }
}

/// Templates, expressions and schemas of a stage. Err with the field and the fault.
fn check_asks(stage: &Stage) -> Result<(), (String, String)> {
    let named = |field: &str| {
        let field = field.to_owned();
        move |fault: String| (field, fault)
    };
    if let Some(ask) = &stage.ask {
        check_ask(ask).map_err(|(field, fault)| (format!("ask.{field}"), fault))?;
        let joins = ask.into.is_none() && stage.steps.is_none();
        if joins && ask.schema.is_none() && ask.choices.is_empty() {
            return Err(("ask.into".to_owned(), "it is missing, and the reply is text".to_owned()));
        }
        if joins && ask.schema.as_ref().is_some_and(|schema| schema["type"] != "object") {
            return Err(("ask.into".to_owned(), "it is missing, and the reply is no object".to_owned()));
        }
    }
    for (nth, call) in stage.checks.iter().enumerate().filter(|(_, call)| call.check == "holds") {
        let expression = call.with.get("expression").and_then(|expression| expression.as_str());
        parse_expression(expression.unwrap_or_default())
            .map_err(named(&format!("checks[{nth}].expression")))?;
    }
    if let Some(until) = stage.steps.as_ref().and_then(|steps| steps.until.as_deref()) {
        parse_expression(until).map_err(named("steps.until"))?;
    }
    for (nth, judge) in stage.judges.iter().enumerate() {
        if judge.name.is_empty() || stage.judges.iter().take(nth).any(|other| other.name == judge.name) {
            return Err((format!("judge[{nth}].name"), format!("{:?} is empty or taken", judge.name)));
        }
        let place = |field: &str| format!("judge {}: {field}", judge.name);
        check_ask(&judge.ask).map_err(|(field, fault)| (place(&format!("ask.{field}")), fault))?;
        parse_expression(&judge.accept).map_err(named(&place("accept")))?;
    }
    Ok(())
}

fn check_ask(ask: &Ask) -> Result<(), (String, String)> {
    let named = |field: &'static str| move |fault: String| (field.to_owned(), fault);
    parse_template(&ask.system).map_err(named("system"))?;
    parse_template(&ask.template).map_err(named("template"))?;
    let Some(schema) = &ask.schema else { return Ok(()) };
    if !ask.choices.is_empty() {
        return Err(named("schema")(format!("it is given beside the choices {}", ask.choices.join(", "))));
    }
    let kind = &schema["type"];
    if kind != "object" && kind != "array" {
        return Err(named("schema")(format!("its type is {kind}, and a reply is an object or an array")));
    }
    schema::known(schema).map_err(named("schema"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r#"
kind = "stale"
licence = "CC0-1.0"
[[tables.things]]
name = "tea"
[[stage]]
name = "old"
rows = ["things"]
[stage.ask]
of = "generator"
template = "Say {{ name }}."
schema = { type = "object", properties = { old = { type = "string" } } }
[stage.steps]
into = "said"
most = 2
until = "said | length > 1"
[[stage.judge]]
name = "fits"
accept = "verdict == 'yes'"
ask = { of = "checker", template = "{{ old }}?", choices = ["yes", "no"] }
"#;

    #[test]
    fn a_fault_is_told_with_its_field() {
        Spec::parse("mine.toml", SPEC).unwrap();
        for (from, to, said) in [
            ("Say {{ name }}.", "Say {{ name", "stage old: ask.template: "),
            ("type = \"string\" } }", "pattern = \"x\" } }", "ask.schema: `old`: pattern is no keyword"),
            ("length > 1", "length >", "steps.until: "),
            ("== 'yes'", "=", "judge fits: accept: "),
            ("[\"yes\", \"no\"]", "[\"yes\"], schema = {}", "ask.schema: it is given beside the choices"),
            ("name = \"fits\"", "name = \"\"", "judge[0].name: \"\" is empty or taken"),
            ("rows = [\"things\"]", "rows = [\"none\"]", "\"none\" is not there; write one of things"),
            ("most = 2\n", "", "they have no end"),
            ("most = 2\n", "most = 2\nkeep_item = true\n", "they have no items to keep"),
            ("schema = { type = \"object\"", "schema = { type = \"string\"", "its type is \"string\""),
            ("kind = \"stale\"", "kind = \"other\"", "is no kind"),
            ("template = \"Say", "templates = \"Say", "unknown field `templates`"),
        ] {
            assert!(SPEC.contains(from), "{from}");
            let error = Spec::parse("mine.toml", &SPEC.replace(from, to)).unwrap_err().to_string();
            assert!(error.starts_with("mine.toml") && error.contains(said), "{error}");
        }
        let schema = "schema = { type = \"object\", properties = { old = { type = \"string\" } } }\n";
        let text = SPEC.replace(schema, "");
        let (before, _) = text.split_once("[stage.steps]").unwrap();
        assert!(
            Spec::parse("mine.toml", before).unwrap_err().to_string().contains("ask.into: it is missing")
        );
    }
}
