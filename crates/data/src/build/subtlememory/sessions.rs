//! Facts of non-user sets, and drafts of sessions.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::build::{Row, RowError, Rows, Setting};
use crate::ground::words::phrase;

/// A kind of conversation and ways in which it can go.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Conversation {
    #[serde(rename = "type")]
    name: String,
    flows: Vec<String>,
}

#[derive(Deserialize)]
struct Entry {
    answer: String,
}

/// Chooses facts of a non-user record: from `entries`, each with its `answer`, and `told`, the same as sentences. Contradictory: two
/// with different answers, drawn. Temporal: one an answer, in order, in 2 sessions up to 4 facts and 3 beyond. Any-one: those with the
/// first's answer. Makes `facts`, one text a session, and `speakers`, who tells each.
pub(super) fn select(setting: &Setting<'_>, row: &Row) -> Rows {
    let (entries, told): (Vec<Entry>, Vec<String>) = (row.read("entries")?, row.read("told")?);
    let answers = entries.iter().map(|entry| phrase(&entry.answer));
    let mut facts: Vec<(String, String)> = answers.zip(told).collect();
    let mut draws = setting.draws(&row.id, 0);
    let (subtype, most) = (row.text("subtype")?, setting.needed("most_facts")?);
    if subtype == "contradictory" {
        draws.shuffle(&mut facts);
    }
    if matches!(subtype, "contradictory" | "temporal") {
        let mut seen = BTreeSet::new();
        facts.retain(|(answer, _)| seen.insert(answer.clone()));
    } else if let Some(first) = facts.first().filter(|_| subtype == "any_one").map(|first| first.0.clone()) {
        facts.retain(|(answer, _)| *answer == first);
    }
    facts.truncate(if subtype == "contradictory" { 2 } else { most });
    let n = facts.len();
    if n < 2 {
        return Err(RowError::rejected("fewer than two facts fit the relation"));
    }
    let sessions = if subtype == "temporal" { if n <= 4 { 2 } else { 3 } } else { n };
    let mut speakers = [["user", "user"], ["user", "assistant"], ["assistant", "assistant"]];
    draws.shuffle(&mut speakers);
    let [pair, ..] = speakers;
    let speaker = |nth: usize| if subtype == "contradictory" { pair[nth % 2] } else { pair[draws.index(2)] };
    let speakers: Vec<&str> = (0..sessions).map(speaker).collect();
    let mut texts = vec![Vec::new(); sessions];
    for (nth, (_, fact)) in facts.into_iter().enumerate() {
        texts[nth * sessions / n].push(fact);
    }
    let texts: Vec<String> = texts.iter().map(|texts| texts.join(" ")).collect();
    let case = row.id.replace(['/', '.'], "-");
    Ok(vec![row.copy().with(json!({"facts": texts, "speakers": speakers, "case_id": case}))])
}

/// Drafts a session for each of `facts`: `candidates` types of conversation, each with one of its flows, of which the first is preferred and
/// differs between siblings; `messages`; `signal`, how much of the persona shows (none where `signals` is empty); `speaker` of the fact.
pub(super) fn drafts(setting: &Setting<'_>, row: &Row) -> Rows {
    let facts: Vec<String> = row.read("facts")?;
    let speakers: Vec<String> = row.given("speakers")?.unwrap_or_default();
    let mut types: Vec<Conversation> = setting.needed("types")?;
    let lengths: Vec<usize> = setting.needed("lengths")?;
    let signals: Vec<String> = setting.needed("signals")?;
    let candidates: usize = setting.needed("candidates")?;
    if types.is_empty() || lengths.is_empty() || types.iter().any(|of| of.flows.is_empty()) {
        let what = "`types` or `lengths` is empty, or a type has no flow; name them under [settings]";
        return Err(RowError::fault(what));
    }
    let mut draws = setting.draws(&row.id, 0);
    draws.shuffle(&mut types);
    let mut drafts = Vec::new();
    for (nth, fact) in facts.iter().enumerate() {
        let mut others = types.clone();
        let preferred = others.remove(nth % types.len());
        draws.shuffle(&mut others);
        let chosen = std::iter::once(preferred).chain(others).take(candidates);
        let chosen = chosen.map(|of| json!({"type": of.name, "flow": of.flows[draws.index(of.flows.len())]}));
        drafts.push(json!({
            "fact": fact,
            "candidates": chosen.collect::<Vec<_>>(),
            "messages": lengths[draws.index(lengths.len())],
            "signal": signals.get(draws.index(signals.len())),
            "speaker": speakers.get(nth).map_or("user", String::as_str),
        }));
    }
    Ok(vec![row.copy().with(json!({"drafts": drafts}))])
}
