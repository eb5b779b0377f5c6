//! Writes histories in the released format: per persona a folder with its sessions and its sets.

use std::path::Path;

use palimpsest_core::digest::sha256;
use palimpsest_core::files::write_atomically;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::build::error::BuildError;
use crate::build::row::Row;
use crate::build::setting::Setting;
use crate::build::table::Published;
use crate::case::Turn;
use crate::ground::order::entry;

/// A row of the last stage.
#[derive(Deserialize)]
struct Set {
    persona: String,
    profile: String,
    case_id: String,
    case: String,
    facts: Vec<String>,
    qas: Value,
    relation: String,
    subtype: String,
    source: String,
    topic: String,
    /// Table or source of the spec that the seed is from.
    origin: String,
    drafts: Vec<Draft>,
    sessions: Vec<Session>,
    placed: Vec<Placed>,
}

#[derive(Deserialize)]
struct Draft {
    candidates: Vec<Candidate>,
    signal: Value,
}

#[derive(Deserialize)]
struct Candidate {
    #[serde(rename = "type")]
    name: String,
    flow: String,
}

#[derive(Deserialize)]
struct Session {
    #[serde(rename = "type")]
    name: String,
    turns: Vec<Turn>,
}

#[derive(Deserialize)]
struct Placed {
    session_id: String,
    order: usize,
    timestamp: String,
}

/// A session as written, its set and its tokens.
struct Told {
    order: usize,
    set: usize,
    tokens: usize,
    json: Value,
}

pub(super) fn write(setting: &Setting<'_>, rows: &[Row], dir: &Path) -> Result<Vec<Published>, BuildError> {
    let mut personas: Vec<(String, Vec<(&Row, Set)>)> = Vec::new();
    for row in rows {
        let set = Set::deserialize(&Value::Object(row.fields.clone()));
        let set =
            set.map_err(|error| BuildError::stage(setting.stage, format!("row {}: {error}", row.id)))?;
        let new = || (set.persona.clone(), Vec::new());
        entry(&mut personas, |(persona, _)| *persona == set.persona, new).1.push((row, set));
    }
    let mut published = Vec::new();
    for (persona, sets) in &personas {
        let mut told = Vec::new();
        for (nth, (_, set)) in sets.iter().enumerate() {
            told.extend(sessions(setting, nth, set)?);
        }
        told.sort_by_key(|session| session.order);
        let instances: Vec<Value> = sets.iter().map(|(_, set)| instance(set)).collect();
        let folder = dir.join(format!("persona_{persona}"));
        std::fs::create_dir_all(&folder).map_err(BuildError::io("make", &folder))?;
        let history: Vec<&Value> = told.iter().map(|session| &session.json).collect();
        for (name, rows) in
            [("history_sessions.json", json!(history)), ("bench_instances.json", json!(instances))]
        {
            let file = folder.join(name);
            let text = format!("{rows:#}\n");
            write_atomically(&file, text.as_bytes()).map_err(BuildError::io("write", &file))?;
        }
        for (nth, ((row, set), instance)) in sets.iter().zip(&instances).enumerate() {
            let details = json!({"sources": [source(setting, set)], "places": places(&told, nth)});
            published.push(Published {
                uid: set.case_id.clone(),
                row: row.id.clone(),
                digest: sha256(instance.to_string()),
                details: details.as_object().cloned().unwrap_or_default(),
            });
        }
    }
    Ok(published)
}

fn sessions(setting: &Setting<'_>, nth: usize, set: &Set) -> Result<Vec<Told>, BuildError> {
    let counts = [set.facts.len(), set.drafts.len(), set.sessions.len(), set.placed.len()];
    if counts.iter().any(|count| *count != counts[0]) {
        let [facts, drafts, sessions, placed] = counts;
        let what = format!(
            "{} has {facts} facts, {drafts} drafts, {sessions} sessions and {placed} places",
            set.case_id
        );
        return Err(BuildError::stage(setting.stage, what));
    }
    let of = |((draft, session), placed): ((&Draft, &Session), &Placed)| {
        let text: Vec<&str> = session.turns.iter().map(|turn| turn.content.as_str()).collect();
        let tokens = setting.count.count(&text.join("\n"));
        let tokens = tokens.map_err(|error| BuildError::stage(setting.stage, error.to_string()))?;
        let flow = draft.candidates.iter().find(|of| of.name == session.name).map(|of| &of.flow);
        let json = json!({
            "session_id": placed.session_id,
            "order": placed.order,
            "timestamp": placed.timestamp,
            "history": session.turns,
            "source": set.source,
            "case_id": set.case_id,
            "conversation_type": session.name,
            "conversation_flow": flow,
            "persona_id": set.persona,
            "persona_signal_level": draft.signal,
        });
        Ok(Told { order: placed.order, set: nth, tokens, json })
    };
    set.drafts.iter().zip(&set.sessions).zip(&set.placed).map(of).collect()
}

fn instance(set: &Set) -> Value {
    json!({
        "instance_id": set.case_id,
        "case_id": set.case_id,
        "case": set.case,
        "facts": set.facts,
        "persona_id": set.persona,
        "persona_str": set.profile,
        "qas": set.qas,
        "relation_type": set.relation,
        "relation_subtype": set.subtype,
        "session_ids": set.placed.iter().map(|placed| &placed.session_id).collect::<Vec<_>>(),
        "source": set.source,
        "topic": set.topic,
    })
}

fn source(setting: &Setting<'_>, set: &Set) -> Value {
    let file = setting.spec.sources.get(&set.origin);
    let licence = file.map_or(&setting.spec.licence, |source| &source.licence);
    json!({"slot": "seed", "source": set.origin, "licence": licence})
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
