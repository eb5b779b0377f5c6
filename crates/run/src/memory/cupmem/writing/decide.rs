//! W3 compares a candidate with the items of its own slot; W6 adjudicates whether the older state of a proposal still holds.
//!
//! - Code's variant: W3's decision stands as given, with its target if shown; W8 decides on the effect. W6's target is a shown item of the
//!   slot, or the proposal's item if shown. Without a valid target the decision applies to the proposal's item; without that, only UNKNOWN
//!   has an effect.
//! - Paper's variant, our choices where it is silent: a REFINE or REPLACE of W3 without a valid target applies to the slot's only item, and
//!   is an ADD if there are none or several; an ADD to an occupied single slot replaces its item. In W6 the item is kept, archived, replaced
//!   or made unknown; REPLACE without a value becomes STALE; any shown item can be the target.

use serde::Deserialize;
use serde_json::{Value, json};

use super::arbitrate::{Act, Action};
use super::proposals::Proposal;
use super::{Local, Session, ids, listed, not_current, updates_listed};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::settings::{Step, Switch};
use crate::memory::cupmem::store::{Item, Update};

/// Items shown of the slot, and as many of the rest of its domain.
pub const SHOWN: usize = 5;
/// Stale items of the slot shown by W6 in the paper's variant, latest first.
const STALE_SHOWN: usize = 5;

#[derive(Deserialize)]
struct Reply {
    decision: String,
    target: Option<String>,
    /// W6 of the paper's variant only.
    value: Option<String>,
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
        let named = of_slot.iter().find(|item| reply.target.as_ref() == Some(&item.id)).copied();
        let action = self.local_action(update, named, &reply);
        let became = action.as_ref().map_or("NO_OP", |action| action.act.name());
        let decision = match reply.decision == became {
            true => reply.decision,
            false => format!("{}, taken as {became}", reply.decision),
        };
        let of_action = action.as_ref().and_then(|action| action.target.clone());
        Ok(Local {
            target: of_action.or(named.map(|item| item.id.clone())),
            action,
            decision,
            reason: reply.reason,
            asked: ids(of_slot),
            context: ids(of_domain),
        })
    }

    fn local_action(&self, update: &Update, named: Option<&Item>, reply: &Reply) -> Option<Action> {
        let is_code = self.asker.settings.is_code();
        let occupants = self.store.active_in(&update.slot);
        let only = occupants.first().copied().filter(|_| occupants.len() == 1);
        let decision = reply.decision.as_str();
        let (act, target) = match (decision, named.or(only)) {
            _ if is_code => {
                let acts = [Act::Add, Act::Refine, Act::Replace, Act::Invalidate];
                (acts.into_iter().find(|act| act.name() == decision)?, named)
            }
            ("REFINE", Some(item)) => (Act::Refine, Some(item)),
            ("REPLACE", Some(item)) => (Act::Replace, Some(item)),
            ("ADD" | "REFINE" | "REPLACE", _) => match occupants.last().filter(|_| update.slot.is_single()) {
                Some(occupant) => (Act::Replace, Some(*occupant)),
                None => (Act::Add, None),
            },
            _ => return None,
        };
        let specificity =
            if is_code { 2 + u8::from(target.is_some()) } else { 2 * u8::from(target.is_some()) };
        let target = target.map(|item| item.id.clone());
        Some(Action { specificity, target, ..Action::of_update(act, update, &reply.reason) })
    }

    /// The nearest active items of the slot, and of the rest of its domain.
    fn around(&mut self, slot: &Slot, query: &str) -> Result<(Vec<&'a Item>, Vec<&'a Item>), Stop> {
        let of_domain = self.store.active().filter(|item| item.slot.domain() == slot.domain());
        let (of_slot, of_domain): (Vec<&Item>, Vec<&Item>) = of_domain.partition(|item| item.slot == *slot);
        let is_code = self.asker.settings.is_code();
        let mut nearest = |items: Vec<&'a Item>| -> Result<Vec<&'a Item>, Stop> {
            let ranked = self.asker.nearest(items, |item| item.searched(is_code), query, SHOWN)?;
            Ok(ranked.into_iter().map(|(item, _)| item).collect())
        };
        Ok((nearest(of_slot)?, nearest(of_domain)?))
    }

    pub(super) fn adjudicate(
        &mut self,
        proposal: &Proposal,
        updates: &[Update],
    ) -> Result<Option<Action>, Stop> {
        let (store, is_code, slot) = (self.store, self.asker.settings.is_code(), &proposal.slot);
        let known = proposal.item.as_ref().and_then(|id| store.item(id));
        let sought =
            known.filter(|_| !is_code).map_or_else(|| proposal.searched(), |item| item.value.clone());
        let (of_slot, of_domain) = self.around(slot, &sought)?;
        let mut stale: Vec<&str> =
            store.stale().filter(|item| item.slot == *slot).map(|item| item.value.as_str()).collect();
        let (hint, candidates, in_domain, holds);
        if is_code {
            let shown = |item: &&Item| of_slot.iter().chain(&of_domain).any(|shown| shown.id == item.id);
            hint = known.filter(shown);
            let elsewhere = hint.filter(|hint| hint.slot != *slot);
            candidates = of_slot.into_iter().chain(elsewhere).collect::<Vec<&Item>>();
            in_domain = of_domain;
            holds = Some(if slot.is_single() { "one state at a time" } else { "several states at once" });
        } else {
            hint = known;
            let others = of_slot.into_iter().chain(of_domain);
            let others = others.filter(|item| proposal.item.as_ref() != Some(&item.id));
            candidates = hint.into_iter().chain(others).collect();
            in_domain = Vec::new();
            holds = None;
            stale.reverse();
            stale.truncate(STALE_SHOWN);
        }
        let value = if is_code { Some(&proposal.value) } else { hint.map(|item| &item.value) };
        let data = json!({
            "slot": slot,
            "item": hint.map_or(Value::Null, |item| listed([item])[0].clone()),
            "value": value,
            "ground": proposal.reason,
            "updates": updates_listed(updates.iter().filter(|u| proposal.updates.contains(&u.id))),
            "candidates": listed(candidates.iter().copied()),
            "in_domain": listed(in_domain.iter().copied()),
            "holds": holds,
            "stale": stale,
            "marker": store.marker(slot).map(|marker| &marker.reason),
        });
        let reply: Reply = self.asker.ask(Step::Adjudicate, &data)?;
        let about = hint.map_or_else(|| slot.to_string(), |hint| hint.id.clone());
        self.note(Step::Adjudicate, &about, &reply.decision, &reply.reason);
        match hint {
            Some(hint) => self.asked.extend([hint.id.clone()]),
            None => self.asked.extend(ids(candidates.iter().copied())),
        }
        self.looked_at.extend(ids(candidates.iter().chain(&in_domain).copied()));

        let named = candidates.iter().find(|item| reply.target.as_ref() == Some(&item.id)).copied();
        let may_be_unknown = !self.asker.settings.lacks(Switch::NoUnknown);
        let value = reply.value.filter(|value| !is_code && !value.trim().is_empty());
        let act = match reply.decision.as_str() {
            "REPLACE" if value.is_some() => Act::Replace,
            "INDIRECT_INVALIDATE" | "STALE" | "REPLACE" => Act::Invalidate,
            "WEAK_CHALLENGE" => Act::Weaken,
            "SET_UNKNOWN_CURRENT" | "UNKNOWN" if may_be_unknown => Act::Unknown,
            _ => return Ok(None),
        };
        let mut target = named.or(hint);
        let specificity = match (is_code, named, target) {
            (true, _, Some(_)) => 3,
            (true, _, None) => 1 + u8::from(!proposal.value.is_empty()),
            (false, Some(_), _) => 2,
            (false, None, _) if act == Act::Unknown && reply.target.is_none() => {
                // Without a named item UNKNOWN applies to the slot; other decisions default to the hint's item.
                target = None;
                0
            }
            (false, None, target) => u8::from(target.is_some()),
        };
        let reason = match is_code && reply.reason.trim().is_empty() {
            true => proposal.reason.clone(),
            false => reply.reason,
        };
        Ok(Some(Action {
            act,
            slot: target.filter(|_| !is_code).map_or(slot, |item| &item.slot).clone(),
            target: target.map(|item| item.id.clone()),
            updates: proposal.updates.clone(),
            value: value.filter(|_| act == Act::Replace),
            confidence: proposal.confidence,
            specificity,
            step: Step::Adjudicate,
            reason,
        }))
    }
}
