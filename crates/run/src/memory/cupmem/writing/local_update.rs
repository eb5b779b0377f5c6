//! W3: compares a candidate with the items of its own slot.
//!
//! In the code's variant the decision stands as given, with its target if shown; W8 decides on the effect. Our choices where the paper is
//! silent: a REFINE or REPLACE without a valid target applies to the slot's only item, and is an ADD if there are none or several; an ADD
//! to an occupied single slot replaces its item.

use serde::Deserialize;
use serde_json::json;

use super::arbitrate::{Act, Action};
use super::{Local, Session, ids, listed, not_current, updates_listed};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::model::Step;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::store::{Item, Store, Update};

/// Items shown of the slot, and as many of the rest of its domain.
pub const SHOWN: usize = 5;

#[derive(Deserialize)]
struct Reply {
    decision: String,
    target: Option<String>,
    reason: String,
}

impl<'a> Session<'a, '_> {
    pub(super) fn update_locally(&mut self, update: &Update) -> Result<Local, Stop> {
        let (store, is_code) = (self.store, self.asker.settings.is_code());
        let (of_slot, of_domain) = self.around(&update.slot, &update.searched(is_code))?;
        let (former, unknown) = not_current(store, |slot| is_code && *slot == update.slot);
        let data = json!({
            "update": updates_listed([update]),
            "single": update.slot.is_single(),
            "in_slot": listed(of_slot.iter().copied()),
            "in_domain": listed(of_domain.iter().copied()),
            "former": former,
            "unknown": unknown,
        });
        let reply: Reply = self.asker.ask(Step::LocalUpdate, &data)?;
        let action = match is_code {
            true => given(update, &of_slot, &reply),
            false => action(store, update, &of_slot, &reply),
        };
        let became = action.as_ref().map_or("NO_OP", |action| action.act.name());
        let decision = match reply.decision == became {
            true => reply.decision,
            false => format!("{}, taken as {became}", reply.decision),
        };
        let of_action = action.as_ref().and_then(|action| action.target.clone());
        Ok(Local {
            target: of_action.or(reply.target.filter(|target| of_slot.iter().any(|item| item.id == *target))),
            action,
            decision,
            reason: reply.reason,
            asked: ids(of_slot),
            context: ids(of_domain),
        })
    }

    /// The nearest active items of the slot, and of the rest of its domain.
    pub(super) fn around(
        &mut self,
        slot: &Slot,
        query: &str,
    ) -> Result<(Vec<&'a Item>, Vec<&'a Item>), Stop> {
        let of_domain = self.store.active().filter(|item| item.slot.domain() == slot.domain());
        let (of_slot, of_domain): (Vec<&Item>, Vec<&Item>) = of_domain.partition(|item| item.slot == *slot);
        let is_code = self.asker.settings.is_code();
        let mut nearest = |items: Vec<&'a Item>| -> Result<Vec<&'a Item>, Stop> {
            let ranked = self.asker.nearest(items, |item| item.searched(is_code), query, SHOWN)?;
            Ok(ranked.into_iter().map(|(item, _)| item).collect())
        };
        Ok((nearest(of_slot)?, nearest(of_domain)?))
    }
}

/// Action in the code's variant.
fn given(update: &Update, shown: &[&Item], reply: &Reply) -> Option<Action> {
    let act = match reply.decision.as_str() {
        "ADD" => Act::Add,
        "REFINE" => Act::Refine,
        "REPLACE" => Act::Replace,
        "INVALIDATE" => Act::Invalidate,
        _ => return None,
    };
    let target = reply.target.clone().filter(|target| shown.iter().any(|item| item.id == *target));
    let specificity = if target.is_some() { 3 } else { 2 };
    Some(Action { specificity, ..Action::of_update(act, update, target, reply.reason.clone()) })
}

/// Action in the paper's variant.
fn action(store: &Store, update: &Update, shown: &[&Item], reply: &Reply) -> Option<Action> {
    let named = shown.iter().find(|item| reply.target.as_ref() == Some(&item.id)).copied();
    let occupants = store.active_in(&update.slot);
    let only = match occupants.as_slice() {
        [only] => Some(*only),
        _ => None,
    };
    let (act, target) = match (reply.decision.as_str(), named.or(only)) {
        ("REFINE", Some(item)) => (Act::Refine, Some(item)),
        ("REPLACE", Some(item)) => (Act::Replace, Some(item)),
        ("ADD" | "REFINE" | "REPLACE", _) => match occupants.last().filter(|_| update.slot.is_single()) {
            Some(occupant) => (Act::Replace, Some(*occupant)),
            None => (Act::Add, None),
        },
        _ => return None,
    };
    Some(Action::of_update(act, update, target.map(|item| item.id.clone()), reply.reason.clone()))
}
