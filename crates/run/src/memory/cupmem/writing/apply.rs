//! W8: applies the actions kept by W7 to the store. W9 (code's variant only) links accepted updates to stale items that they continue or
//! succeed; an update is accepted if it had an effect, or if an applied verdict rests on it.
//!
//! - Paper's variant, in one batch: ends, then writes, then replacement values stated by adjudication. Only items older than the session
//!   end.
//! - Code's variant, in sequence: updates in order, then verdicts in order. Writes precede ends, and each action sees the effects of
//!   earlier ones.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::json;

use super::arbitrate::{Act, Action, arbitrate, suppressed};
use super::{Session, listed, updates_listed};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::settings::{Step, Switch};
use crate::memory::cupmem::store::{
    Change, ChangeKind, Item, Link, Moment, Relation, Store, Update, sources,
};
use crate::memory::system::protocol::{LookedAt, Op, WriteEvent};

/// Code's variant: minimum confidence of an ADD to an occupied single slot.
const SURE: f64 = 0.85;
/// Such an ADD also needs this margin over the slot's weakest item, or that item must be weak.
const SURER: f64 = 0.15;
/// Stale items that W9 compares per update, and the limit of those chosen by similarity alone.
const LINKED: usize = 4;
const GLOBAL: usize = 2;

impl Session<'_, '_> {
    /// W7 to W9, with the session's updates already in the store. Returns the events.
    pub(super) fn apply(&mut self, after: &mut Store) -> Result<Vec<WriteEvent>, Stop> {
        let (settings, at) = (self.asker.settings, self.at.clone());
        let mut actions = std::mem::take(&mut self.actions);
        let (in_order, marks) =
            (settings.is_code() && settings.adjudicates(), !settings.lacks(Switch::NoUnknown));
        let mut applying = Applying { in_order, marks, store: after, at: &at, events: Vec::new() };
        if in_order {
            let suppressed = suppressed(&actions);
            for (place, why) in &suppressed {
                self.note_dropped(&actions[*place], why);
            }
            let mut accepted = BTreeSet::new();
            let mut fresh: Vec<String> = Vec::new();
            for (place, action) in actions.iter().enumerate() {
                if !suppressed.contains_key(&place) {
                    let outcome = applying.apply(action, &actions);
                    accepted.extend(action.updates.iter().filter(|_| outcome.is_ok()).cloned());
                    self.note_applied(action, outcome);
                }
                let ended = |id: &&String| applying.store.item(id).is_some_and(|item| !item.is_active());
                let of_verdict = action.target.as_ref().filter(|_| action.step == Step::Adjudicate);
                fresh.extend(of_verdict.filter(ended).cloned());
            }
            let events = applying.events;
            if settings.links() {
                let links = self.find_links(after, &accepted, &fresh)?;
                after.links.extend(links);
            }
            return Ok(events);
        }
        // An append-only store keeps every candidate, also in single slots.
        if settings.adjudicates() {
            let (kept, dropped) = arbitrate(actions);
            dropped.iter().for_each(|(action, why)| self.note_dropped(action, why));
            actions = kept;
        }
        actions.sort_by_key(|action| match action.act {
            Act::Invalidate | Act::Weaken => 0,
            Act::Unknown => 1,
            // The stated replacement may be the state that the update itself wrote.
            Act::Replace if action.step == Step::Adjudicate => 4,
            Act::Replace => 2,
            Act::Refine | Act::Add => 3,
        });
        for action in &actions {
            let outcome = applying.apply(action, &actions);
            self.note_applied(action, outcome);
        }
        Ok(applying.events)
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

    /// Judges links to stale items of `after` one by one. `fresh` are items ended by verdicts of this session.
    fn find_links(
        &mut self,
        after: &Store,
        accepted: &BTreeSet<String>,
        fresh: &[String],
    ) -> Result<Vec<Link>, Stop> {
        #[derive(Deserialize)]
        struct Reply {
            relation: String,
            reason: String,
        }
        let mut links = Vec::new();
        for update in after.updates.iter().filter(|update| accepted.contains(&update.id)) {
            for item in self.linkable(after, update, fresh)? {
                let data = json!({
                    "update": updates_listed([update]),
                    "item": listed([item])[0],
                    "archived": item.archived().map(|change| &change.reason),
                });
                let reply = self.asker.ask::<Reply>(Step::Links, &data).map(Some);
                let Some(Reply { relation, reason }) = self.or_fault(reply)? else { continue };
                self.note(Step::Links, &format!("{} and {}", update.id, item.id), &relation, &reason);
                let relation = match relation.as_str() {
                    "SUPPORT" => Relation::Support,
                    "SUCCESSOR" => Relation::Successor,
                    _ => continue,
                };
                let (item, update, at) = (item.id.clone(), update.id.clone(), self.at.clone());
                links.push(Link { item, update, relation, reason, at });
            }
        }
        Ok(links)
    }

    /// The nearest of the freshly ended items, then of the slot, of affected domains, of all; all older than the session.
    fn linkable<'s>(
        &mut self,
        after: &'s Store,
        update: &Update,
        fresh: &[String],
    ) -> Result<Vec<&'s Item>, Stop> {
        let (query, at, affected) = (update.searched(true), self.at.index, self.affected.clone());
        let mut chosen: Vec<&Item> = Vec::new();
        type OfGroup<'a> = &'a dyn Fn(&Item) -> bool;
        let groups: [(OfGroup<'_>, usize); 4] = [
            (&|item| fresh.contains(&item.id), LINKED),
            (&|item| item.slot == update.slot, LINKED),
            (&|item| affected.contains(&item.slot.domain()), LINKED),
            (&|_| true, GLOBAL),
        ];
        for (place, (of_group, most)) in groups.into_iter().enumerate() {
            let known = |item: &Item| chosen.iter().any(|known| known.id == item.id);
            // As in the public code, already chosen items of the slot still count towards the limit.
            let free = |item: &Item| place == 1 || !known(item);
            let older = after.stale().filter(|item| item.created.index < at);
            let group: Vec<&Item> = older.filter(|item| of_group(item) && free(item)).collect();
            let most = most.min(LINKED - chosen.len());
            let nearest = self.asker.nearest(group, |item| item.searched(true), &query, most)?;
            let mut new: Vec<&Item> = nearest.into_iter().map(|(item, _)| item).collect();
            new.retain(|item| !known(item));
            chosen.extend(new);
        }
        Ok(chosen)
    }
}

struct Applying<'a> {
    /// The rules of the code's variant.
    in_order: bool,
    /// Code's variant: an invalidated slot is marked unknown.
    marks: bool,
    store: &'a mut Store,
    at: &'a Moment,
    events: Vec<WriteEvent>,
}

impl Applying<'_> {
    /// Applies an action and describes it, or gives the reason against it. `all` are the actions of the session.
    fn apply(&mut self, action: &Action, all: &[Action]) -> Result<String, String> {
        let in_order = self.in_order;
        let update = action.updates.first().and_then(|id| self.store.update(id));
        let update = update.filter(|update| update.at == *self.at).cloned();
        let update = update.ok_or("it rests on no update of the session")?;
        let target = action.target.as_deref().and_then(|id| self.store.item(id));
        let of_slot = |item: &&Item| action.step != Step::LocalUpdate || item.slot == action.slot;
        let target = target.filter(|item| !in_order || (item.is_active() && of_slot(item)));
        let (target, slot) = target.map(|item| (item.id.clone(), item.slot.clone())).unzip();
        match (action.act, target) {
            (Act::Add, _) if in_order => self.add(action, &update),
            (Act::Add, _) => Ok(format!("{} written", self.write(&update, action))),
            (Act::Unknown, target) => {
                let slot = slot.unwrap_or_else(|| action.slot.clone());
                let ends = match &target {
                    Some(item) => vec![item.clone()],
                    None => self.defaults(action, all),
                };
                for item in &ends {
                    self.end(item, ChangeKind::Unknown, action, target.is_some())?;
                }
                self.store.mark(&slot, &self.change(action, ChangeKind::Unknown), in_order);
                self.events.push(WriteEvent {
                    op: Op::Unknown,
                    text: Some(slot.to_string()),
                    reason: Some(format!("{}: {}", action.step, action.reason)),
                    ..WriteEvent::default()
                });
                Ok(format!("{slot} unknown, archived: {}", ends.join(", ")))
            }
            (_, None) if in_order => Err("it has no active target".to_owned()),
            (_, None) => Err("it names no item".to_owned()),
            (Act::Refine, Some(item)) => self.refine(&item, &update, action),
            (Act::Replace, Some(item)) => {
                self.end(&item, ChangeKind::Replaced, action, true)?;
                // The update has already written the replacement, unless a different value is stated for another slot.
                let written = update.item.as_ref().filter(|_| action.step == Step::Adjudicate);
                let in_slot = |id: &&String| self.store.item(id).is_some_and(|i| i.slot == action.slot);
                let written = match written.filter(in_slot) {
                    Some(written) => written.clone(),
                    None => self.write(&update, action),
                };
                Ok(format!("{item} archived, {written} has its place"))
            }
            (Act::Invalidate, Some(item)) => {
                self.end(&item, ChangeKind::Invalidated, action, true)?;
                if let Some(slot) = slot.filter(|_| in_order && self.marks) {
                    self.store.mark(&slot, &self.change(action, ChangeKind::Invalidated), true);
                }
                Ok(format!("{item} archived"))
            }
            (Act::Weaken, Some(item)) => {
                self.store.weaken(&item, self.change(action, ChangeKind::Weakened))?;
                self.event(Op::Weak, &item, action);
                Ok(format!("{item} weakened"))
            }
        }
    }

    /// Items ended by an UNKNOWN without target. Paper's variant: older items of the slot, if it is single or there is only one. Code's
    /// variant: all items of the slot, if exactly one is older than the session, or any is and the slot is single. Includes items of this
    /// session: the public code deletes these, here they are archived.
    fn defaults(&self, action: &Action, all: &[Action]) -> Vec<String> {
        let items = self.store.active_in(&action.slot);
        let is_older = |item: &&&Item| item.created.index < self.at.index;
        let is_single = action.slot.is_single();
        if self.in_order {
            let older = items.iter().filter(is_older).count();
            let ends = older == 1 || (older > 0 && is_single);
            return items.iter().filter(|_| ends).map(|item| item.id.clone()).collect();
        }
        let free = |item: &&&Item| !all.iter().any(|other| other.target.as_ref() == Some(&item.id));
        let ends = is_single || items.len() == 1;
        let older = items.iter().filter(is_older).filter(free).filter(|_| ends);
        older.map(|item| item.id.clone()).collect()
    }

    /// In an occupied single slot an ADD is blocked, unless it is confident and the weakest item can be replaced.
    fn add(&mut self, action: &Action, update: &Update) -> Result<String, String> {
        let items = self.store.active_in(&action.slot);
        let weakest = items
            .iter()
            .min_by(|a, b| a.is_strong().cmp(&b.is_strong()).then(a.confidence.total_cmp(&b.confidence)));
        let Some(weakest) = weakest.filter(|_| action.slot.is_single()) else {
            return Ok(format!("{} written", self.write(update, action)));
        };
        let weaker = !weakest.is_strong() || action.confidence >= weakest.confidence + SURER;
        if action.confidence < SURE || !weaker {
            return Err(format!("{} has the slot", weakest.id));
        }
        let item = weakest.id.clone();
        self.end(&item, ChangeKind::Replaced, action, false)?;
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

    /// Archives an item; `older` requires one older than the session.
    fn end(&mut self, item: &str, kind: ChangeKind, action: &Action, older: bool) -> Result<(), String> {
        let change = self.change(action, kind);
        if older { self.store.archive(item, change) } else { self.store.end(item, change) }?;
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
            sources: Some(sources(&known.evidence)),
            looked_at: matches!(op, Op::Stale | Op::Weak).then(|| vec![asked]),
            reason: Some(format!("{}: {}", action.step, action.reason)),
            ..WriteEvent::default()
        });
    }
}
