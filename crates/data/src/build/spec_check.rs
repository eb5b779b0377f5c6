//! Reads specs and refuses what is wrong in them before anything is asked.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::checks::parameters;
use super::error::BuildError;
use super::expression::{parse_expression, parse_template};
use super::makers;
use super::spec::{Ask, Spec, Stage};
use super::table::{self, KINDS};
use crate::ground::schema;
use crate::ground::words::nearest;

/// Most copies of a row.
const MOST_COPIES: usize = 1_000_000;

/// Most characters of a stage's name, which is part of a file's.
const MOST_CHARACTERS: usize = 100;

/// The key under which TOML's dates are read.
const DATE: &str = "$__toml_private_datetime";

impl Spec {
    /// Parses a spec and checks names and references; `name` is used in errors.
    pub fn parse(name: &str, text: &str) -> Result<Self, BuildError> {
        let spec: Spec = toml::from_str(text)
            .map_err(|error| BuildError::Toml { name: name.to_owned(), message: error.to_string() })?;
        spec.check(name)?;
        Ok(spec)
    }

    /// See [`Self::parse`].
    pub fn check(&self, name: &str) -> Result<(), BuildError> {
        self.faults().map_or(Ok(()), |(field, found, remedy)| {
            Err(BuildError::Field { name: name.to_owned(), field, found, remedy })
        })
    }

    fn faults(&self) -> Option<Wrong> {
        let kinds = KINDS.map(|kind| kind.name);
        if !kinds.contains(&self.kind.as_str()) {
            return Some(("kind".to_owned(), format!("{:?} is no kind", self.kind), one_of(&kinds)));
        }
        if self.stages.is_empty() {
            let wrong = ["stage", "there is none", "write at least one [[stage]]"];
            return Some(wrong.map(str::to_owned).into());
        }
        let tables = self.tables.iter().flat_map(|(name, rows)| rows.iter().map(move |row| (name, row)));
        let tables = tables.map(|(name, row)| (format!("tables.{name}"), row));
        let stages = self.stages.iter().flat_map(|stage| {
            let maps = [("set", &stage.set), ("with", &stage.with)].into_iter();
            let maps = maps.chain(stage.checks.iter().map(|call| ("checks", &call.with)));
            maps.map(|(field, map)| (format!("stage {}: {field}", stage.name), map))
        });
        for (field, map) in [("settings".to_owned(), &self.settings)].into_iter().chain(tables).chain(stages)
        {
            if let Some((name, found)) = no_json(map) {
                return Some((
                    format!("{field}.{name}"),
                    found.to_owned(),
                    "write a number or a text".to_owned(),
                ));
            }
        }
        let mut known: Vec<&str> =
            self.tables.keys().chain(self.sources.keys()).map(String::as_str).collect();
        let columns = |(name, rows): (_, &Vec<Map<String, Value>>)| {
            let columns = rows.iter().flat_map(Map::keys).cloned().collect();
            (String::as_str(name), Some(columns))
        };
        let mut fields: BTreeMap<&str, Fields> = self.tables.iter().map(columns).collect();
        let found = self.stages.iter().find_map(|stage| {
            let mut seen = formed(stage, &fields);
            let of_asks = || {
                let (field, fault) = check_asks(stage, &mut seen).err()?;
                Some((format!("stage {}: {field}", stage.name), fault, "mend it in the spec".to_owned()))
            };
            let found = self.fault(stage, &known).or_else(of_asks);
            known.push(&stage.name);
            fields.insert(&stage.name, seen);
            found
        });
        found.or_else(|| self.unread())
    }

    /// The first setting that neither the kind nor a template reads.
    fn unread(&self) -> Option<Wrong> {
        let of_kind = table::kind(&self.kind)?.settings;
        let read: Vec<_> = self.stages.iter().map(settings_of).collect();
        let all = read.iter().cloned().try_fold(BTreeSet::new(), |all, read| Some(&all | &read?));
        let named = |stage: &Stage| format!("stage {}: with", stage.name);
        let stages = self.stages.iter().zip(read).map(|(stage, read)| (named(stage), &stage.with, read));
        [("settings".to_owned(), &self.settings, all)].into_iter().chain(stages).find_map(
            |(field, given, read)| {
                let read = read?;
                let listed = of_kind.split(' ').chain(makers::SETTINGS.split(' '));
                let known: BTreeSet<&str> = listed.chain(read.iter().map(String::as_str)).collect();
                let name = given.keys().find(|name| !known.contains(name.as_str()))?;
                let known: Vec<&str> = known.into_iter().collect();
                let found = format!("no maker of {} and no template reads it", self.kind);
                Some((format!("{field}.{name}"), found, format!("{}{}", meant(name, &known), one_of(&known))))
            },
        )
    }

    /// The first rule that a stage breaks; `known`: what it may take rows of.
    fn fault(&self, stage: &Stage, known: &[&str]) -> Option<Wrong> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !(1..=MOST_CHARACTERS).contains(&stage.name.len()) || !stage.name.chars().all(is_plain) {
            let remedy = "name it by at most 100 letters, digits, - and _".to_owned();
            return Some(("stage".to_owned(), format!("{:?} is no name", stage.name), remedy));
        }
        let makers: Vec<&str> = table::makers(&self.kind).map(|(name, _)| name).collect();
        let checks: Vec<&str> = table::checks(&self.kind).map(|(name, _)| name).collect();
        let strange = |name: &&str| !known.contains(name);
        let rows = stage.rows.iter().map(String::as_str).find(strange);
        let make = stage.make.as_deref().filter(|make| !makers.contains(make));
        let calls = stage.checks.iter().map(|call| call.check.as_str()).enumerate();
        let check = calls.into_iter().find(|(_, check)| !checks.contains(check));
        let steps = stage.steps.as_ref();
        let endless = steps.is_some_and(|steps| steps.over.is_none() && steps.most.is_none());
        let no_items = steps.is_some_and(|steps| steps.over.is_none() && steps.keep_item);
        let twice = stage.make.is_some() && stage.ask.is_some();
        let no = |name: Option<&str>, what: &str| name.map(|name| format!("{name:?} {what}"));
        let found = |is_so: bool, what: &str| is_so.then(|| what.to_owned());
        let of_check = format!("checks[{}]", check.map_or(0, |(nth, _)| nth));
        let rules = [
            (
                "",
                found(known.contains(&stage.name.as_str()), "the name is taken"),
                "give it a name of its own",
            ),
            ("rows", no(rows, "is not there"), &one_of(known)),
            ("rows", found(stage.rows.is_empty(), "there are none"), &one_of(known)),
            ("make", no(make, "is no maker"), &one_of(&makers)),
            ("", found(twice, "it has a maker and an ask"), "write two stages"),
            ("steps", found(endless, "they have no end"), "write `over` or `most`"),
            ("steps", found(no_items, "they have no items to keep"), "write `over`, or no `keep_item`"),
            ("", found(steps.is_some() && stage.ask.is_none(), NO_ASK), "write an ask, or no steps"),
            ("", found(stage.tries == 0 || stage.times == 0, "tries or times is 0"), "write 1 or more"),
            ("times", found(stage.times > MOST_COPIES, "it is above 1,000,000"), "write fewer copies"),
            (&of_check, no(check.map(|(_, check)| check), "is no check"), &one_of(&checks)),
        ];
        let first = |(field, found, remedy): (&str, Option<String>, &str)| {
            let colon = if field.is_empty() { "" } else { ": " };
            Some((format!("stage {}{colon}{field}", stage.name), found?, remedy.to_owned()))
        };
        rules.into_iter().find_map(first)
    }
}

/// The first field with a value that JSON has not, and what it is. TOML has no null, which its numbers that are not finite become.
fn no_json(map: &Map<String, Value>) -> Option<(&str, &'static str)> {
    fn of(value: &Value) -> Option<&'static str> {
        match value {
            Value::Null => Some("it is a number that is not finite"),
            Value::Array(list) => list.iter().find_map(of),
            Value::Object(map) if map.contains_key(DATE) => Some("it is a date without quotes"),
            Value::Object(map) => map.values().find_map(of),
            _ => None,
        }
    }
    map.iter().find_map(|(name, value)| Some((name.as_str(), of(value)?)))
}

/// Field, what was found, and the remedy.
type Wrong = (String, String, String);

const NO_ASK: &str = "it has steps and asks nothing";

fn one_of(known: &[&str]) -> String {
    format!("write one of {}", known.join(", "))
}

/// Fields that rows may have; `None` where the spec does not say, as of sources and makers.
type Fields = Option<BTreeSet<String>>;

/// Fields of the rows that a stage takes; `known`: those of tables and earlier stages.
fn formed(stage: &Stage, known: &BTreeMap<&str, Fields>) -> Fields {
    let mut fields = BTreeSet::new();
    if stage.group.is_empty() {
        for name in &stage.rows {
            fields.extend(known.get(name.as_str()).cloned().flatten()?);
        }
    } else {
        let last = |path: &String| path.rsplit('.').next().unwrap_or_default().to_owned();
        fields.extend(stage.group.iter().map(last).chain(["rows".to_owned()]));
    }
    fields.extend((stage.times > 1).then(|| "copy".to_owned()));
    fields.extend(stage.set.keys().cloned());
    (stage.each.is_none() && stage.make.is_none()).then_some(fields)
}

/// Err if an expression does not parse, or reads what is no field.
fn check_expression(expression: &str, fields: &Fields) -> Result<(), String> {
    let (read, Some(fields)) = (parse_expression(expression)?, fields) else { return Ok(()) };
    let Some(name) = read.iter().find(|name| !fields.contains(*name)) else { return Ok(()) };
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let meant = meant(name, &fields);
    Err(format!("it reads `{name}`, which is no field; {meant}there are {}", fields.join(", ")))
}

fn meant(name: &str, known: &[&str]) -> String {
    let near = nearest(name, known.iter().copied());
    near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default()
}

/// The settings that the templates of a stage read; `None` if they may read any.
fn settings_of(stage: &Stage) -> Option<BTreeSet<String>> {
    let asks = stage.ask.iter().chain(stage.judges.iter().map(|judge| &judge.ask));
    let texts = asks.flat_map(|ask| [&ask.system, &ask.template]);
    let read = texts.flat_map(|text| parse_template(text).unwrap_or_default());
    let name = |path: String| {
        let mut names = path.split('.');
        (names.next() == Some("settings")).then(|| names.next().map(str::to_owned))
    };
    read.filter_map(name).collect()
}

/// Templates, expressions and schemas of a stage. `fields`: of the rows that it takes, then of those that it makes. Err with the field and
/// the fault.
fn check_asks(stage: &Stage, fields: &mut Fields) -> Result<(), (String, String)> {
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
    for (nth, call) in stage.checks.iter().enumerate() {
        let known = parameters(&call.check);
        let strange = |name: &&String| known.is_some_and(|known| !known.contains(&name.as_str()));
        if let (Some(name), Some(known)) = (call.with.keys().find(strange), known) {
            let fault = format!("{:?} has no such parameter, but {}", call.check, known.join(", "));
            return Err((format!("checks[{nth}].{name}"), fault));
        }
    }
    let mut seen = fields.clone();
    if let (Some(seen), Some(steps)) = (&mut seen, &stage.steps) {
        seen.extend([steps.into.clone(), "step".to_owned()]);
        seen.extend(steps.over.iter().map(|_| "item".to_owned()));
    }
    if let Some(until) = stage.steps.as_ref().and_then(|steps| steps.until.as_deref()) {
        check_expression(until, &seen).map_err(named("steps.until"))?;
    }
    let replied = stage.ask.as_ref().map_or_else(|| Some(BTreeSet::new()), Ask::fields);
    let join = |fields: &mut Fields, more: Fields| *fields = fields.take().zip(more).map(|(a, b)| &a | &b);
    join(&mut seen, replied.clone());
    for (nth, call) in stage.checks.iter().enumerate().filter(|(_, call)| call.check == "holds") {
        let expression = call.with.get("expression").and_then(|expression| expression.as_str());
        check_expression(expression.unwrap_or_default(), &seen)
            .map_err(named(&format!("checks[{nth}].expression")))?;
    }
    // Steps keep only their list.
    let kept = stage.steps.as_ref().map(|steps| steps.failed.iter().chain([&steps.into]).cloned().collect());
    join(fields, kept.map_or(replied, Some));
    for (nth, judge) in stage.judges.iter().enumerate() {
        if judge.name.is_empty() || stage.judges.iter().take(nth).any(|other| other.name == judge.name) {
            return Err((format!("judge[{nth}].name"), format!("{:?} is empty or taken", judge.name)));
        }
        let place = |field: &str| format!("judge {}: {field}", judge.name);
        check_ask(&judge.ask).map_err(|(field, fault)| (place(&format!("ask.{field}")), fault))?;
        check_expression(&judge.accept, &judge.ask.fields()).map_err(named(&place("accept")))?;
    }
    Ok(())
}

fn check_ask(ask: &Ask) -> Result<(), (String, String)> {
    let named = |field: &'static str| move |fault: String| (field.to_owned(), fault);
    parse_template(&ask.system).map_err(named("system"))?;
    parse_template(&ask.template).map_err(named("template"))?;
    if !(ask.temperature.is_finite() && ask.temperature >= 0.0) {
        return Err(named("temperature")(format!("it is {}, and 0 or above belongs there", ask.temperature)));
    }
    if ask.max_tokens == 0 {
        return Err(named("max_tokens")("it is 0, and a reply has 1 or more".to_owned()));
    }
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
