//! Module B: units of a segment.

use serde_json::{Map, Value, json};

use super::fields::{path, texts};
use super::segments::sentences;
use crate::build::error::RowError;
use crate::build::row::Row;
use crate::build::setting::Setting;
use crate::ground::words::folded;

/// Fields of a unit's content.
pub(super) const CONTENT: [&str; 5] = ["action", "dialogue", "environment", "background", "mind"];
/// Most actions, and most turns of a dialogue, of a unit.
const MOST: usize = 3;

/// Holds the list at `units` against the text at `text`: verbatim anchors (white space aside), a location, some content, at most three
/// actions and three turns each. An action that is one text has as many actions as sentences.
pub(super) fn check(
    _: &Setting<'_>,
    with: &Map<String, Value>,
    row: &Row,
) -> Result<Option<String>, RowError> {
    let text = folded(row.text(path(with, "text", "text")?)?);
    let units = row.list(path(with, "units", "units")?)?;
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
pub(super) fn told(_: &Setting<'_>, row: &Row) -> Result<Vec<Row>, RowError> {
    let made = |(nth, unit): (usize, &Value)| {
        let content = CONTENT.iter().filter_map(|name| Some(((*name).to_owned(), unit.get(name)?.clone())));
        let content: Map<String, Value> = content.collect();
        let mut fields = row.fields.clone();
        fields.shift_remove("units");
        let of = |name: &str| unit.get(name).cloned().unwrap_or_default();
        fields.extend([
            ("t_anchor".to_owned(), of("t_anchor")),
            ("location".to_owned(), of("location")),
            ("unit".to_owned(), json!(content)),
        ]);
        Row { id: format!("{}.{nth}", row.id), parents: vec![row.id.clone()], fields }
    };
    Ok(row.list("units")?.iter().enumerate().map(made).collect())
}
