//! W1 extracts spans of a session that bear on the user's current state; W2 turns them into candidates, each one current proposition in a
//! slot of the schema.
//!
//! The code's prompt asks for at most two spans; like the public code, further ones are kept. The paper gives no cut of salience or
//! confidence and asks for no turn ids.

use serde::Deserialize;
use serde_json::json;

use super::{Grade, Session, Span, listed, not_current, spans_listed};
use crate::memory::cupmem::asking::{Stop, clamped};
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::settings::Step;
use crate::memory::cupmem::store::{Evidence, Kind, Update};
use crate::memory::system::protocol::{SessionInput, TurnInput};
use palimpsest_data::ground::words::folded;

/// Minimum salience in the code's variant.
const SALIENT: f64 = 0.30;
/// Candidates per session in the paper's variant (our limit; the public code has none).
const CANDIDATES: usize = 8;

#[derive(Deserialize)]
struct Spans {
    spans: Vec<FoundSpan>,
}

#[derive(Deserialize)]
struct FoundSpan {
    turns: Vec<usize>,
    text: String,
    r#type: String,
    slots: Vec<String>,
    scope: String,
    salience: f64,
    strength: Grade,
    change: Grade,
}

#[derive(Deserialize)]
struct Candidates {
    candidates: Vec<Candidate>,
}

#[derive(Deserialize)]
struct Candidate {
    domain: String,
    slot: String,
    value: String,
    source: String,
    kind: Kind,
    confidence: f64,
    spans: Vec<String>,
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
        let reply: Spans = self.asker.ask(Step::Spans, &json!({ "turns": seen, "time": time }))?;
        let mut kept: Vec<Span> = Vec::new();
        for found in reply.spans {
            let dropped = found.dropped(&seen, is_code);
            let decision = dropped.map_or("kept", |_| "dropped");
            self.note(Step::Spans, &found.text, decision, dropped.unwrap_or_default());
            if dropped.is_none() {
                kept.push(found.span(format!("s{}", kept.len()), &session.id, &seen));
            }
        }
        Ok(kept)
    }

    pub(super) fn find_candidates(&mut self) -> Result<Vec<Update>, Stop> {
        let (store, is_code) = (self.store, self.asker.settings.is_code());
        let hinted: Vec<&str> = self.spans.iter().flat_map(|span| &span.slots).map(Slot::domain).collect();
        let of_hinted = |slot: &Slot| hinted.contains(&slot.domain());
        let (former, unknown) = not_current(store, |slot| is_code && of_hinted(slot));
        let data = json!({
            "spans": spans_listed(&self.spans),
            "known": listed(store.active().filter(|item| of_hinted(&item.slot))),
            "former": former,
            "unknown": unknown,
        });
        let reply: Candidates = self.asker.ask(Step::Candidates, &data)?;
        let mut updates: Vec<Update> = Vec::new();
        let most = if is_code { usize::MAX } else { CANDIDATES };
        for found in reply.candidates.into_iter().take(most) {
            let value = found.value.trim().to_owned();
            let outcome = found.accepted(&self.spans, is_code).and_then(|(slot, evidence)| {
                let said = |update: &Update| update.slot == slot && folded(&update.value) == folded(&value);
                match !is_code && updates.iter().any(said) {
                    true => Err("it stands there twice"),
                    false => Ok((slot, evidence)),
                }
            });
            let id = format!("update-{}", store.updates.len() + updates.len());
            let about = format!("{}.{}: {value}", found.domain, found.slot);
            match outcome {
                Err(why) => self.note(Step::Candidates, &about, "dropped", why),
                Ok((slot, evidence)) => {
                    self.note(Step::Candidates, &about, &id, "");
                    let (kind, confidence) = (found.kind, clamped(found.confidence));
                    let at = self.at.clone();
                    updates.push(Update { id, slot, value, kind, confidence, at, evidence, item: None });
                }
            }
        }
        Ok(updates)
    }
}

impl FoundSpan {
    /// Reason to drop it.
    fn dropped(&self, seen: &[&TurnInput], is_code: bool) -> Option<&'static str> {
        if self.text.trim().is_empty() {
            return Some("it is empty");
        }
        if !matches!(self.r#type.as_str(), "state" | "support") {
            return Some("it bears on no current state");
        }
        if !matches!(self.scope.as_str(), "current" | "mixed") && self.change <= Grade::Weak {
            return Some("it is past or future, without a clear sign of change");
        }
        if is_code && !self.turns.iter().any(|id| seen.iter().any(|turn| turn.id == *id)) {
            return Some("it names no turn of the user");
        }
        (is_code && clamped(self.salience) < SALIENT).then_some("its salience is below .30")
    }

    fn span(self, id: String, session: &str, seen: &[&TurnInput]) -> Span {
        let text = self.text.trim().to_owned();
        let mut turns = self.turns;
        turns.retain(|id| seen.iter().any(|turn| turn.id == *id));
        if turns.is_empty() {
            // The turn id may be wrong while the words are right.
            turns = seen.iter().filter(|turn| turn.content.contains(&text)).map(|turn| turn.id).collect();
        }
        let mut slots: Vec<Slot> = self.slots.iter().filter_map(|slot| Slot::parse(slot)).collect();
        slots.dedup();
        slots.truncate(3);
        let (is_state, strength, change) = (self.r#type == "state", self.strength, self.change);
        let evidence = Evidence { session: session.to_owned(), turns, text };
        Span { id, evidence, is_state, slots, strength, change }
    }
}

impl Candidate {
    /// Its slot and evidence, or why it is dropped.
    fn accepted(&self, spans: &[Span], is_code: bool) -> Result<(Slot, Vec<Evidence>), &'static str> {
        if self.value.trim().is_empty() {
            return Err("it says nothing");
        }
        let slot = match is_code {
            true => Slot::of_pair(&self.domain, &self.slot),
            false => Slot::named(&self.domain, &self.slot),
        };
        let slot = slot.ok_or("the schema has no such slot")?;
        let of: Vec<&Span> = spans.iter().filter(|span| self.spans.contains(&span.id)).collect();
        if of.is_empty() {
            return Err("it names no span");
        }
        if is_code && clamped(self.confidence) < self.needed(&of).ok_or("it rests on weak support alone")? {
            return Err("its confidence is too low for its evidence");
        }
        Ok((slot, of.into_iter().map(|span| span.evidence.clone()).collect()))
    }

    /// Minimum confidence for its evidence; `None` if no confidence suffices.
    fn needed(&self, of: &[&Span]) -> Option<f64> {
        let upstream = self.kind == Kind::Upstream && of.iter().any(|span| span.change > Grade::None);
        if self.source == "explicit" || of.iter().any(|span| span.is_state) {
            Some(0.45)
        } else if upstream || of.iter().any(|span| span.strength == Grade::Strong) {
            Some(0.55)
        } else {
            let medium = of.iter().filter(|span| span.strength >= Grade::Medium).count();
            (medium >= 2).then_some(0.60)
        }
    }
}
