//! The last stage: events, and questions that hold against all of them and against each other.

use std::collections::BTreeSet;

use serde_json::Value;

use super::events::id;
use super::fields::texts;
use super::life::Life;
use crate::build::{Made, Row, RowError, Setting};
use crate::case::check::near::{ALIKE, Shingles, similarity};
use crate::ground::words::phrase;

/// Fields of a question that are kept.
const KEPT: [&str; 8] =
    ["task", "question", "answer", "evidence", "type", "strategy", "entity_type", "reasoning"];

/// Rows with a `question` and a `task` are questions, the others events. Questions are rejected whose evidence is no event, and that are
/// nearly an earlier one, as `data check` counts it. A question says some of the texts in `given`, and all events are searched for these: its
/// evidence alone has them if it is of T1, and none if it is of T2.
pub(super) fn assemble(_: &Setting<'_>, rows: &[Row]) -> Result<Vec<Made>, RowError> {
    let is_event = |row: &&Row| !row.fields.contains_key("question");
    let life = Life::new(rows.iter().filter(is_event).map(|row| &row.fields));
    let ids: BTreeSet<String> = life.events.iter().map(|event| id(&event.id)).collect();
    let mut asked: Vec<Shingles> = Vec::new();
    let mut one = |row: &Row| -> Result<Made, RowError> {
        if is_event(&row) {
            return Ok(Ok(row.clone()));
        }
        if let Some(fault) = fault(&life, &ids, row)? {
            return Ok(Err((row.id.clone(), fault.to_owned())));
        }
        let text = Shingles::of(row.text("question")?);
        let alike =
            |other: &Shingles| other.digest == text.digest || similarity(&other.pairs, &text.pairs) >= ALIKE;
        if asked.iter().any(alike) {
            return Ok(Err((row.id.clone(), "nearly an earlier question".to_owned())));
        }
        asked.push(text);
        let mut row = row.clone();
        row.fields.retain(|name, _| KEPT.contains(&name.as_str()));
        Ok(Ok(row))
    };
    rows.iter().map(&mut one).collect()
}

fn fault(life: &Life, ids: &BTreeSet<String>, row: &Row) -> Result<Option<&'static str>, RowError> {
    let evidence: BTreeSet<String> = row.list("evidence")?.iter().map(id).collect();
    if evidence.is_empty() || !evidence.is_subset(ids) {
        return Ok(Some("its evidence is no event"));
    }
    if row.get("answer").is_none_or(|answer| !answer.is_array() && texts(Some(answer)).is_empty()) {
        return Ok(Some("it has no answer"));
    }
    let asked = phrase(row.text("question")?);
    let said = |text: &str| asked.contains(&phrase(text));
    let given = texts(row.get("given")).into_iter().filter(|text| said(text)).map(str::to_owned);
    let given: Vec<String> = given.collect();
    let holders = if given.is_empty() { Vec::new() } else { life.holders(&given) };
    let holders: BTreeSet<String> = holders.into_iter().map(|at| id(&life.events[at].id)).collect();
    Ok(match row.get("task").and_then(Value::as_str) {
        Some("T1") if holders != evidence => Some("its answer is not unique"),
        Some("T2") if !holders.is_empty() => Some("it is true"),
        _ => None,
    })
}
