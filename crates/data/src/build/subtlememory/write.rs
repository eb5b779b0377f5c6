//! Writes histories in the released format: per persona a folder with its sessions and its sets.

use std::path::Path;

use palimpsest_core::digest::sha256;
use palimpsest_core::files::write_atomically;
use serde_json::{Map, Value, json};

use crate::build::error::{BuildError, RowError};
use crate::build::kind::Published;
use crate::build::row::Row;
use crate::build::setting::Setting;
use crate::case::Turn;
use crate::ground::order::entry;

/// A session as written, its place, its set and its tokens (of what the turns say).
struct Told {
    order: usize,
    set: usize,
    tokens: usize,
    json: Value,
}

/// One folder a persona. Provenance is of sets; depths and distances are places of the history as written.
pub(super) fn write(setting: &Setting<'_>, rows: &[Row], dir: &Path) -> Result<Vec<Published>, BuildError> {
    let broken = |error: RowError| {
        let (RowError::Rejected(what) | RowError::Fault(what)) = error;
        BuildError::stage(setting.stage, what)
    };
    let mut personas: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows {
        let persona = row.text("persona").map_err(broken)?;
        entry(&mut personas, |known| known.0 == persona, || (persona, Vec::new())).1.push(row);
    }
    let mut published = Vec::new();
    for (persona, sets) in personas {
        let (mut told, mut instances) = (Vec::new(), Vec::new());
        for (nth, row) in sets.iter().enumerate() {
            let sessions = sessions(setting, nth, row).map_err(broken)?;
            instances.push(instance(row, &sessions).map_err(broken)?);
            told.extend(sessions);
        }
        told.sort_by_key(|session| session.order);
        let folder = dir.join(format!("persona_{persona}"));
        std::fs::create_dir_all(&folder).map_err(BuildError::io("make", &folder))?;
        let history = told.iter().map(|session| session.json.clone()).collect();
        let files = [("history_sessions.json", history), ("bench_instances.json", instances.clone())];
        for (name, rows) in files {
            let file = folder.join(name);
            let text = format!("{:#}\n", Value::Array(rows));
            write_atomically(&file, text.as_bytes()).map_err(BuildError::io("write", &file))?;
        }
        for (nth, (row, instance)) in sets.iter().zip(instances).enumerate() {
            let origin = row.text("origin").map_err(broken)?;
            let source = setting.spec.sources.get(origin);
            let licence = source.map_or(&setting.spec.licence, |source| &source.licence);
            let sources = json!([{"slot": "seed", "source": origin, "licence": licence}]);
            published.push(Published {
                uid: row.text("case_id").map_err(broken)?.to_owned(),
                row: row.id.clone(),
                digest: sha256(instance.to_string()),
                details: Map::from_iter([
                    ("sources".to_owned(), sources),
                    ("places".to_owned(), places(&told, nth).into()),
                ]),
            });
        }
    }
    Ok(published)
}

fn sessions(setting: &Setting<'_>, set: usize, row: &Row) -> Result<Vec<Told>, RowError> {
    let [n, drafts, placed] = ["sessions", "drafts", "placed"].map(|name| row.list(name).map(<[Value]>::len));
    let n = n?;
    if [drafts?, placed?, row.list("facts")?.len()] != [n; 3] {
        return Err(RowError::Fault(format!(
            "row {}: facts, drafts, sessions and places differ in number",
            row.id
        )));
    }
    let session = |nth: usize| {
        let [draft, session, place] = ["drafts", "sessions", "placed"].map(|name| format!("{name}.{nth}."));
        let (turns, name): (Vec<Turn>, &str) =
            (row.read(&format!("{session}turns"))?, row.text(&format!("{session}type"))?);
        let flow =
            row.list(&format!("{draft}candidates"))?.iter().find(|candidate| candidate["type"] == name);
        let said: Vec<&str> = turns.iter().map(|turn| turn.content.as_str()).collect();
        let tokens = setting.count.count(&said.join("\n"));
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
        Ok(Told { order, set, tokens: tokens.map_err(|error| RowError::Fault(error.to_string()))?, json })
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
