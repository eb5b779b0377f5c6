//! W6 of the paper's variant: one older item, which the session's updates leave, archive, replace, or make unknown.
//!
//! A REPLACE without a value is a STALE, since nothing would have the item's place.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::settings::{Settings, Switch};
use super::super::shapes::{object, one_of, text, text_or_null, word};
use super::super::store::{Item, Note, Store, Update};
use super::action::{Act, Action};
use super::candidates::{in_slot, updates_listed};
use super::local_update::around;
use super::proposals::Proposal;

/// Stale items of the slot that are shown.
const STALE_SHOWN: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Decision {
    Keep,
    Stale,
    Replace,
    Unknown,
}

#[derive(Debug, Deserialize)]
struct Reply {
    decision: Decision,
    target: Option<String>,
    value: Option<String>,
    reason: String,
}

/// The shape of replies.
pub fn reply_shape(settings: &Settings) -> Value {
    let mut decisions = vec!["KEEP", "STALE", "REPLACE"];
    decisions.extend((!settings.lacks(Switch::NoUnknown)).then_some("UNKNOWN"));
    let decision = ("decision", one_of(&decisions));
    object([decision, ("target", text_or_null()), ("value", text_or_null()), ("reason", text())])
}

/// The outcome for a proposal.
#[derive(Debug)]
pub struct Verdict {
    /// The action, where something is to be done.
    pub action: Option<Action>,
    /// Items that the decision was asked about.
    pub asked: Vec<String>,
    pub context: Vec<String>,
}

/// Decides on a proposal.
pub fn decide(
    asker: &mut Asker<'_>,
    store: &Store,
    proposal: &Proposal,
    updates: &[Update],
    notes: &mut Vec<Note>,
) -> Result<Result<Verdict, Fault>, Unreachable> {
    let Some(hint) = store.item(&proposal.item) else {
        return Ok(Ok(Verdict { action: None, asked: Vec::new(), context: Vec::new() }));
    };
    let (of_slot, of_domain) = around(asker, store, &hint.slot, &hint.value)?;
    // The item itself first, near or not.
    let mut candidates = vec![hint];
    candidates.extend(of_slot.into_iter().chain(of_domain).filter(|item| item.id != hint.id));
    let stale: Vec<&Item> = store.stale().filter(|item| item.slot == hint.slot).collect();
    let stale = stale.iter().rev().take(STALE_SHOWN).map(|item| item.value.as_str());
    let of: Vec<Update> = updates.iter().filter(|u| proposal.updates.contains(&u.id)).cloned().collect();
    let data = json!({
        "slot": hint.slot,
        "item": in_slot(hint),
        "value": hint.value,
        "ground": proposal.reason,
        "updates": updates_listed(&of),
        "candidates": candidates.iter().map(|item| in_slot(item)).collect::<Vec<_>>(),
        "in_domain": [],
        "holds": Value::Null,
        "stale": stale.collect::<Vec<_>>(),
        "marker": store.marker(&hint.slot).map(|marker| &marker.reason),
    });
    let shape = reply_shape(asker.settings);
    let reply: Reply = match asker.ask(Step::Adjudicate, &data, &shape)? {
        Ok(reply) => reply,
        Err(fault) => return Ok(Err(fault)),
    };
    let named = candidates.iter().find(|item| reply.target.as_ref() == Some(&item.id)).copied();
    let may_be_unknown = !asker.settings.lacks(Switch::NoUnknown);
    let value = reply.value.filter(|value| !value.trim().is_empty());
    let act = match reply.decision {
        Decision::Keep => None,
        Decision::Stale => Some(Act::Invalidate),
        Decision::Unknown => may_be_unknown.then_some(Act::Unknown),
        Decision::Replace if value.is_some() => Some(Act::Replace),
        Decision::Replace => Some(Act::Invalidate),
    };
    notes.push(Note {
        step: Step::Adjudicate,
        about: hint.id.clone(),
        decision: word(reply.decision),
        reason: reply.reason.clone(),
    });
    // UNKNOWN is of the slot where it names no item; all else is on an item, the hint's if no other.
    let target = match (named, act) {
        (None, Some(Act::Unknown)) if reply.target.is_none() => None,
        (named, _) => Some(named.unwrap_or(hint)),
    };
    let action = act.map(|act| Action {
        act,
        slot: target.unwrap_or(hint).slot.clone(),
        target: target.map(|item| item.id.clone()),
        updates: proposal.updates.clone(),
        value: value.filter(|_| act == Act::Replace),
        confidence: proposal.confidence,
        specificity: if named.is_some() { 2 } else { u8::from(target.is_some()) },
        step: Step::Adjudicate,
        reason: reply.reason,
    });
    let context = candidates.iter().map(|item| item.id.clone()).collect();
    Ok(Ok(Verdict { action, asked: vec![hint.id.clone()], context }))
}
