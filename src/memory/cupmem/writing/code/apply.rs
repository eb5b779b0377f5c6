//! W8: the actions of a session change the store, one after the other: updates in their order, then verdicts in theirs. Each sees what those before it
//! have left.

use std::collections::{BTreeMap, BTreeSet};

use super::super::super::model::Step;
use super::super::super::schema::Cardinality;
use super::super::super::settings::{Settings, Switch};
use super::super::super::store::{ChangeKind, Item, Moment, Note, Store, Strength, Update};
use super::super::action::{Act, Action};
use super::super::apply::Applying;
use crate::memory::system::protocol::{Op, WriteEvent};

/// An ADD of this confidence may have an occupied single slot,
const SURE: f64 = 0.85;
/// where its weakest item's is lower by this, or that item is weak.
const SURER: f64 = 0.15;

/// The outcome of a session.
pub struct Applied {
    pub events: Vec<WriteEvent>,
    /// Updates that did something, or that a verdict rests on which did.
    pub accepted: BTreeSet<String>,
    /// Targets of verdicts, suppressed ones included, that were stale when it was their turn.
    pub fresh: Vec<String>,
}

/// Applies the actions that are not suppressed.
pub fn apply(
    store: &mut Store,
    settings: &Settings,
    at: &Moment,
    updates: &[Update],
    actions: &[Action],
    suppressed: &BTreeMap<usize, &'static str>,
    notes: &mut Vec<Note>,
) -> Applied {
    let mut applying = Applying::begin(store, at, updates, notes);
    let marks = !settings.lacks(Switch::NoUnknown);
    let (mut accepted, mut fresh) = (BTreeSet::new(), Vec::new());
    for (place, action) in actions.iter().enumerate() {
        if !suppressed.contains_key(&place) {
            let outcome = applying.in_order(action, marks);
            accepted.extend(action.updates.iter().filter(|_| outcome.is_ok()).cloned());
            applying.note(action, outcome);
        }
        let ended = |id: &&String| applying.store.item(id).is_some_and(|item| !item.is_active());
        let of_verdict = action.target.as_ref().filter(|_| action.step == Step::Adjudicate);
        fresh.extend(of_verdict.filter(ended).cloned());
    }
    Applied { events: applying.events, accepted, fresh }
}

impl Applying<'_> {
    fn in_order(&mut self, action: &Action, marks: bool) -> Result<String, String> {
        let update = self.update(action)?;
        let of_update = action.step == Step::LocalUpdate;
        let active = |item: &&Item| item.is_active() && (!of_update || item.slot == action.slot);
        let target = action.target.as_deref().and_then(|id| self.store.item(id)).filter(active);
        let target = target.map(|item| (item.id.clone(), item.slot.clone()));
        match (action.act, target) {
            (Act::Add, _) => self.add(action, update),
            (Act::Refine, Some((item, _))) => self.refine(&item, update, action),
            (Act::Replace, Some((item, _))) => {
                self.archive(&item, ChangeKind::Replaced, action)?;
                Ok(format!("{item} archived, {} has its place", self.write(update, action)))
            }
            (Act::Invalidate, Some((item, slot))) => {
                self.archive(&item, ChangeKind::Invalidated, action)?;
                if marks {
                    self.store.mark_anew(&slot, &self.grounds(action));
                }
                Ok(format!("{item} archived"))
            }
            (Act::Weaken, Some((item, _))) => {
                self.store.weaken(&item, self.grounds(action))?;
                self.event(Op::Weak, &item, action);
                Ok(format!("{item} weakened"))
            }
            (Act::Unknown, Some((item, slot))) => {
                self.archive(&item, ChangeKind::Unknown, action)?;
                self.store.mark_anew(&slot, &self.grounds(action));
                Ok(self.unknown(&slot, &[item], action))
            }
            (Act::Unknown, None) => {
                let ends = self.defaults(action);
                for item in &ends {
                    self.end(item, ChangeKind::Unknown, action)?;
                }
                self.store.mark_anew(&action.slot, &self.grounds(action));
                Ok(self.unknown(&action.slot, &ends, action))
            }
            (_, None) => Err("it has no active target".to_owned()),
        }
    }

    /// A single slot has room for one: an ADD is blocked there, unless it is sure and the weakest of what it finds gives way.
    fn add(&mut self, action: &Action, update: &Update) -> Result<String, String> {
        let items = self.store.active_in(&action.slot);
        let strength = |item: &&&Item| (item.strength == Strength::Strong, item.confidence);
        let weakest = items.iter().min_by(|a, b| {
            let ((a_strong, a_sure), (b_strong, b_sure)) = (strength(a), strength(b));
            a_strong.cmp(&b_strong).then(a_sure.total_cmp(&b_sure))
        });
        let weakest = weakest.filter(|_| action.slot.cardinality() == Cardinality::Single);
        let Some(weakest) = weakest else {
            return Ok(format!("{} written", self.write(update, action)));
        };
        let weaker = weakest.strength == Strength::Weak || action.confidence >= weakest.confidence + SURER;
        if action.confidence < SURE || !weaker {
            return Err(format!("{} has the slot", weakest.id));
        }
        let item = weakest.id.clone();
        self.end(&item, ChangeKind::Replaced, action)?;
        Ok(format!("{item} archived, {} has its place", self.write(update, action)))
    }

    /// The items that an UNKNOWN without target ends: the slot's, where it is single or one is older than the session. What the session itself
    /// has written there ends with them. (The public code loses that without a trace; here it is archived.)
    fn defaults(&self, action: &Action) -> Vec<String> {
        let items = self.store.active_in(&action.slot);
        let older = items.iter().filter(|item| item.created.index < self.at.index).count();
        let ends = older == 1 || (older > 0 && action.slot.cardinality() == Cardinality::Single);
        items.iter().filter(|_| ends).map(|item| item.id.clone()).collect()
    }
}
