//! Specs, and the templates and expressions in them.

use std::path::Path;

use palimpsest::build::Spec;
use palimpsest::build::expression::{holds, parse_expression, parse_template, render};
use palimpsest::build::table::KINDS;
use serde_json::{Value, json};

#[test]
fn an_expression_is_true_false_or_an_error_with_its_text() {
    let Value::Object(fields) = json!({"verdict": "yes", "turns": [{"role": "user"}], "n": 3, "none": null})
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
accept = "choice == 'yes'"
ask = { of = "checker", template = "{{ old }}?", choices = ["yes", "no"] }
"#;

#[test]
fn a_misspelt_variable_is_refused_by_stage_and_name_with_a_near_one() {
    let check = |expression: &str| {
        format!("tries = 2\nchecks = [{{ check = \"holds\", expression = \"{expression}\" }}]\n[stage.ask]")
    };
    let filter =
        "[[stage]]\nname = \"rest\"\nrows = [\"old\"]\nchecks = [{ check = \"holds\", expression = \"";
    let spec = |from: &str, to: &str| {
        assert!(SPEC.contains(from), "{from}");
        Spec::parse("mine.toml", &SPEC.replace(from, to))
    };
    for (from, to, said) in [
        (
            "choice == 'yes'",
            "choise == 'yes'".to_owned(),
            "stage old: judge fits: accept: it reads `choise`, which is no field; did you mean `choice`? there are choice, p",
        ),
        (
            "choice == 'yes'",
            "name == 'yes'".to_owned(),
            "it reads `name`, which is no field; there are choice, p",
        ),
        (
            "said | length",
            "siad | length".to_owned(),
            "stage old: steps.until: it reads `siad`, which is no field; did you mean `said`?",
        ),
        ("said | length", "old | length".to_owned(), "steps.until: it reads `old`"),
        (
            "[stage.ask]",
            check("odl == name"),
            "stage old: checks[0].expression: it reads `odl`, which is no field; did you mean `old`?",
        ),
        ("[stage.ask]", check("failures == []"), "it reads `failures`"),
    ] {
        let told = spec(from, &to).unwrap_err().to_string();
        assert!(told.contains(said), "{to}: {told}");
    }
    for right in ["old == name and said == [] and step < 2", "[1, 2] | sum > range(2) | length and old"] {
        spec("[stage.ask]", &check(right)).unwrap();
    }
    // Steps keep their list; a maker or a source may give any field.
    let next = |first: &str, expression: &str| {
        Spec::parse("mine.toml", &format!("{first}{filter}{expression}\" }}]\n"))
    };
    next(SPEC, "said and name").unwrap();
    assert!(
        next(SPEC, "old")
            .unwrap_err()
            .to_string()
            .contains("stage rest: checks[0].expression: it reads `old`")
    );
    let source = SPEC.replace(
        "[[tables.things]]\nname = \"tea\"",
        "sources.things = { file = \"a.jsonl\", licence = \"CC0-1.0\" }",
    );
    next(&source, "anything").unwrap();
    let (before, _) = SPEC.split_once("[stage.ask]").unwrap();
    next(&format!("{before}make = \"distinct\"\nwith = {{ fields = [\"name\"] }}\n"), "anything").unwrap();
    let open = SPEC.replace("properties", "additionalProperties = true, properties");
    Spec::parse("mine.toml", &open.replace("[stage.ask]", &check("anything"))).unwrap();
}

#[test]
fn a_setting_that_nothing_reads_is_refused_by_name_with_what_there_is() {
    let spec = |settings: &str, with: &str, template: &str| {
        let text = SPEC
            .replace("licence = \"CC0-1.0\"", &format!("licence = \"CC0-1.0\"\nsettings = {{ {settings} }}"));
        let text = text.replace("[stage.ask]", &format!("with = {{ {with} }}\n[stage.ask]"));
        Spec::parse("mine.toml", &text.replace("Say {{ name }}.", template))
    };
    for (settings, with, template, said) in [
        (
            "ofer = 2.0",
            "",
            "Hi.",
            "mine.toml: settings.ofer: no maker of stale and no template reads it; did you mean `offer`? write one of ",
        ),
        (
            "",
            "value = []",
            "Hi.",
            "stage old: with.value: no maker of stale and no template reads it; did you mean `values`?",
        ),
        ("most_facts = 3", "", "Hi.", "settings.most_facts: "),
        ("begins = 1", "", "{{ settings.begin }}", "did you mean `begin`?"),
        ("of = 1", "", "{% set settings = {'of': 1} %}{{ settings.of }}", "settings.of: "),
    ] {
        let told = spec(settings, with, template).unwrap_err().to_string();
        assert!(told.contains(said), "{told}");
    }
    for (settings, with, template) in [
        ("offer = 2.0, tone = 1", "share = 0.5, tone = 2", "{{ settings.tone }}"),
        ("tone = { old = 1 }", "", "{% if settings.tone[name] %}{{ settings.tone.old }}{% endif %}"),
        ("tone = 1", "", "{{ settings['tone'] }}"),
    ] {
        spec(settings, with, template).unwrap();
    }
    // A name that another stage's template reads is a setting, and no parameter of this one.
    let next = "[[stage]]\nname = \"rest\"\nrows = [\"old\"]\nwith = { tone = 1 }\n";
    let text = SPEC.replace("Say {{ name }}.", "{{ settings.tone }}");
    let told = Spec::parse("mine.toml", &(text + next)).unwrap_err().to_string();
    assert!(told.contains("stage rest: with.tone: "), "{told}");
}

#[test]
fn each_kind_lists_the_settings_that_its_sources_read_and_no_other() {
    for kind in KINDS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/data/src/build").join(kind.name);
        let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let sources = files.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
        let texts: Vec<String> = sources.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        let text = texts.concat();
        let calls =
            text.split("setting.").filter(|rest| rest.starts_with("given") || rest.starts_with("needed"));
        let named = calls.filter_map(|rest| rest.split_once('(')?.1.strip_prefix('"')?.split('"').next());
        let named: Vec<&str> = named.collect();
        assert!(named.len() > 5, "{}: {named:?}", kind.name);
        for name in named {
            assert!(
                kind.settings.split(' ').any(|known| known == name),
                "{} does not list {name}",
                kind.name
            );
        }
        for name in kind.settings.split(' ') {
            assert!(text.contains(&format!("\"{name}\"")), "nothing of {} reads {name}", kind.name);
        }
    }
}

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
        ("rows = [\"things\"]", "rows = [\"things\"]\ntimes = 1000001", "times: it is above 1,000,000"),
        (
            "rows = [\"things\"]",
            "rows = [\"things\"]\nset = { a = inf }",
            "set.a: it is a number that is not finite",
        ),
        ("name = \"tea\"", "name = \"tea\"\nday = [2024-05-01]", "tables.things.day: it is a date"),
        ("name = \"tea\"", "name = \"tea\"\nn = { m = nan }", "tables.things.n: it is a number"),
        ("template = \"Say", "temperature = -0.1\ntemplate = \"Say", "ask.temperature: it is -0.1"),
        ("template = \"Say", "temperature = nan\ntemplate = \"Say", "ask.temperature: it is NaN"),
        ("template = \"Say", "max_tokens = 0\ntemplate = \"Say", "ask.max_tokens: it is 0"),
        (
            "rows = [\"things\"]",
            "rows = [\"things\"]\nchecks = [{ check = \"filled\", fields = [\"old\"], field = \"old\" }]",
            "checks[0].field: \"filled\" has no such parameter",
        ),
        ("template = \"Say", "templates = \"Say", "unknown field `templates`"),
    ] {
        assert!(SPEC.contains(from), "{from}");
        let error = Spec::parse("mine.toml", &SPEC.replace(from, to)).unwrap_err().to_string();
        assert!(error.starts_with("mine.toml") && error.contains(said), "{error}");
    }
    let long = SPEC.replace("name = \"old\"", &format!("name = {:?}", "a".repeat(101)));
    assert!(Spec::parse("mine.toml", &long).unwrap_err().to_string().contains("at most 100 letters"));
    let schema = "schema = { type = \"object\", properties = { old = { type = \"string\" } } }\n";
    let text = SPEC.replace(schema, "");
    let (before, _) = text.split_once("[stage.steps]").unwrap();
    assert!(Spec::parse("mine.toml", before).unwrap_err().to_string().contains("ask.into: it is missing"));
}
