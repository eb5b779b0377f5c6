//! W3: a candidate against the items of its own slot.
//!
//! In the code's variant a decision stands as it is given, with the target that it names of the items shown or none; what it does is W8's to say.
//! Choices where the paper is silent: a REFINE or REPLACE whose target is no item of the slot falls on the slot's only item, and is an ADD where
//! there are none or several; an ADD to an occupied single slot replaces its occupant, since a single slot has one current default and the later
//! one holds.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::asking::{Asker, Fault, Unreachable};
use super::super::model::Step;
use super::super::schema::{Cardinality, Slot};
use super::super::shapes::{object, one_of, text, text_or_null, word};
use super::super::store::{Item, Store, Update};
use super::action::{Act, Action};
use super::candidates::{in_slot, not_current, updates_listed};

/// Items shown of the slot, and as many of the rest of its domain.
pub const SHOWN: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Decision {
    Add,
    Refine,
    Replace,
    NoOp,
    Invalidate,
}

#[derive(Debug, Deserialize)]
struct Reply {
    decision: Decision,
    target: Option<String>,
    reason: String,
}

/// The shape of replies.
pub fn reply_shape(is_code: bool) -> Value {
    let decisions = ["ADD", "REFINE", "REPLACE", "NO_OP", "INVALIDATE"];
    let decisions = if is_code { &decisions[..] } else { decisions.split_at(4).0 };
    object([("decision", one_of(decisions)), ("target", text_or_null()), ("reason", text())])
}

/// The outcome for a candidate.
#[derive(Debug)]
pub struct Local {
    /// The action, where something is to be done.
    pub action: Option<Action>,
    /// The decision as it was given, and what became of it.
    pub decision: String,
    pub reason: String,
    pub target: Option<String>,
    /// Items of the slot, each of which could be the target.
    pub asked: Vec<String>,
    /// Items of the domain, shown as context.
    pub context: Vec<String>,
}

/// Decides on a candidate.
pub fn decide(
    asker: &mut Asker<'_>,
    store: &Store,
    update: &Update,
) -> Result<Result<Local, Fault>, Unreachable> {
    let is_code = asker.settings.is_code();
    let (of_slot, of_domain) = around(asker, store, &update.slot, &update.searched(is_code))?;
    let (former, unknown) = not_current(store, |slot| is_code && *slot == update.slot);
    let ids = |items: &[&Item]| items.iter().map(|item| item.id.clone()).collect::<Vec<_>>();
    let data = json!({
        "update": updates_listed(std::slice::from_ref(update)),
        "single": update.slot.cardinality() == Cardinality::Single,
        "in_slot": of_slot.iter().map(|item| in_slot(item)).collect::<Vec<_>>(),
        "in_domain": of_domain.iter().map(|item| in_slot(item)).collect::<Vec<_>>(),
        "former": former,
        "unknown": unknown,
    });
    let shape = reply_shape(is_code);
    let reply: Reply = match asker.ask(Step::LocalUpdate, &data, &shape)? {
        Ok(reply) => reply,
        Err(fault) => return Ok(Err(fault)),
    };
    let action =
        if is_code { given(update, &of_slot, &reply) } else { action(store, update, &of_slot, &reply) };
    let said = word(reply.decision);
    let became = action.as_ref().map_or("NO_OP", |action| act_name(action.act)).to_owned();
    let decision = if said == became { became } else { format!("{said}, taken as {became}") };
    Ok(Ok(Local {
        target: action
            .as_ref()
            .and_then(|action| action.target.clone())
            .or_else(|| reply.target.filter(|target| of_slot.iter().any(|item| item.id == *target))),
        action,
        decision,
        reason: reply.reason,
        asked: ids(&of_slot),
        context: ids(&of_domain),
    }))
}

/// The nearest active items of a slot, and of the rest of its domain.
pub fn around<'s>(
    asker: &mut Asker<'_>,
    store: &'s Store,
    slot: &Slot,
    query: &str,
) -> Result<(Vec<&'s Item>, Vec<&'s Item>), Unreachable> {
    let (of_slot, of_domain): (Vec<&Item>, Vec<&Item>) = store
        .active()
        .filter(|item| item.slot.domain() == slot.domain())
        .partition(|item| item.slot == *slot);
    let is_code = asker.settings.is_code();
    let mut nearest = |items: Vec<&'s Item>| {
        let ranked = asker.nearest(items, |item| item.searched(is_code), query, SHOWN)?;
        Ok(ranked.into_iter().map(|(item, _)| item).collect())
    };
    Ok((nearest(of_slot)?, nearest(of_domain)?))
}

/// The action of the code's variant: the decision as it is given.
fn given(update: &Update, shown: &[&Item], reply: &Reply) -> Option<Action> {
    let act = match reply.decision {
        Decision::NoOp => return None,
        Decision::Add => Act::Add,
        Decision::Refine => Act::Refine,
        Decision::Replace => Act::Replace,
        Decision::Invalidate => Act::Invalidate,
    };
    let target = reply.target.clone().filter(|target| shown.iter().any(|item| item.id == *target));
    let specificity = if target.is_some() { 3 } else { 2 };
    Some(Action { specificity, ..Action::of_update(act, update, target, reply.reason.clone()) })
}

/// The action of the paper's variant.
fn action(store: &Store, update: &Update, shown: &[&Item], reply: &Reply) -> Option<Action> {
    let named = shown.iter().find(|item| reply.target.as_ref() == Some(&item.id)).copied();
    let occupants = store.active_in(&update.slot);
    let only = match occupants.as_slice() {
        [only] => Some(*only),
        _ => None,
    };
    let on = |act, target: Option<&Item>| {
        Some(Action::of_update(act, update, target.map(|item| item.id.clone()), reply.reason.clone()))
    };
    let add = || match (update.slot.cardinality(), occupants.last()) {
        (Cardinality::Single, Some(occupant)) => on(Act::Replace, Some(occupant)),
        _ => on(Act::Add, None),
    };
    match (reply.decision, named.or(only)) {
        // Its schema does not offer INVALIDATE.
        (Decision::NoOp | Decision::Invalidate, _) => None,
        (Decision::Refine, Some(item)) => on(Act::Refine, Some(item)),
        (Decision::Replace, Some(item)) => on(Act::Replace, Some(item)),
        (Decision::Add | Decision::Refine | Decision::Replace, _) => add(),
    }
}

/// An action's name in records.
pub fn act_name(act: Act) -> &'static str {
    match act {
        Act::Replace => "REPLACE",
        Act::Invalidate => "INVALIDATE",
        Act::Refine => "REFINE",
        Act::Add => "ADD",
        Act::Weaken => "WEAKEN",
        Act::Unknown => "UNKNOWN",
    }
}
