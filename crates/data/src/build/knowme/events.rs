//! Events in the released shape, and windows over them.

use serde_json::{Map, Value, json};

use super::fields::{taken, texts};
use super::life::FIELDS;
use crate::build::{Found, Row, RowError, Rows, Setting, With};
use crate::ground::order::sorted_unique;

/// Fields of an event that go into the provenance.
const MADE_OF: [&str; 8] =
    ["order", "start_index", "end_index", "t_anchor", "operation", "depth", "trigger_time", "related_time"];

/// An event of a row with its fields, in any letter case, `mind` for `inner_thought` too: `id` (of the row, if it has none), `timestamp`,
/// `location` and what it says. Keeps the field `data`; other fields are left out.
pub(super) fn events(_: &Setting<'_>, row: &Row) -> Rows {
    let known = |name: &str| {
        let named = |key: &str| {
            let key = key.to_lowercase().replace([' ', '-'], "_");
            key == name || (key == "mind" && name == "inner_thought")
        };
        let text = row.fields.iter().filter(|(key, _)| named(key)).find_map(|(_, value)| {
            let text = texts(Some(value)).join(" ");
            (!text.is_empty()).then(|| json!(text))
        });
        (name.to_owned(), text.unwrap_or_default())
    };
    let id = row.get("id").filter(|id| id.is_u64() || id.is_string()).cloned();
    let mut fields = Map::from_iter([("id".to_owned(), id.unwrap_or_else(|| json!(row.id)))]);
    fields.extend(["timestamp", "location"].map(known));
    let said = FIELDS.map(known);
    if said.iter().all(|(_, text)| text.is_null()) {
        return Err(RowError::rejected("an event that says nothing"));
    }
    fields.extend(said);
    let made_of = taken(&row.fields, &MADE_OF);
    fields.extend((!made_of.is_empty()).then(|| ("made_of".to_owned(), json!(made_of))));
    fields.extend(taken(&row.fields, &["data"]));
    Ok(vec![Row { fields, ..row.copy() }])
}

/// Rows of `window` consecutive events each, in `events`, of the list `rows`, one for each `task` of the setting `tasks`.
pub(super) fn windows(setting: &Setting<'_>, row: &Row) -> Rows {
    let (size, tasks): (usize, Map<String, Value>) = (setting.needed("window")?, setting.needed("tasks")?);
    let mut made = Vec::new();
    for (nth, events) in row.list("rows")?.chunks(size.max(1)).enumerate() {
        let mut events = events.to_vec();
        for event in events.iter_mut().filter_map(Value::as_object_mut) {
            event.retain(|name, value| !value.is_null() && !["made_of", "data"].contains(&name.as_str()));
        }
        for task in tasks.keys() {
            let fields = json!({"task": task, "events": events});
            made.push(row.part(format!("{task}-{nth}"), Map::new()).with(fields));
        }
    }
    Ok(made)
}

/// Holds `evidence` against the row's `events`: at least one event, each among them. If the `answer` is a list, its ranks are 1, 2, .. and its
/// events say something.
pub(super) fn cites(_: &Setting<'_>, _: &With, row: &Row) -> Found {
    let cited = row.list("evidence")?;
    let known: Vec<String> = row.list("events")?.iter().map(|event| id(&event["id"])).collect();
    if cited.is_empty() {
        return Ok(Some("it cites no event".to_owned()));
    }
    if let Some(strange) = cited.iter().find(|cited| !known.contains(&id(cited))) {
        return Ok(Some(format!("there is no event {}", id(strange))));
    }
    let Some(ranked) = row.get("answer").and_then(Value::as_array) else { return Ok(None) };
    let ranks = sorted_unique(ranked.iter().filter_map(|item| item["rank"].as_u64()));
    let whole = ranks.len() == ranked.len() && ranks.iter().zip(1..).all(|(rank, place)| *rank == place);
    let said = ranked.iter().all(|item| !texts(item.get("event")).is_empty());
    Ok((!whole || !said || ranked.len() < 2)
        .then(|| "its answer does not rank two or more events from 1 on".to_owned()))
}

/// Ids are equal if their texts are.
pub(super) fn id(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| text.trim().to_owned())
}
