//! W1: the spans of a session that bear on the user's current state.
//!
//! The code's prompt asks for two spans at most; like the public code, it keeps the others that a model gives all the same.

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::schema::{self, Slot};
use super::super::shapes::{array, clamped, integer, object, one_of, share, text};
use super::super::store::{Evidence, Note};
use crate::memory::system::protocol::{SessionInput, TurnInput};

/// Most spans of a session that a reply may hold where the server holds it to its schema.
const MOST: usize = 24;
/// The code drops spans of less salience.
const SALIENT: f64 = 0.30;

/// Use of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanType {
    State,
    Support,
    /// It bears on none.
    Noise,
    /// It is of the past or of the future alone.
    PastFuture,
}

/// When a span's content holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Current,
    Past,
    Future,
    Mixed,
}

/// Strength of evidence or of a signal of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    None,
    Weak,
    Medium,
    Strong,
}

#[derive(Debug, Deserialize)]
struct Reply {
    spans: Vec<FoundSpan>,
}

#[derive(Debug, Deserialize)]
struct FoundSpan {
    turns: Vec<usize>,
    text: String,
    r#type: SpanType,
    slots: Vec<String>,
    scope: Scope,
    salience: f64,
    strength: Grade,
    change: Grade,
}

/// The shape of replies.
pub fn reply_shape() -> Value {
    let span = object([
        ("turns", array(integer(), 8)),
        ("text", text()),
        ("type", one_of(&["state", "support", "noise", "past_future"])),
        ("slots", array(text(), 3)),
        ("scope", one_of(&["current", "past", "future", "mixed"])),
        ("salience", share()),
        ("strength", one_of(&["weak", "medium", "strong"])),
        ("change", one_of(&["none", "weak", "medium", "strong"])),
    ]);
    object([("spans", array(span, MOST))])
}

/// A span that is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// `s0`, within the session.
    pub id: String,
    /// Where it stands, and its words.
    pub evidence: Evidence,
    /// Is it a state, rather than support?
    pub is_state: bool,
    pub slots: Vec<Slot>,
    pub strength: Grade,
    pub change: Grade,
}

/// The kept spans of a session, and a note for each that was found.
pub fn find(
    asker: &mut Asker<'_>,
    session: &SessionInput,
    notes: &mut Vec<Note>,
) -> Result<Result<Vec<Span>, Fault>, Unreachable> {
    let is_code = asker.settings.is_code();
    let seen: Vec<&TurnInput> = session.turns.iter().filter(|turn| !is_code || turn.role == "user").collect();
    if seen.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let time = session.time.as_ref().filter(|_| !is_code);
    let data = json!({ "turns": seen, "time": time });
    let reply: Reply = match asker.ask(Step::Spans, &data, &reply_shape())? {
        Ok(reply) => reply,
        Err(fault) => return Ok(Err(fault)),
    };
    let mut kept: Vec<Span> = Vec::new();
    for found in reply.spans {
        let dropped = dropped(&found, &seen, is_code);
        notes.push(Note {
            step: Step::Spans,
            about: found.text.clone(),
            decision: dropped.map_or("kept", |_| "dropped").to_owned(),
            reason: dropped.unwrap_or_default().to_owned(),
        });
        if dropped.is_none() {
            kept.push(span(found, session, &seen));
        }
    }
    for (at, span) in kept.iter_mut().enumerate() {
        span.id = format!("s{at}");
    }
    Ok(Ok(kept))
}

/// Why a span is not kept. The paper gives no cut by salience, and asks for no turns.
fn dropped(found: &FoundSpan, seen: &[&TurnInput], is_code: bool) -> Option<&'static str> {
    if found.text.trim().is_empty() {
        return Some("it is empty");
    }
    if !matches!(found.r#type, SpanType::State | SpanType::Support) {
        return Some("it bears on no current state");
    }
    let holds = matches!(found.scope, Scope::Current | Scope::Mixed) || found.change > Grade::Weak;
    if !holds {
        return Some("it is past or future, without a clear sign of change");
    }
    if is_code && !found.turns.iter().any(|id| seen.iter().any(|turn| turn.id == *id)) {
        return Some("it names no turn of the user");
    }
    (is_code && clamped(found.salience) < SALIENT).then_some("its salience is below .30")
}

fn span(found: FoundSpan, session: &SessionInput, seen: &[&TurnInput]) -> Span {
    let mut turns = found.turns;
    turns.retain(|id| seen.iter().any(|turn| turn.id == *id));
    if turns.is_empty() {
        // A wrong number, perhaps of right words.
        let holds = |turn: &&&TurnInput| turn.content.contains(found.text.trim());
        turns = seen.iter().filter(holds).map(|turn| turn.id).collect();
    }
    let mut slots: Vec<Slot> = found.slots.iter().filter_map(|slot| Slot::parse(slot)).collect();
    slots.dedup();
    slots.truncate(3);
    let text = found.text.trim().to_owned();
    Span {
        id: String::new(),
        evidence: Evidence { session: session.id.clone(), turns, text },
        is_state: found.r#type == SpanType::State,
        slots,
        strength: found.strength,
        change: found.change,
    }
}

/// Domains that spans hint at.
pub fn hinted(spans: &[Span]) -> Vec<&'static str> {
    let hinted = |domain: &&str| spans.iter().flat_map(|span| &span.slots).any(|s| s.domain() == *domain);
    schema::DOMAINS.iter().map(|(domain, _)| *domain).filter(|domain| hinted(domain)).collect()
}

/// Spans as prompts show them.
pub fn listed(spans: &[Span]) -> Value {
    let listed = |span: &Span| {
        let slots: Vec<String> = span.slots.iter().map(Slot::to_string).collect();
        let kind = if span.is_state { "state" } else { "support" };
        json!({ "id": span.id, "text": span.evidence.text, "type": kind, "slots": slots })
    };
    spans.iter().map(listed).collect()
}

#[cfg(test)]
impl Span {
    /// A span of given grades.
    pub fn for_test(evidence: Evidence, is_state: bool, strength: Grade, change: Grade) -> Self {
        Span { id: String::new(), evidence, is_state, slots: Vec::new(), strength, change }
    }
}
