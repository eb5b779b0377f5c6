//! W6: adjudicates whether the older state of a proposal still holds.
//!
//! - Paper's variant: the item is kept, archived, replaced or made unknown. REPLACE without a value becomes STALE. Any shown item can be
//!   the target.
//! - Code's variant: the target is a shown item of the slot, or the proposal's item if shown. Without a valid target the decision applies
//!   to the proposal's item; without that, only UNKNOWN has an effect.

use serde::Deserialize;
use serde_json::{Value, json};

use super::arbitrate::{Act, Action};
use super::proposals::Proposal;
use super::{Session, ids, listed, updates_listed};
use crate::memory::cupmem::asking::Stop;
use crate::memory::cupmem::model::Step;
use crate::memory::cupmem::settings::Switch;
use crate::memory::cupmem::store::{Item, Update};

/// Stale items of the slot shown in the paper's variant, latest first.
const STALE_SHOWN: usize = 5;

#[derive(Deserialize)]
struct Reply {
    decision: String,
    target: Option<String>,
    /// Paper's variant only.
    value: Option<String>,
    reason: String,
}

impl Session<'_, '_> {
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
