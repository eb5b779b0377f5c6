//! W6: whether the default that a proposal is about still holds.
//!
//! A target is one of the slot's items that are shown, or the item that the proposal names where it is shown at all. A decision without such a
//! target is on the proposal's item, where that is one; else it has none, and only an UNKNOWN does anything without.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::super::asking::{Asker, Fault, Unreachable};
use super::super::super::model::Step;
use super::super::super::schema::Cardinality;
use super::super::super::settings::{Settings, Switch};
use super::super::super::shapes::{object, one_of, text, text_or_null, word};
use super::super::super::store::{Item, Note, Store, Update};
use super::super::action::{Act, Action};
use super::super::adjudicate::Verdict;
use super::super::candidates::{in_slot, updates_listed};
use super::super::local_update::around;
use super::proposals::Proposal;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Decision {
    IndirectInvalidate,
    WeakChallenge,
    SetUnknownCurrent,
    NoOp,
}

#[derive(Debug, Deserialize)]
struct Reply {
    decision: Decision,
    target: Option<String>,
    reason: String,
}

/// The shape of replies.
pub fn reply_shape(settings: &Settings) -> Value {
    let mut decisions = vec!["INDIRECT_INVALIDATE", "WEAK_CHALLENGE", "NO_OP"];
    decisions.extend((!settings.lacks(Switch::NoUnknown)).then_some("SET_UNKNOWN_CURRENT"));
    object([("decision", one_of(&decisions)), ("target", text_or_null()), ("reason", text())])
}

/// Decides on a proposal.
pub fn decide(
    asker: &mut Asker<'_>,
    store: &Store,
    proposal: &Proposal,
    updates: &[Update],
    notes: &mut Vec<Note>,
) -> Result<Result<Verdict, Fault>, Unreachable> {
    let (of_slot, of_domain) = around(asker, store, &proposal.slot, &proposal.searched())?;
    let mut shown = of_slot.iter().chain(&of_domain);
    let hint = shown.find(|item| proposal.hint.as_ref() == Some(&item.id)).copied();
    let mut candidates: Vec<&Item> = of_slot;
    candidates.extend(hint.filter(|hint| hint.slot != proposal.slot));
    let stale = store.stale().filter(|item| item.slot == proposal.slot).map(|item| item.value.as_str());
    let of: Vec<Update> = updates.iter().filter(|u| proposal.updates.contains(&u.id)).cloned().collect();
    let holds = match proposal.slot.cardinality() {
        Cardinality::Single => "one state at a time",
        Cardinality::Multi => "several states at once",
    };
    let data = json!({
        "holds": holds,
        "slot": proposal.slot,
        "item": hint.map(in_slot),
        "value": proposal.value,
        "ground": proposal.reason,
        "updates": updates_listed(&of),
        "candidates": candidates.iter().map(|item| in_slot(item)).collect::<Vec<_>>(),
        "in_domain": of_domain.iter().map(|item| in_slot(item)).collect::<Vec<_>>(),
        "stale": stale.collect::<Vec<_>>(),
        "marker": store.marker(&proposal.slot).map(|marker| &marker.reason),
    });
    let shape = reply_shape(asker.settings);
    let reply: Reply = match asker.ask(Step::Adjudicate, &data, &shape)? {
        Ok(reply) => reply,
        Err(fault) => return Ok(Err(fault)),
    };
    notes.push(Note {
        step: Step::Adjudicate,
        about: hint.map_or_else(|| proposal.slot.to_string(), |hint| hint.id.clone()),
        decision: word(reply.decision),
        reason: reply.reason.clone(),
    });
    let named = candidates.iter().find(|item| reply.target.as_ref() == Some(&item.id)).copied();
    let target = named.or(hint).map(|item| item.id.clone());
    let act = match reply.decision {
        Decision::NoOp => None,
        Decision::IndirectInvalidate => Some(Act::Invalidate),
        Decision::WeakChallenge => Some(Act::Weaken),
        Decision::SetUnknownCurrent => (!asker.settings.lacks(Switch::NoUnknown)).then_some(Act::Unknown),
    };
    let reason = if reply.reason.trim().is_empty() { proposal.reason.clone() } else { reply.reason };
    let action = act.map(|act| Action {
        act,
        slot: proposal.slot.clone(),
        specificity: if target.is_some() { 3 } else { 1 + u8::from(!proposal.value.is_empty()) },
        target,
        updates: proposal.updates.clone(),
        value: None,
        confidence: proposal.confidence,
        step: Step::Adjudicate,
        reason,
    });
    let ids = |items: &[&Item]| items.iter().map(|item| item.id.clone()).collect::<Vec<_>>();
    let asked = hint.map_or_else(|| ids(&candidates), |hint| vec![hint.id.clone()]);
    let context = candidates.iter().chain(&of_domain).map(|item| item.id.clone()).collect();
    Ok(Ok(Verdict { action, asked, context }))
}
