//! Checks and makers that all kinds have.

use palimpsest::build::pool::Pool;
use palimpsest::build::table::{Maker, check, maker};
use palimpsest::build::{Row, RowError, Setting};
use serde_json::{Value, json};

use super::{characters, object, row, set};

/// The fault that the check finds in a row with these fields.
fn found(name: &str, with: &Value, fields: &Value) -> Result<Option<String>, RowError> {
    let check = check("stale", name).unwrap_or_else(|| panic!("{name} is no check"));
    let row = row("a", fields.clone());
    set(json!({}), &Pool::default(), &characters(), |setting| check(setting, &object(with.clone()), &row))
}

#[test]
fn each_check_passes_what_is_right_and_finds_what_is_wrong() {
    let turns = |texts: &[&str]| -> Value {
        let turn =
            |(at, text): (usize, &&str)| json!({"role": (["user", "assistant"][at % 2]), "content": text});
        texts.iter().enumerate().map(turn).collect()
    };
    for (name, with, right, wrong) in [
        ("filled", json!({"fields": ["x"]}), json!({"x": "Stop the car."}), json!({"x": " \n"})),
        ("filled", json!({"fields": ["x"]}), json!({"x": "0"}), json!({"x": "STOP."})),
        ("filled", json!({"fields": ["x"]}), json!({"x": ["a"]}), json!({"x": []})),
        ("filled", json!({"fields": ["x"]}), json!({"x": ["a", "b"]}), json!({"x": ["a", "N/A"]})),
        ("filled", json!({"fields": ["x.y"]}), json!({"x": {"y": "a"}}), json!({"x": {}})),
        ("filled", json!({"fields": ["x"]}), json!({"x": 0}), json!({"x": null})),
        ("filled", json!({"fields": ["x"]}), json!({"x": "Nullify"}), json!({"x": "NULL"})),
        (
            "distinct",
            json!({"fields": ["x", "y"]}),
            json!({"x": "a b", "y": "a c"}),
            json!({"x": "a b", "y": "A  B "}),
        ),
        ("distinct", json!({"fields": ["x"]}), json!({"x": ["a", "b"]}), json!({"x": ["a", "a"]})),
        (
            "no-words-of",
            json!({"text": "x", "of": ["y"], "except": ["z"]}),
            // Function words, words for times and words of `z` do not count.
            json!({"x": "Where do they row on a Sunday?", "y": "They row every Sunday before dawn.", "z": "I rowed."}),
            json!({"x": "Where were they rowing?", "y": "They row before dawn.", "z": ""}),
        ),
        (
            "no-phrases",
            json!({"text": "x", "phrases": ["used to", "any more"]}),
            json!({"x": "The used tools; to anyone, more."}),
            json!({"x": "I USED  to row."}),
        ),
        (
            "has",
            json!({"text": "x", "value": "y"}),
            json!({"x": "Well: I row.", "y": "I row"}),
            json!({"x": "I rowed", "y": "I row"}),
        ),
        (
            "has",
            json!({"text": "x", "value": "y"}),
            json!({"x": "Well.", "y": ""}),
            json!({"x": "Well.", "y": "Wel"}),
        ),
        (
            "no-change-words",
            json!({"text": "x"}),
            json!({"x": "I row at dawn."}),
            json!({"x": "I don't row."}),
        ),
        (
            "sentences",
            json!({"fields": ["x"]}),
            json!({"x": ["Is it?", "\"It is.\""]}),
            json!({"x": ["It is.", "and then"]}),
        ),
        (
            "size",
            json!({"field": "x", "least": 2, "most": 3}),
            json!({"x": "one two"}),
            json!({"x": "one two three four"}),
        ),
        ("size", json!({"field": "x", "least": 2, "most": 3}), json!({"x": [1, 2, 3]}), json!({"x": [1]})),
        ("one-of", json!({"field": "x", "of": ["yes", 3]}), json!({"x": " YES"}), json!({"x": "yes!"})),
        ("one-of", json!({"field": "x", "of": ["yes", 3]}), json!({"x": 3}), json!({})),
        (
            "equals",
            json!({"field": "x", "to": "y.0"}),
            json!({"x": "a", "y": ["A"]}),
            json!({"x": "a", "y": ["b"]}),
        ),
        (
            "turns",
            json!({"field": "x", "least": 2, "most": 2}),
            json!({"x": turns(&["Hi.", "Hello."])}),
            json!({"x": turns(&["Hi."])}),
        ),
        (
            "turns",
            json!({"field": "x"}),
            json!({"x": turns(&["Hi."])}),
            json!({"x": [{"role": "assistant", "content": "Hi."}]}),
        ),
        (
            "turns",
            json!({"field": "x"}),
            json!({"x": turns(&["Hi.", "Go on."])}),
            json!({"x": turns(&["Hi.", "continue"])}),
        ),
        ("turns", json!({"field": "x"}), json!({"x": turns(&["Hi."])}), json!({"x": ["Hi."]})),
        (
            "told",
            json!({"session": "x", "fact": "y"}),
            json!({"x": turns(&["Well, I row the red boat at dawn.", "Good."]), "y": "I row a red boat."}),
            json!({"x": turns(&["Well, I row.", "The red boat, I know."]), "y": "I row a red boat."}),
        ),
    ] {
        assert_eq!(found(name, &with, &right), Ok(None), "{name} {with} {right}");
        let fault = found(name, &with, &wrong);
        assert!(matches!(&fault, Ok(Some(said)) if !said.is_empty()), "{name} {with} {wrong}: {fault:?}");
    }
    for (name, with) in
        [("size", json!({})), ("size", json!({"field": 3})), ("equals", json!({"field": "x"}))]
    {
        let fault = found(name, &with, &json!({"x": "a"}));
        assert!(matches!(fault, Err(RowError::Fault(_))), "{name} {with}: {fault:?}");
    }
}

fn all(setting: &Setting<'_>, name: &str, rows: &[Row]) -> Vec<Result<String, String>> {
    let Some(Maker::All(make)) = maker("stale", name) else { panic!("{name} is no maker of all rows") };
    let made = make(setting, rows).unwrap();
    made.into_iter().map(|made| made.map(|row| row.id).map_err(|(id, why)| format!("{id}: {why}"))).collect()
}

#[test]
fn equal_rows_are_dropped() {
    let rows: Vec<Row> =
        (0..9).map(|nth| row(&nth.to_string(), json!({"x": format!("Text {}", nth % 7)}))).collect();
    let with = json!({"fields": ["x"]});
    let distinct = set(with, &Pool::default(), &characters(), |setting| all(setting, "distinct", &rows));
    assert!(distinct[..7].iter().all(Result::is_ok));
    assert_eq!(distinct[7], Err("7: equal to an earlier row".to_owned()));
}
