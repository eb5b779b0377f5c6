//! W8: applies the actions kept by W7 to the store.
//!
//! - Paper's variant, in one batch: ends, then writes, then replacement values stated by adjudication. Only items older than the session
//!   end.
//! - Code's variant, in sequence: updates in order, then verdicts in order. Writes precede ends, and each action sees the effects of
//!   earlier ones.

use std::collections::BTreeSet;

use super::Session;
use super::arbitrate::{Act, Action, arbitrate, suppressed};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::model::Step;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::settings::Switch;
use crate::memory::cupmem::store::{Change, ChangeKind, Item, Moment, Store, Strength, Update};
use crate::memory::system::protocol::{LookedAt, Op, WriteEvent};

/// Code's variant: minimum confidence of an ADD to an occupied single slot.
const SURE: f64 = 0.85;
/// Such an ADD also needs this margin over the slot's weakest item, or that item must be weak.
const SURER: f64 = 0.15;

impl Session<'_, '_> {
    /// W7 to W9, with the session's updates already in the store. Returns the events.
    pub(super) fn apply(&mut self, after: &mut Store) -> Result<Vec<WriteEvent>, Stop> {
        let settings = self.asker.settings;
        let actions = std::mem::take(&mut self.actions);
        if settings.is_code() && settings.adjudicates() {
            return self.apply_in_order(after, &actions);
        }
        // An append-only store keeps every candidate, also in single slots.
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
            // The stated replacement may be the state that the update itself wrote.
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
        // Updates with an effect, or behind an applied verdict.
        let mut accepted = BTreeSet::new();
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

struct Applying<'a> {
    store: &'a mut Store,
    at: &'a Moment,
    events: Vec<WriteEvent>,
}

impl Applying<'_> {
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
                // The update has already written the replacement, unless a different value is stated for another slot.
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

    /// Paper's variant: items ended by an UNKNOWN without target. Older items of the slot, if it is single or there is only one.
    fn older_defaults(&self, action: &Action, kept: &[Action]) -> Vec<String> {
        let others = |id: &String| kept.iter().any(|other| other.target.as_ref() == Some(id));
        let items = self.store.active_in(&action.slot);
        if !action.slot.is_single() && items.len() != 1 {
            return Vec::new();
        }
        let older = items.iter().filter(|item| item.created.index < self.at.index);
        older.map(|item| item.id.clone()).filter(|id| !others(id)).collect()
    }

    /// Code's variant: items ended by an UNKNOWN without target. All items of the slot, if exactly one is older than the session,
    /// or any is and the slot is single. Includes items of this session: the public code deletes these, here they are archived.
    fn defaults(&self, action: &Action) -> Vec<String> {
        let items = self.store.active_in(&action.slot);
        let older = items.iter().filter(|item| item.created.index < self.at.index).count();
        let ends = older == 1 || (older > 0 && action.slot.is_single());
        items.iter().filter(|_| ends).map(|item| item.id.clone()).collect()
    }

    /// In an occupied single slot an ADD is blocked, unless it is confident and the weakest item can be replaced.
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

    fn unknown(&mut self, slot: &Slot, ended: &[String], action: &Action) -> String {
        self.events.push(WriteEvent {
            op: Op::Unknown,
            text: Some(slot.to_string()),
            reason: Some(format!("{}: {}", action.step, action.reason)),
            ..WriteEvent::default()
        });
        format!("{slot} unknown, archived: {}", ended.join(", "))
    }

    /// Archives an item older than the session.
    fn archive(&mut self, item: &str, kind: ChangeKind, action: &Action) -> Result<(), String> {
        self.store.archive(item, self.change(action, kind))?;
        self.event(Op::Stale, item, action);
        Ok(())
    }

    /// Archives an item of any age.
    fn end(&mut self, item: &str, kind: ChangeKind, action: &Action) -> Result<(), String> {
        self.store.end(item, self.change(action, kind))?;
        self.event(Op::Stale, item, action);
        Ok(())
    }

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

    /// Records an event; for an end, the item counts as asked about.
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
