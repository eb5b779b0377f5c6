//! W8: the actions of a session change the store, all at once.
//!
//! First what ends, then what a session writes, then the replacements that adjudication states. Only what is older than the session ends
//! ([`Store::archive`]). In the code's variant every invalidation marks its slot; a state written afterwards clears the marker.

use super::super::model::Step;
use super::super::schema::Cardinality;
use super::super::settings::{Settings, Switch};
use super::super::store::{ChangeKind, Grounds, Moment, Note, Store, Update};
use super::action::{Act, Action};
use super::local_update::act_name;
use crate::memory::system::protocol::{LookedAt, Op, WriteEvent};

/// The outcome of a session.
pub struct Applied {
    /// Its events.
    pub events: Vec<WriteEvent>,
    /// Items that it archived.
    pub archived: Vec<String>,
}

struct Applying<'a> {
    store: &'a mut Store,
    settings: &'a Settings,
    at: &'a Moment,
    updates: &'a [Update],
    notes: &'a mut Vec<Note>,
    out: Applied,
}

/// Applies what arbitration kept.
pub fn apply(
    store: &mut Store,
    settings: &Settings,
    at: &Moment,
    updates: &[Update],
    kept: &[Action],
    notes: &mut Vec<Note>,
) -> Applied {
    store.updates.extend(updates.iter().cloned());
    let out = Applied { events: Vec::new(), archived: Vec::new() };
    let mut applying = Applying { store, settings, at, updates, notes, out };
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
    applying.out
}

impl Applying<'_> {
    fn apply(&mut self, action: &Action, kept: &[Action]) -> Result<String, String> {
        let target = action.target.as_deref();
        let update = action.updates.first().and_then(|id| self.updates.iter().find(|u| u.id == *id));
        let update = update.ok_or("it rests on no update of the session")?;
        match (action.act, target) {
            (Act::Invalidate, Some(item)) => {
                self.archive(item, ChangeKind::Invalidated, action)?;
                if self.settings.is_code() && !self.settings.lacks(Switch::NoUnknown) {
                    self.store.mark(&action.slot, &self.grounds(action));
                }
                Ok(format!("{item} archived"))
            }
            (Act::Weaken, Some(item)) => {
                self.store.weaken(item, self.grounds(action))?;
                self.event(Op::Weak, item, action);
                Ok(format!("{item} weakened"))
            }
            (Act::Unknown, target) => self.unknown(target, action, kept),
            (Act::Replace, Some(item)) => {
                self.archive(item, ChangeKind::Replaced, action)?;
                let of_update = self.store.update(&update.id).and_then(|known| known.item.clone());
                // The update has written the replacement itself, unless a value of its own is stated for another slot.
                let written = of_update.filter(|_| action.step == Step::Adjudicate);
                let in_slot = |id: &String| self.store.item(id).is_some_and(|i| i.slot == action.slot);
                match written.filter(in_slot) {
                    Some(written) => Ok(format!("{item} archived, {written} has its place")),
                    None => {
                        let written = self.write(update, action);
                        Ok(format!("{item} archived, {written} has its place"))
                    }
                }
            }
            (Act::Refine, Some(item)) => {
                let before = self.store.item(item).map(|item| item.value.clone());
                if !self.store.refine(item, update, self.grounds(action)) {
                    return Err(format!("{item} is not active"));
                }
                self.wrote(&update.id, item);
                self.event(Op::Update, item, action);
                if let Some(event) = self.out.events.last_mut() {
                    event.previous = before;
                }
                Ok(format!("{item} refined"))
            }
            (Act::Add, _) => Ok(format!("{} written", self.write(update, action))),
            (_, None) => Err("it names no item".to_owned()),
        }
    }

    /// Marks the slot, and archives its default: the target, or without one the slot's items where the slot is single or they are one.
    fn unknown(&mut self, target: Option<&str>, action: &Action, kept: &[Action]) -> Result<String, String> {
        let mut ends: Vec<String> = target.map(str::to_owned).into_iter().collect();
        if target.is_none() {
            let others = |id: &String| kept.iter().any(|other| other.target.as_ref() == Some(id));
            let older = |created: &Moment| created.index < self.at.index;
            let items = self.store.active_in(&action.slot);
            if action.slot.cardinality() == Cardinality::Single || items.len() == 1 {
                let items = items.iter().filter(|item| older(&item.created));
                ends = items.map(|item| item.id.clone()).filter(|id| !others(id)).collect();
            }
        }
        for item in &ends {
            self.archive(item, ChangeKind::Unknown, action)?;
        }
        self.store.mark(&action.slot, &self.grounds(action));
        self.out.events.push(WriteEvent {
            op: Op::Unknown,
            memory: None,
            text: Some(action.slot.to_string()),
            previous: None,
            sources: None,
            looked_at: None,
            reason: Some(format!("{}: {}", action.step, action.reason)),
        });
        Ok(format!("{} unknown, archived: {}", action.slot, ends.join(", ")))
    }

    fn archive(&mut self, item: &str, kind: ChangeKind, action: &Action) -> Result<(), String> {
        self.store.archive(item, kind, self.grounds(action))?;
        self.out.archived.push(item.to_owned());
        self.event(Op::Stale, item, action);
        Ok(())
    }

    fn write(&mut self, update: &Update, action: &Action) -> String {
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

    fn grounds(&self, action: &Action) -> Grounds {
        let (updates, reason) = (action.updates.clone(), action.reason.clone());
        Grounds { at: self.at.clone(), step: action.step, updates, reason }
    }

    /// Tells what became of an item. An item that ends was itself asked about.
    fn event(&mut self, op: Op, item: &str, action: &Action) {
        let Some(known) = self.store.item(item) else { return };
        let asked = LookedAt { memory: item.to_owned(), gated: Some(true) };
        self.out.events.push(WriteEvent {
            op,
            memory: Some(item.to_owned()),
            text: Some(known.value.clone()),
            previous: None,
            sources: Some(known.sources()),
            looked_at: matches!(op, Op::Stale | Op::Weak).then(|| vec![asked]),
            reason: Some(format!("{}: {}", action.step, action.reason)),
        });
    }

    fn note(&mut self, action: &Action, outcome: Result<String, String>) {
        let (decision, reason) = match outcome {
            Ok(done) => (done, action.reason.clone()),
            Err(why) => (format!("{} not applied", act_name(action.act)), why),
        };
        let about = action.target.clone().unwrap_or_else(|| action.slot.to_string());
        self.notes.push(Note { step: Step::Apply, about, decision, reason });
    }
}
