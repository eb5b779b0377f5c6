//! Writing, a session at a time: W1 to W9.
//!
//! A session's decisions read the store as it was before the session; then all of them apply to a copy, which takes the store's place. A model that
//! cannot be asked leaves the store as it was.
//!
//! In the code's variant an update that W3 calls a NO_OP, or could not decide on, drives nothing further: where all are, the session ends there. Choices
//! where the paper is silent: all candidates that W2 accepts count as updates for W4 to W6; the domains touched directly are those of the candidates
//! and of the slots that spans hint at; a step whose replies cannot be read is left out and told as an event.

mod adjudicate;
mod apply;
mod arbitrate;
mod candidates;
mod links;
mod local_update;
mod proposals;
mod spans;

pub use local_update::SHOWN;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::asking::{Asker, Stop};
use super::model::Step;
use super::schema::{Slot, domains};
use super::settings::Switch;
use super::shapes::clamped;
use super::store::{Evidence, Item, Moment, Note, SessionRecord, Store, Strength, Update, sources};
use crate::memory::system::protocol::{LookedAt, Op, SessionInput, WriteEvent};
use arbitrate::{Act, Action};
use palimpsest_data::ground::order::unique;

/// Affected domains of a session.
const AFFECTED: usize = 3;

/// Strength of evidence or of a signal of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Grade {
    None,
    Weak,
    Medium,
    Strong,
}

/// A span that is kept.
struct Span {
    /// `s0`, within the session.
    id: String,
    /// Where it stands, and its words.
    evidence: Evidence,
    is_state: bool,
    slots: Vec<Slot>,
    strength: Grade,
    change: Grade,
}

/// The outcome for a candidate.
struct Local {
    /// The action, where something is to be done.
    action: Option<Action>,
    /// The decision as it was given, and what became of it.
    decision: String,
    reason: String,
    target: Option<String>,
    /// Items of the slot, each of which could be the target.
    asked: Vec<String>,
    /// Items of the domain, shown as context.
    context: Vec<String>,
}

/// A session while it is written.
struct Session<'a, 'm> {
    asker: &'a mut Asker<'m>,
    /// The store before the session.
    store: &'a Store,
    at: Moment,
    notes: Vec<Note>,
    faults: Vec<Stop>,
    spans: Vec<Span>,
    updates: Vec<Update>,
    locals: BTreeMap<String, Local>,
    actions: Vec<Action>,
    /// Domains touched directly, and those whose former defaults the change makes unsafe.
    direct: Vec<&'static str>,
    affected: Vec<&'static str>,
    /// Items that stood in a lane or as context, and those that a decision was asked about.
    looked_at: BTreeSet<String>,
    asked: BTreeSet<String>,
}

/// Writes a session: the store after it, and what changed.
pub fn write(
    asker: &mut Asker<'_>,
    store: &Store,
    session: &SessionInput,
) -> Result<(Store, Vec<WriteEvent>), Stop> {
    let mut writing = Session {
        asker,
        store,
        at: store.next_moment(&session.id, session.time.as_deref()),
        notes: Vec::new(),
        faults: Vec::new(),
        spans: Vec::new(),
        updates: Vec::new(),
        locals: BTreeMap::new(),
        actions: Vec::new(),
        direct: Vec::new(),
        affected: Vec::new(),
        looked_at: BTreeSet::new(),
        asked: BTreeSet::new(),
    };
    let spans = writing.find_spans(session);
    writing.spans = writing.or_fault(spans)?;
    if !writing.spans.is_empty() {
        let updates = writing.find_candidates();
        writing.updates = writing.or_fault(updates)?;
    }
    if !writing.updates.is_empty() {
        if writing.asker.settings.adjudicates() {
            writing.decide()?;
        } else {
            let reason = "the store is append-only";
            let add = |update: &Update| Action::of_update(Act::Add, update, None, reason.to_owned());
            writing.actions = writing.updates.iter().map(add).collect();
        }
    }
    writing.finish()
}

impl Session<'_, '_> {
    /// A step's result, or, where no reply could be read, none; that is told as an event.
    fn or_fault<T: Default>(&mut self, found: Result<T, Stop>) -> Result<T, Stop> {
        match found {
            Err(fault @ Stop::Fault { .. }) => {
                self.faults.push(fault);
                Ok(T::default())
            }
            other => other,
        }
    }

    fn note(&mut self, step: Step, about: &str, decision: &str, reason: &str) {
        let (about, decision, reason) = (about.to_owned(), decision.to_owned(), reason.to_owned());
        self.notes.push(Note { step, about, decision, reason });
    }

    /// W3 to W6.
    fn decide(&mut self) -> Result<(), Stop> {
        for update in self.updates.clone() {
            let local = self.update_locally(&update);
            if let Some(local) = self.or_fault(local.map(Some))? {
                self.note(Step::LocalUpdate, &update.id, &local.decision, &local.reason);
                self.actions.extend(local.action.clone());
                self.locals.insert(update.id, local);
            }
        }
        let is_code = self.asker.settings.is_code();
        let decided = |id: &str| self.locals.get(id).is_some_and(|local| local.action.is_some());
        let mut driving = self.updates.clone();
        driving.retain(|update| !is_code || decided(&update.id));
        if driving.is_empty() {
            return Ok(());
        }
        self.direct = self.touched_directly(&driving);
        if !self.asker.settings.lacks(Switch::NoAffected) {
            let affected = self.find_affected(&driving);
            self.affected = self.or_fault(affected)?;
        }
        for proposal in self.find_proposals(&driving)? {
            let action = self.adjudicate(&proposal, &driving);
            let action = self.or_fault(action)?;
            self.actions.extend(action);
        }
        Ok(())
    }

    /// Domains of updates and of the slots that spans hint at; in the code's variant in this order, else in the schema's.
    fn touched_directly(&self, updates: &[Update]) -> Vec<&'static str> {
        let of_updates = updates.iter().map(|update| update.slot.domain());
        let of_spans = self.spans.iter().flat_map(|span| &span.slots).map(Slot::domain);
        let mut direct = unique(of_updates.chain(of_spans));
        if !self.asker.settings.is_code() {
            direct.sort_by_key(|name| domains().position(|domain| domain == *name));
        }
        direct
    }

    /// W4: the affected domains, in the paper's variant the surest first.
    fn find_affected(&mut self, updates: &[Update]) -> Result<Vec<&'static str>, Stop> {
        #[derive(Deserialize)]
        struct Reply {
            affected: Vec<Found>,
        }
        #[derive(Deserialize)]
        struct Found {
            domain: String,
            reason: String,
            confidence: f64,
        }
        let is_code = self.asker.settings.is_code();
        let data = json!({
            "updates": updates_listed(updates), "spans": spans_listed(&self.spans), "direct": self.direct,
        });
        let mut reply: Reply = self.asker.ask(Step::Affected, &data)?;
        if !is_code {
            reply.affected.sort_by(|a, b| clamped(b.confidence).total_cmp(&clamped(a.confidence)));
        }
        let mut kept: Vec<&'static str> = Vec::new();
        for found in reply.affected {
            let named = found.domain.trim().to_lowercase();
            let outcome = match domains().find(|domain| *domain == named) {
                None => Err("the schema has no such domain"),
                Some(_) if is_code && found.reason.trim().is_empty() => Err("it has no reason"),
                Some(domain) if self.direct.contains(&domain) => Err("it is touched directly"),
                Some(domain) if kept.contains(&domain) => Err("it stands there twice"),
                Some(_) if kept.len() == AFFECTED => Err("a session affects three at most"),
                Some(domain) => Ok(domain),
            };
            match outcome {
                Ok(_) => self.note(Step::Affected, &found.domain, "affected", &found.reason),
                Err(why) => self.note(Step::Affected, &found.domain, "dropped", why),
            }
            kept.extend(outcome.ok());
        }
        Ok(kept)
    }

    /// W7 to W9.
    fn finish(mut self) -> Result<(Store, Vec<WriteEvent>), Stop> {
        let mut after = self.store.clone();
        after.updates.extend(self.updates.iter().cloned());
        let events = self.apply(&mut after)?;
        let events = self.events(events, &after);
        after.sessions.push(SessionRecord { at: self.at, notes: self.notes });
        Ok((after, events))
    }

    /// The events of a session: each update's with the items considered for it, ends of older items, and steps that failed.
    fn events(&self, mut events: Vec<WriteEvent>, after: &Store) -> Vec<WriteEvent> {
        for update in &self.updates {
            let wrote = after.update(&update.id).and_then(|known| known.item.as_deref());
            let looked_at = Some(self.considered(update));
            let of_update = |event: &&mut WriteEvent| {
                matches!(event.op, Op::Add | Op::Update) && event.memory.as_deref() == wrote
            };
            if let Some(event) = events.iter_mut().filter(|_| wrote.is_some()).find(of_update) {
                event.looked_at = looked_at;
                continue;
            }
            let local = self.locals.get(&update.id);
            events.push(WriteEvent {
                memory: local.and_then(|local| local.target.clone()),
                text: Some(update.value.clone()),
                sources: Some(sources(&update.evidence)),
                looked_at,
                reason: local.map(|local| format!("W3: {}: {}", local.decision, local.reason)),
                ..WriteEvent::default()
            });
        }
        let failed = |fault| WriteEvent { reason: Some(format!("error: {fault}")), ..WriteEvent::default() };
        events.extend(self.faults.iter().map(failed));
        events
    }

    /// The items that stood in a prompt about an update, and whether a decision was asked about each: as a target of W3, or in W6.
    fn considered(&self, update: &Update) -> Vec<LookedAt> {
        let local = self.locals.get(&update.id);
        let asked: BTreeSet<&String> =
            local.iter().flat_map(|local| &local.asked).chain(&self.asked).collect();
        let context = local.iter().flat_map(|local| &local.context);
        let all: BTreeSet<&String> = context.chain(&self.looked_at).chain(asked.iter().copied()).collect();
        all.into_iter().map(|id| LookedAt { memory: id.clone(), gated: Some(asked.contains(id)) }).collect()
    }
}

fn listed<'s>(items: impl IntoIterator<Item = &'s Item>) -> Value {
    let listed = |item: &Item| {
        json!({
            "id": item.id, "slot": item.slot, "value": item.value, "weak": item.strength == Strength::Weak,
        })
    };
    items.into_iter().map(listed).collect()
}

/// Archived items and standing markers of some slots, as the code's prompts show them.
fn not_current(store: &Store, of: impl Fn(&Slot) -> bool) -> (Value, Value) {
    let former = listed(store.stale().filter(|item| of(&item.slot)));
    let unknown = store.standing().filter(|marker| of(&marker.slot));
    (former, unknown.map(|marker| json!({ "slot": marker.slot, "value": marker.reason })).collect())
}

fn updates_listed<'u>(updates: impl IntoIterator<Item = &'u Update>) -> Value {
    let listed = |update: &Update| {
        let words: Vec<&str> = update.evidence.iter().map(|e| e.text.as_str()).collect();
        json!({ "id": update.id, "slot": update.slot, "value": update.value, "evidence": words })
    };
    updates.into_iter().map(listed).collect()
}

fn ids<'s>(items: impl IntoIterator<Item = &'s Item>) -> Vec<String> {
    items.into_iter().map(|item| item.id.clone()).collect()
}

fn spans_listed(spans: &[Span]) -> Value {
    let listed = |span: &Span| {
        let kind = if span.is_state { "state" } else { "support" };
        json!({ "id": span.id, "text": span.evidence.text, "type": kind, "slots": span.slots })
    };
    spans.iter().map(listed).collect()
}
