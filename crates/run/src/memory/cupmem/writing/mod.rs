//! Writes one session: W1 to W9.
//!
//! Decisions read the store as it was before the session; they are applied to a copy that then replaces the store. If a model is
//! unreachable, the store is unchanged.
//!
//! In the code's variant updates with NO_OP or no decision in W3 trigger nothing further; if all are such, the session ends. Our choices
//! where the paper is silent: all accepted candidates count as updates in W4 to W6; directly touched domains are those of candidates and of
//! slots hinted at by spans; a step with unparsable replies is skipped and recorded as an event.

mod apply;
mod arbitrate;
mod decide;
mod extract;
mod proposals;

pub use decide::SHOWN;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::asking::{Asker, Stop, clamped};
use super::schema::{Slot, domains};
use super::settings::{Step, Switch};
use super::store::{Evidence, Item, Moment, Note, SessionRecord, Store, Update, sources};
use crate::memory::system::protocol::{LookedAt, Op, SessionInput, WriteEvent};
use arbitrate::{Act, Action};
use palimpsest_data::ground::order::unique;

const AFFECTED: usize = 3;

/// Strength of evidence or of a change signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Grade {
    None,
    Weak,
    Medium,
    Strong,
}

struct Span {
    /// `s0`, unique within the session.
    id: String,
    evidence: Evidence,
    is_state: bool,
    slots: Vec<Slot>,
    strength: Grade,
    change: Grade,
}

struct Local {
    action: Option<Action>,
    decision: String,
    reason: String,
    target: Option<String>,
    /// Items of the slot offered as targets.
    asked: Vec<String>,
    /// Items of the domain shown as context.
    context: Vec<String>,
}

struct Session<'a, 'm> {
    asker: &'a mut Asker<'m>,
    store: &'a Store,
    at: Moment,
    notes: Vec<Note>,
    faults: Vec<Stop>,
    spans: Vec<Span>,
    updates: Vec<Update>,
    locals: BTreeMap<String, Local>,
    actions: Vec<Action>,
    /// Domains touched directly, and domains whose defaults the change makes unsafe.
    direct: Vec<&'static str>,
    affected: Vec<&'static str>,
    /// Items shown in a lane or as context, and items a decision was requested for.
    looked_at: BTreeSet<String>,
    asked: BTreeSet<String>,
}

pub fn write(
    asker: &mut Asker<'_>,
    store: &Store,
    session: &SessionInput,
) -> Result<(Store, Vec<WriteEvent>), Stop> {
    let mut writing = Session {
        asker,
        store,
        at: Moment { session: session.id.clone(), index: store.sessions.len(), time: session.time.clone() },
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
    if writing.asker.settings.adjudicates() {
        writing.decide()?;
    } else {
        let add = |update: &Update| Action::of_update(Act::Add, update, "the store is append-only");
        writing.actions = writing.updates.iter().map(add).collect();
    }
    let mut after = store.clone();
    after.updates.extend(writing.updates.iter().cloned());
    let events = writing.apply(&mut after)?;
    let events = writing.events(events, &after);
    after.sessions.push(SessionRecord { at: writing.at, notes: writing.notes });
    Ok((after, events))
}

impl Session<'_, '_> {
    /// Turns a parse failure into an event and the default.
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

    /// Domains of updates and hinted slots; in this order in the code's variant, in schema order in the paper's.
    fn touched_directly(&self, updates: &[Update]) -> Vec<&'static str> {
        let of_updates = updates.iter().map(|update| update.slot.domain());
        let of_spans = self.spans.iter().flat_map(|span| &span.slots).map(Slot::domain);
        let mut direct = unique(of_updates.chain(of_spans));
        if !self.asker.settings.is_code() {
            direct.sort_by_key(|name| domains().position(|domain| domain == *name));
        }
        direct
    }

    /// W4: the affected domains; by confidence in the paper's variant.
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

    /// Session events: updates with the items considered, ends of older items, failed steps.
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

    /// Items shown in a prompt about the update, and whether a decision on each was requested (W3 target, or W6).
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
            "id": item.id, "slot": item.slot, "value": item.value, "weak": !item.is_strong(),
        })
    };
    items.into_iter().map(listed).collect()
}

/// Archived items and active markers, as the code's prompts show them.
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
