//! W8: the actions of a session change the store. In the paper's variant all at once: first what ends, then what a session writes, then the
//! replacements that adjudication states. The code's variant has an order of its own ([`super::code::apply`]).
//!
//! Only what is older than the session ends ([`Store::archive`]).

use super::super::model::Step;
use super::super::schema::{Cardinality, Slot};
use super::super::store::{ChangeKind, Grounds, Moment, Note, Store, Update};
use super::action::{Act, Action};
use super::local_update::act_name;
use crate::memory::system::protocol::{LookedAt, Op, WriteEvent};

/// A session's changes, while they are made.
pub struct Applying<'a> {
    pub store: &'a mut Store,
    pub at: &'a Moment,
    pub events: Vec<WriteEvent>,
    updates: &'a [Update],
    notes: &'a mut Vec<Note>,
}

/// Applies what arbitration kept; the events.
pub fn apply(
    store: &mut Store,
    at: &Moment,
    updates: &[Update],
    kept: &[Action],
    notes: &mut Vec<Note>,
) -> Vec<WriteEvent> {
    let mut applying = Applying::begin(store, at, updates, notes);
    let order = |action: &&Action| match action.act {
        Act::Invalidate | Act::Weaken => 0,
        Act::Unknown => 1,
        Act::Refine | Act::Add => 3,
        // A replacement that adjudication states may be the very state that the update wrote.
        Act::Replace => {
            if action.step == Step::Adjudicate {
                4
            } else {
                2
            }
        }
    };
    let mut ordered: Vec<&Action> = kept.iter().collect();
    ordered.sort_by_key(order);
    for action in ordered {
        let outcome = applying.apply(action, kept);
        applying.note(action, outcome);
    }
    applying.events
}

impl<'a> Applying<'a> {
    /// Begins with the session's updates.
    pub fn begin(
        store: &'a mut Store,
        at: &'a Moment,
        updates: &'a [Update],
        notes: &'a mut Vec<Note>,
    ) -> Self {
        store.updates.extend(updates.iter().cloned());
        Applying { store, at, events: Vec::new(), updates, notes }
    }

    /// The update that an action rests on first.
    pub fn update(&self, action: &Action) -> Result<&'a Update, String> {
        let update = action.updates.first().and_then(|id| self.updates.iter().find(|u| u.id == *id));
        update.ok_or_else(|| "it rests on no update of the session".to_owned())
    }

    fn apply(&mut self, action: &Action, kept: &[Action]) -> Result<String, String> {
        let target = action.target.as_deref();
        let update = self.update(action)?;
        match (action.act, target) {
            (Act::Invalidate, Some(item)) => {
                self.archive(item, ChangeKind::Invalidated, action)?;
                Ok(format!("{item} archived"))
            }
            (Act::Unknown, target) => {
                let ends =
                    target.map_or_else(|| self.defaults_of(action, kept), |item| vec![item.to_owned()]);
                for item in &ends {
                    self.archive(item, ChangeKind::Unknown, action)?;
                }
                self.store.mark(&action.slot, &self.grounds(action));
                Ok(self.unknown(&action.slot, &ends, action))
            }
            (Act::Replace, Some(item)) => {
                self.archive(item, ChangeKind::Replaced, action)?;
                let of_update = self.store.update(&update.id).and_then(|known| known.item.clone());
                // The update has written the replacement itself, unless a value of its own is stated for another slot.
                let written = of_update.filter(|_| action.step == Step::Adjudicate);
                let in_slot = |id: &String| self.store.item(id).is_some_and(|i| i.slot == action.slot);
                let written = match written.filter(in_slot) {
                    Some(written) => written,
                    None => self.write(update, action),
                };
                Ok(format!("{item} archived, {written} has its place"))
            }
            (Act::Refine, Some(item)) => self.refine(item, update, action),
            (Act::Add, _) => Ok(format!("{} written", self.write(update, action))),
            (Act::Weaken, _) => Err("the paper's variant weakens nothing".to_owned()),
            (_, None) => Err("it names no item".to_owned()),
        }
    }

    /// The items that an UNKNOWN without target ends: those of its slot that are older, where the slot is single or they are one.
    fn defaults_of(&self, action: &Action, kept: &[Action]) -> Vec<String> {
        let others = |id: &String| kept.iter().any(|other| other.target.as_ref() == Some(id));
        let items = self.store.active_in(&action.slot);
        if action.slot.cardinality() != Cardinality::Single && items.len() != 1 {
            return Vec::new();
        }
        let older = items.iter().filter(|item| item.created.index < self.at.index);
        older.map(|item| item.id.clone()).filter(|id| !others(id)).collect()
    }

    /// Gives an item the update's value.
    pub fn refine(&mut self, item: &str, update: &Update, action: &Action) -> Result<String, String> {
        let before = self.store.item(item).map(|item| item.value.clone());
        if !self.store.refine(item, update, self.grounds(action)) {
            return Err(format!("{item} is not active"));
        }
        self.wrote(&update.id, item);
        self.event(Op::Update, item, action);
        if let Some(event) = self.events.last_mut() {
            event.previous = before;
        }
        Ok(format!("{item} refined"))
    }

    /// Tells that a slot has been marked, and its former defaults archived.
    pub fn unknown(&mut self, slot: &Slot, ended: &[String], action: &Action) -> String {
        self.events.push(WriteEvent {
            op: Op::Unknown,
            memory: None,
            text: Some(slot.to_string()),
            previous: None,
            sources: None,
            looked_at: None,
            reason: Some(format!("{}: {}", action.step, action.reason)),
        });
        format!("{slot} unknown, archived: {}", ended.join(", "))
    }

    /// Archives an item that is older than the session.
    pub fn archive(&mut self, item: &str, kind: ChangeKind, action: &Action) -> Result<(), String> {
        self.store.archive(item, kind, self.grounds(action))?;
        self.event(Op::Stale, item, action);
        Ok(())
    }

    /// Archives an item, older than the session or not.
    pub fn end(&mut self, item: &str, kind: ChangeKind, action: &Action) -> Result<(), String> {
        self.store.end(item, kind, self.grounds(action))?;
        self.event(Op::Stale, item, action);
        Ok(())
    }

    /// Writes an item; its id.
    pub fn write(&mut self, update: &Update, action: &Action) -> String {
        let value = action.value.as_ref().unwrap_or(&update.value);
        let id = self.store.add(&action.slot, value, update, self.grounds(action));
        self.wrote(&update.id, &id);
        self.event(Op::Add, &id, action);
        id
    }

    fn wrote(&mut self, update: &str, item: &str) {
        if let Some(known) = self.store.updates.iter_mut().find(|known| known.id == update) {
            known.item.get_or_insert_with(|| item.to_owned());
        }
    }

    /// The grounds of an action.
    pub fn grounds(&self, action: &Action) -> Grounds {
        let (updates, reason) = (action.updates.clone(), action.reason.clone());
        Grounds { at: self.at.clone(), step: action.step, updates, reason }
    }

    /// Tells what became of an item. An item that ends was itself asked about.
    pub fn event(&mut self, op: Op, item: &str, action: &Action) {
        let Some(known) = self.store.item(item) else { return };
        let asked = LookedAt { memory: item.to_owned(), gated: Some(true) };
        self.events.push(WriteEvent {
            op,
            memory: Some(item.to_owned()),
            text: Some(known.value.clone()),
            previous: None,
            sources: Some(known.sources()),
            looked_at: matches!(op, Op::Stale | Op::Weak).then(|| vec![asked]),
            reason: Some(format!("{}: {}", action.step, action.reason)),
        });
    }

    /// Records what became of an action.
    pub fn note(&mut self, action: &Action, outcome: Result<String, String>) {
        let (decision, reason) = match outcome {
            Ok(done) => (done, action.reason.clone()),
            Err(why) => (format!("{} not applied", act_name(action.act)), why),
        };
        let about = action.target.clone().unwrap_or_else(|| action.slot.to_string());
        self.notes.push(Note { step: Step::Apply, about, decision, reason });
    }
}
