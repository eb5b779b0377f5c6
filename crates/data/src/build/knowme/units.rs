//! Module B: units of a segment.

use serde_json::{Value, json};

use super::fields::{taken, texts};
use super::segments::sentences;
use crate::build::row::object;
use crate::build::{Found, Row, Rows, Setting, With};
use crate::ground::words::folded;

/// Fields of a unit's content.
pub(super) const CONTENT: [&str; 5] = ["action", "dialogue", "environment", "background", "mind"];
/// Most actions, and most turns of a dialogue, of a unit.
const MOST: usize = 3;

/// Holds the list `units` against `text`: verbatim anchors (white space aside), a location, some content, at most three
/// actions and three turns each. An action that is one text has as many actions as sentences.
pub(super) fn check(_: &Setting<'_>, _: &With, row: &Row) -> Found {
    let text = folded(row.text("text")?);
    let units = row.list("units")?;
    if units.is_empty() {
        return Ok(Some("there are no units".to_owned()));
    }
    Ok(units.iter().enumerate().find_map(|(nth, unit)| {
        let fault = fault(&text, unit)?;
        Some(format!("unit {}: {fault}", nth + 1))
    }))
}

fn fault(text: &str, unit: &Value) -> Option<String> {
    let of = |name: &str| texts(unit.get(name));
    match of("t_anchor").as_slice() {
        [anchor] if text.contains(&folded(anchor)) => {}
        [anchor] => return Some(format!("the text does not have its anchor {anchor:?}")),
        _ => return Some("it has no anchor".to_owned()),
    }
    if of("location").is_empty() {
        return Some("it has no location".to_owned());
    }
    if CONTENT.iter().all(|name| of(name).is_empty()) {
        return Some("it has no content".to_owned());
    }
    let count = |name: &str| match unit.get(name) {
        Some(Value::Array(_)) => of(name).len(),
        _ => of(name).first().map_or(0, |text| sentences(text).len()),
    };
    let most = ["action", "dialogue"].into_iter().find(|name| count(name) > MOST)?;
    Some(format!("its {most} has {} parts; split it so that none has more than {MOST}", count(most)))
}

/// Rows of the `units` of a segment, in the order of the telling, each with its content in `unit`.
pub(super) fn told(_: &Setting<'_>, row: &Row) -> Rows {
    let made = |(nth, unit): (usize, &Value)| {
        let content = taken(&object(unit.clone()), &CONTENT);
        let fields = json!({"t_anchor": unit["t_anchor"], "location": unit["location"], "unit": content});
        row.part(nth, row.clone().without(&["units"]).fields).with(fields)
    };
    Ok(row.list("units")?.iter().enumerate().map(made).collect())
}
