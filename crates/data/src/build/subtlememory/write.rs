//! Writes histories in the released format: per persona a folder with its sessions and its sets.

use serde_json::{Value, json};

use super::spread::histories;
use crate::build::kind::{Data, file_name};
use crate::build::{Published, Row, RowError, Setting};
use crate::case::Turn;

/// A session as written, its place, its set and its tokens (of what the turns say).
struct Told {
    order: usize,
    set: usize,
    tokens: usize,
    json: Value,
}

/// One folder a persona. Provenance is of sets; depths and distances are places of the history as written.
pub(super) fn data(setting: &Setting<'_>, rows: &[Row]) -> Result<Data, RowError> {
    let (mut files, mut published) = (Vec::new(), Vec::new());
    for (persona, sets) in histories(rows)? {
        let first = sets.first().map_or("", |at| &rows[*at].id);
        file_name(&format!("row {first}: the field `persona`"), persona)?;
        let (mut told, mut instances) = (Vec::new(), Vec::new());
        for (nth, at) in sets.iter().enumerate() {
            let sessions = sessions(setting, nth, &rows[*at])?;
            instances.push(instance(&rows[*at], &sessions)?);
            told.extend(sessions);
        }
        told.sort_by_key(|session| session.order);
        for (nth, (at, instance)) in sets.iter().zip(&instances).enumerate() {
            let (row, origin) = (&rows[*at], rows[*at].text("origin")?);
            let source = setting.spec.sources.get(origin);
            let licence = source.map_or(&setting.spec.licence, |source| &source.licence);
            let sources = [json!({"slot": "seed", "source": origin, "licence": licence})];
            let details = json!({"sources": sources, "places": places(&told, nth)});
            published.push(Published::new(row.text("case_id")?, row, instance.to_string(), details));
        }
        let history = told.into_iter().map(|session| session.json).collect();
        for (name, list) in [("history_sessions", history), ("bench_instances", instances)] {
            let text = format!("{:#}\n", Value::Array(list));
            files.push((format!("persona_{persona}/{name}.json"), text.into_bytes()));
        }
    }
    Ok((files, published))
}

fn sessions(setting: &Setting<'_>, set: usize, row: &Row) -> Result<Vec<Told>, RowError> {
    let [n, drafts, placed] = ["sessions", "drafts", "placed"].map(|name| row.list(name).map(<[Value]>::len));
    let n = n?;
    if [drafts?, placed?, row.list("facts")?.len()] != [n; 3] {
        let what = "facts, drafts, sessions and places differ in number";
        return Err(RowError::Fault(format!("row {}: {what}", row.id)));
    }
    let session = |nth: usize| {
        let [draft, session, place] = ["drafts", "sessions", "placed"].map(|name| format!("{name}.{nth}."));
        let (turns, name): (Vec<Turn>, &str) =
            (row.read(&format!("{session}turns"))?, row.text(&format!("{session}type"))?);
        let mut candidates = row.list(&format!("{draft}candidates"))?.iter();
        let flow = candidates.find(|candidate| candidate["type"] == name);
        let said: Vec<&str> = turns.iter().map(|turn| turn.content.as_str()).collect();
        let tokens = setting.count.count(&said.join("\n")).map_err(RowError::fault)?;
        let order = row.number(&format!("{place}order"))?;
        let json = json!({
            "session_id": row.text(&format!("{place}session_id"))?,
            "order": order,
            "timestamp": row.text(&format!("{place}timestamp"))?,
            "history": turns,
            "source": row.text("source")?,
            "case_id": row.text("case_id")?,
            "conversation_type": name,
            "conversation_flow": flow.map(|candidate| &candidate["flow"]),
            "persona_id": row.text("persona")?,
            "persona_signal_level": row.get(&format!("{draft}signal")),
        });
        Ok(Told { order, set, tokens, json })
    };
    (0..n).map(session).collect()
}

fn instance(row: &Row, sessions: &[Told]) -> Result<Value, RowError> {
    let ids: Vec<&Value> = sessions.iter().map(|session| &session.json["session_id"]).collect();
    Ok(json!({
        "instance_id": row.text("case_id")?,
        "case_id": row.text("case_id")?,
        "case": row.text("case")?,
        "facts": row.list("facts")?,
        "persona_id": row.text("persona")?,
        "persona_str": row.text("profile")?,
        "qas": row.list("qas")?,
        "relation_type": row.text("relation")?,
        "relation_subtype": row.text("subtype")?,
        "session_ids": ids,
        "source": row.text("source")?,
        "topic": row.text("topic")?,
    }))
}

/// Sessions and tokens before each session of a set, and from its sibling before to it: places apart, and tokens of what is between.
fn places(told: &[Told], set: usize) -> Vec<Value> {
    let mut tokens = 0;
    let mut before: Option<(usize, usize)> = None;
    let mut places = Vec::new();
    for (at, session) in told.iter().enumerate() {
        if session.set == set {
            let distance = before.map(|(place, end)| json!({"sessions": at - place, "tokens": tokens - end}));
            places.push(json!({"depth": {"sessions": at, "tokens": tokens}, "distance": distance}));
            before = Some((at, tokens + session.tokens));
        }
        tokens += session.tokens;
    }
    places
}
