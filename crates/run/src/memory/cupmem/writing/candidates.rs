//! W2: turns spans into candidates, each one current proposition in a slot of the schema.

use serde::Deserialize;
use serde_json::json;

use super::{Grade, Session, Span, listed, not_current, spans_listed};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::model::Step;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::shapes::clamped;
use crate::memory::cupmem::similar::plain;
use crate::memory::cupmem::store::{Kind, Update};

/// Candidates per session in the paper's variant (our limit; the public code has none).
const MOST: usize = 8;

#[derive(Deserialize)]
struct Reply {
    candidates: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    domain: String,
    slot: String,
    value: String,
    source: String,
    kind: Kind,
    confidence: f64,
    spans: Vec<String>,
}

impl Session<'_, '_> {
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
        let reply: Reply = self.asker.ask(Step::Candidates, &data)?;
        let mut updates: Vec<Update> = Vec::new();
        let most = if is_code { usize::MAX } else { MOST };
        for found in reply.candidates.into_iter().take(most) {
            let value = found.value.trim().to_owned();
            let outcome = accept(&found, &self.spans, is_code).and_then(|(slot, of)| {
                let said = |update: &Update| update.slot == slot && plain(&update.value) == plain(&value);
                match !is_code && updates.iter().any(said) {
                    true => Err("it stands there twice"),
                    false => Ok((slot, of.into_iter().map(|span| span.evidence.clone()).collect())),
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

/// Validates a candidate's slot and spans, or says why it is dropped. The paper gives no confidence cut.
fn accept<'a>(
    found: &Found,
    spans: &'a [Span],
    is_code: bool,
) -> Result<(Slot, Vec<&'a Span>), &'static str> {
    if found.value.trim().is_empty() {
        return Err("it says nothing");
    }
    let slot = match is_code {
        true => Slot::of_pair(&found.domain, &found.slot),
        false => Slot::named(&found.domain, &found.slot),
    };
    let slot = slot.ok_or("the schema has no such slot")?;
    let of: Vec<&Span> = spans.iter().filter(|span| found.spans.contains(&span.id)).collect();
    if of.is_empty() {
        return Err("it names no span");
    }
    if is_code {
        let needed = needed(found, &of).ok_or("it rests on weak support alone")?;
        if clamped(found.confidence) < needed {
            return Err("its confidence is too low for its evidence");
        }
    }
    Ok((slot, of))
}

/// Minimum confidence for its evidence; `None` if no confidence suffices.
fn needed(found: &Found, of: &[&Span]) -> Option<f64> {
    let changes = of.iter().any(|span| span.change > Grade::None);
    if found.source == "explicit" || of.iter().any(|span| span.is_state) {
        Some(0.45)
    } else if of.iter().any(|span| span.strength == Grade::Strong)
        || (found.kind == Kind::Upstream && changes)
    {
        Some(0.55)
    } else if of.iter().filter(|span| span.strength >= Grade::Medium).count() >= 2 {
        Some(0.60)
    } else {
        None
    }
}
