//! W8: the actions of a session that W7 keeps change the store.
//!
//! - In the paper's variant all at once: first what ends, then what a session writes, then the replacements that adjudication states. Only what is
//!   older than the session ends.
//! - In the code's one after the other, updates in their order, then verdicts in theirs: what a session writes comes before what it ends. Each sees what
//!   those before it have left.

use std::collections::BTreeSet;

use super::Session;
use super::arbitrate::{Act, Action, arbitrate, suppressed};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::model::Step;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::settings::Switch;
use crate::memory::cupmem::store::{Change, ChangeKind, Item, Moment, Store, Strength, Update};
use crate::memory::system::protocol::{LookedAt, Op, WriteEvent};

/// In the code's variant an ADD of this confidence may have an occupied single slot,
const SURE: f64 = 0.85;
/// where its weakest item's is lower by this, or that item is weak.
const SURER: f64 = 0.15;

impl Session<'_, '_> {
    /// W7 to W9, on the store after the session's updates are in it. The events.
    pub(super) fn apply(&mut self, after: &mut Store) -> Result<Vec<WriteEvent>, Stop> {
        let settings = self.asker.settings;
        let actions = std::mem::take(&mut self.actions);
        if settings.is_code() && settings.adjudicates() {
            return self.apply_in_order(after, &actions);
        }
        // An append-only store keeps every candidate, single slots included.
        let (mut kept, dropped) = match settings.adjudicates() {
            true => arbitrate(actions),
            false => (actions, Vec::new()),
        };
        for (action, why) in &dropped {
            self.note_dropped(action, why);
        }
        kept.sort_by_key(|action| match action.act {
            Act::Invalidate | Act::Weaken => 0,
            Act::Unknown => 1,
            // A replacement that adjudication states may be the very state that the update wrote.
            Act::Replace if action.step == Step::Adjudicate => 4,
            Act::Replace => 2,
            Act::Refine | Act::Add => 3,
        });
        let at = self.at.clone();
        let mut applying = Applying { store: after, at: &at, events: Vec::new() };
        for action in &kept {
            let outcome = applying.apply(action, &kept);
            self.note_applied(action, outcome);
        }
        Ok(applying.events)
    }

    /// W7 to W9 of the code's variant.
    fn apply_in_order(&mut self, after: &mut Store, actions: &[Action]) -> Result<Vec<WriteEvent>, Stop> {
        let suppressed = suppressed(actions);
        for (place, why) in &suppressed {
            self.note_dropped(&actions[*place], why);
        }
        let marks = !self.asker.settings.lacks(Switch::NoUnknown);
        // Updates that did something, or that a verdict rests on which did.
        let mut accepted = BTreeSet::new();
        // Targets of verdicts, suppressed ones included, that were stale when it was their turn.
        let mut fresh: Vec<String> = Vec::new();
        let at = self.at.clone();
        let mut applying = Applying { store: after, at: &at, events: Vec::new() };
        for (place, action) in actions.iter().enumerate() {
            if !suppressed.contains_key(&place) {
                let outcome = applying.apply_next(action, marks);
                accepted.extend(action.updates.iter().filter(|_| outcome.is_ok()).cloned());
                self.note_applied(action, outcome);
            }
            let ended = |id: &&String| applying.store.item(id).is_some_and(|item| !item.is_active());
            let of_verdict = action.target.as_ref().filter(|_| action.step == Step::Adjudicate);
            fresh.extend(of_verdict.filter(ended).cloned());
        }
        let events = applying.events;
        if self.asker.settings.links() {
            let links = self.find_links(after, &accepted, &fresh)?;
            after.links.extend(links);
        }
        Ok(events)
    }

    fn note_dropped(&mut self, action: &Action, why: &str) {
        let decision = format!("{} of {} dropped", action.act.name(), action.step);
        self.note(Step::Arbitrate, &action.about(), &decision, why);
    }

    fn note_applied(&mut self, action: &Action, outcome: Result<String, String>) {
        match outcome {
            Ok(done) => self.note(Step::Apply, &action.about(), &done, &action.reason),
            Err(why) => {
                let decision = format!("{} not applied", action.act.name());
                self.note(Step::Apply, &action.about(), &decision, &why);
            }
        }
    }
}

/// A session's changes, while they are made.
struct Applying<'a> {
    store: &'a mut Store,
    at: &'a Moment,
    events: Vec<WriteEvent>,
}

impl Applying<'_> {
    /// The update that an action rests on first.
    fn update(&self, action: &Action) -> Result<Update, String> {
        let update = action.updates.first().and_then(|id| self.store.update(id));
        let update = update.filter(|update| update.at == *self.at).cloned();
        update.ok_or_else(|| "it rests on no update of the session".to_owned())
    }

    fn apply(&mut self, action: &Action, kept: &[Action]) -> Result<String, String> {
        let update = self.update(action)?;
        match (action.act, action.target.as_deref()) {
            (Act::Invalidate, Some(item)) => {
                self.archive(item, ChangeKind::Invalidated, action)?;
                Ok(format!("{item} archived"))
            }
            (Act::Unknown, target) => {
                let ends =
                    target.map_or_else(|| self.older_defaults(action, kept), |item| vec![item.to_owned()]);
                for item in &ends {
                    self.archive(item, ChangeKind::Unknown, action)?;
                }
                self.store.mark(&action.slot, &self.change(action, ChangeKind::Unknown));
                Ok(self.unknown(&action.slot, &ends, action))
            }
            (Act::Replace, Some(item)) => {
                self.archive(item, ChangeKind::Replaced, action)?;
                // The update has written the replacement itself, unless a value of its own is stated for another slot.
                let written = update.item.as_ref().filter(|_| action.step == Step::Adjudicate);
                let in_slot = |id: &&String| self.store.item(id).is_some_and(|i| i.slot == action.slot);
                let written = match written.filter(in_slot) {
                    Some(written) => written.clone(),
                    None => self.write(&update, action),
                };
                Ok(format!("{item} archived, {written} has its place"))
            }
            (Act::Refine, Some(item)) => self.refine(item, &update, action),
            (Act::Add, _) => Ok(format!("{} written", self.write(&update, action))),
            (Act::Weaken, _) => Err("the paper's variant weakens nothing".to_owned()),
            (_, None) => Err("it names no item".to_owned()),
        }
    }

    fn apply_next(&mut self, action: &Action, marks: bool) -> Result<String, String> {
        let update = self.update(action)?;
        let of_update = action.step == Step::LocalUpdate;
        let active = |item: &&Item| item.is_active() && (!of_update || item.slot == action.slot);
        let target = action.target.as_deref().and_then(|id| self.store.item(id)).filter(active);
        let target = target.map(|item| (item.id.clone(), item.slot.clone()));
        match (action.act, target) {
            (Act::Add, _) => self.add(action, &update),
            (Act::Refine, Some((item, _))) => self.refine(&item, &update, action),
            (Act::Replace, Some((item, _))) => {
                self.archive(&item, ChangeKind::Replaced, action)?;
                Ok(format!("{item} archived, {} has its place", self.write(&update, action)))
            }
            (Act::Invalidate, Some((item, slot))) => {
                self.archive(&item, ChangeKind::Invalidated, action)?;
                if marks {
                    self.store.mark_anew(&slot, &self.change(action, ChangeKind::Invalidated));
                }
                Ok(format!("{item} archived"))
            }
            (Act::Weaken, Some((item, _))) => {
                self.store.weaken(&item, self.change(action, ChangeKind::Weakened))?;
                self.event(Op::Weak, &item, action);
                Ok(format!("{item} weakened"))
            }
            (Act::Unknown, Some((item, slot))) => {
                self.archive(&item, ChangeKind::Unknown, action)?;
                self.store.mark_anew(&slot, &self.change(action, ChangeKind::Unknown));
                Ok(self.unknown(&slot, &[item], action))
            }
            (Act::Unknown, None) => {
                let ends = self.defaults(action);
                for item in &ends {
                    self.end(item, ChangeKind::Unknown, action)?;
                }
                self.store.mark_anew(&action.slot, &self.change(action, ChangeKind::Unknown));
                Ok(self.unknown(&action.slot, &ends, action))
            }
            (_, None) => Err("it has no active target".to_owned()),
        }
    }

    /// The items that an UNKNOWN without target ends in the paper's variant: those of its slot that are older, where the slot is single or they are
    /// one.
    fn older_defaults(&self, action: &Action, kept: &[Action]) -> Vec<String> {
        let others = |id: &String| kept.iter().any(|other| other.target.as_ref() == Some(id));
        let items = self.store.active_in(&action.slot);
        if !action.slot.is_single() && items.len() != 1 {
            return Vec::new();
        }
        let older = items.iter().filter(|item| item.created.index < self.at.index);
        older.map(|item| item.id.clone()).filter(|id| !others(id)).collect()
    }

    /// The items that an UNKNOWN without target ends in the code's variant: the slot's, where it is single or one is older than the session. What the
    /// session itself has written there ends with them. (The public code loses that without a trace; here it is archived.)
    fn defaults(&self, action: &Action) -> Vec<String> {
        let items = self.store.active_in(&action.slot);
        let older = items.iter().filter(|item| item.created.index < self.at.index).count();
        let ends = older == 1 || (older > 0 && action.slot.is_single());
        items.iter().filter(|_| ends).map(|item| item.id.clone()).collect()
    }

    /// A single slot has room for one: an ADD is blocked there, unless it is sure and the weakest of what it finds gives way.
    fn add(&mut self, action: &Action, update: &Update) -> Result<String, String> {
        let items = self.store.active_in(&action.slot);
        let is_strong = |item: &Item| item.strength == Strength::Strong;
        let weakest = items
            .iter()
            .min_by(|a, b| is_strong(a).cmp(&is_strong(b)).then(a.confidence.total_cmp(&b.confidence)));
        let Some(weakest) = weakest.filter(|_| action.slot.is_single()) else {
            return Ok(format!("{} written", self.write(update, action)));
        };
        let weaker = !is_strong(weakest) || action.confidence >= weakest.confidence + SURER;
        if action.confidence < SURE || !weaker {
            return Err(format!("{} has the slot", weakest.id));
        }
        let item = weakest.id.clone();
        self.end(&item, ChangeKind::Replaced, action)?;
        Ok(format!("{item} archived, {} has its place", self.write(update, action)))
    }

    fn refine(&mut self, item: &str, update: &Update, action: &Action) -> Result<String, String> {
        let before = self.store.item(item).map(|item| item.value.clone());
        if !self.store.refine(item, update, self.change(action, ChangeKind::Refined)) {
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
    fn unknown(&mut self, slot: &Slot, ended: &[String], action: &Action) -> String {
        self.events.push(WriteEvent {
            op: Op::Unknown,
            text: Some(slot.to_string()),
            reason: Some(format!("{}: {}", action.step, action.reason)),
            ..WriteEvent::default()
        });
        format!("{slot} unknown, archived: {}", ended.join(", "))
    }

    /// Archives an item that is older than the session.
    fn archive(&mut self, item: &str, kind: ChangeKind, action: &Action) -> Result<(), String> {
        self.store.archive(item, self.change(action, kind))?;
        self.event(Op::Stale, item, action);
        Ok(())
    }

    /// Archives an item, older than the session or not.
    fn end(&mut self, item: &str, kind: ChangeKind, action: &Action) -> Result<(), String> {
        self.store.end(item, self.change(action, kind))?;
        self.event(Op::Stale, item, action);
        Ok(())
    }

    /// Writes an item; its id.
    fn write(&mut self, update: &Update, action: &Action) -> String {
        let value = action.value.as_ref().unwrap_or(&update.value);
        let id = self.store.add(&action.slot, value, update, self.change(action, ChangeKind::Added));
        self.wrote(&update.id, &id);
        self.event(Op::Add, &id, action);
        id
    }

    fn wrote(&mut self, update: &str, item: &str) {
        if let Some(known) = self.store.updates.iter_mut().find(|known| known.id == update) {
            known.item.get_or_insert_with(|| item.to_owned());
        }
    }

    fn change(&self, action: &Action, kind: ChangeKind) -> Change {
        let (updates, reason) = (action.updates.clone(), action.reason.clone());
        Change { kind, at: self.at.clone(), step: action.step, updates, reason, before: None }
    }

    /// Tells what became of an item. An item that ends was itself asked about.
    fn event(&mut self, op: Op, item: &str, action: &Action) {
        let Some(known) = self.store.item(item) else { return };
        let asked = LookedAt { memory: item.to_owned(), gated: Some(true) };
        self.events.push(WriteEvent {
            op,
            memory: Some(item.to_owned()),
            text: Some(known.value.clone()),
            sources: Some(known.sources()),
            looked_at: matches!(op, Op::Stale | Op::Weak).then(|| vec![asked]),
            reason: Some(format!("{}: {}", action.step, action.reason)),
            ..WriteEvent::default()
        });
    }
}
