//! W1: extracts spans of a session that bear on the user's current state.
//!
//! The code's prompt asks for at most two spans; like the public code, further ones are kept.

use serde::Deserialize;
use serde_json::json;

use super::{Grade, Session, Span};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::model::Step;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::shapes::clamped;
use crate::memory::cupmem::store::Evidence;
use crate::memory::system::protocol::{SessionInput, TurnInput};

/// Minimum salience in the code's variant.
const SALIENT: f64 = 0.30;

#[derive(Deserialize)]
struct Reply {
    spans: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    turns: Vec<usize>,
    text: String,
    r#type: String,
    slots: Vec<String>,
    scope: String,
    salience: f64,
    strength: Grade,
    change: Grade,
}

impl Session<'_, '_> {
    pub(super) fn find_spans(&mut self, session: &SessionInput) -> Result<Vec<Span>, Stop> {
        let is_code = self.asker.settings.is_code();
        let seen: Vec<&TurnInput> =
            session.turns.iter().filter(|turn| !is_code || turn.role == "user").collect();
        if seen.is_empty() {
            return Ok(Vec::new());
        }
        let time = session.time.as_ref().filter(|_| !is_code);
        let reply: Reply = self.asker.ask(Step::Spans, &json!({ "turns": seen, "time": time }))?;
        let mut kept: Vec<Span> = Vec::new();
        for found in reply.spans {
            let dropped = dropped(&found, &seen, is_code);
            let decision = dropped.map_or("kept", |_| "dropped");
            self.note(Step::Spans, &found.text, decision, dropped.unwrap_or_default());
            if dropped.is_none() {
                kept.push(span(format!("s{}", kept.len()), found, session, &seen));
            }
        }
        Ok(kept)
    }
}

/// Reason to drop a span. The paper gives no salience cut and asks for no turn ids.
fn dropped(found: &Found, seen: &[&TurnInput], is_code: bool) -> Option<&'static str> {
    if found.text.trim().is_empty() {
        return Some("it is empty");
    }
    if !matches!(found.r#type.as_str(), "state" | "support") {
        return Some("it bears on no current state");
    }
    let holds = matches!(found.scope.as_str(), "current" | "mixed") || found.change > Grade::Weak;
    if !holds {
        return Some("it is past or future, without a clear sign of change");
    }
    if is_code && !found.turns.iter().any(|id| seen.iter().any(|turn| turn.id == *id)) {
        return Some("it names no turn of the user");
    }
    (is_code && clamped(found.salience) < SALIENT).then_some("its salience is below .30")
}

fn span(id: String, found: Found, session: &SessionInput, seen: &[&TurnInput]) -> Span {
    let mut turns = found.turns;
    turns.retain(|id| seen.iter().any(|turn| turn.id == *id));
    if turns.is_empty() {
        // The turn id may be wrong while the words are right.
        let holds = |turn: &&&TurnInput| turn.content.contains(found.text.trim());
        turns = seen.iter().filter(holds).map(|turn| turn.id).collect();
    }
    let mut slots: Vec<Slot> = found.slots.iter().filter_map(|slot| Slot::parse(slot)).collect();
    slots.dedup();
    slots.truncate(3);
    let text = found.text.trim().to_owned();
    Span {
        id,
        evidence: Evidence { session: session.id.clone(), turns, text },
        is_state: found.r#type == "state",
        slots,
        strength: found.strength,
        change: found.change,
    }
}
