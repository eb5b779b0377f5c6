//! W7: of several actions on one item, or in one single slot, those that are suppressed. Asks no model.
//!
//! First by item: REPLACE beats INVALIDATE beats REFINE beats ADD beats WEAKEN beats UNKNOWN, then the more specific, then the surer, then a verdict
//! before an update. Then by single slot, of what is left: a verdict without target gives way to an update that writes; of the rest the most specific
//! stays alone, then by the same order, an update before a verdict. But a sure ADD stays beside invalidations and challenges of items, and they
//! beside it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::super::super::model::Step;
use super::super::super::schema::{Cardinality, Slot};
use super::super::action::{Act, Action};
use crate::ground::order::unique;

/// An ADD of this confidence stays beside verdicts on items.
const SURE: f64 = 0.85;

/// Places of the actions that are suppressed, each with the reason. Updates come before verdicts.
pub fn suppressed(actions: &[Action]) -> BTreeMap<usize, &'static str> {
    let mut out = BTreeMap::new();
    let all: Vec<(usize, &Action)> = actions.iter().enumerate().collect();
    for item in unique(actions.iter().filter_map(|action| action.target.as_ref())) {
        let mut of_item = all.clone();
        of_item.retain(|(_, action)| action.target.as_ref() == Some(item));
        of_item
            .sort_by(|(_, a), (_, b)| by_act(a, b).then(by_specificity(a, b)).then(surer(a, b, is_verdict)));
        out.extend(of_item.iter().skip(1).map(|(at, _)| (*at, "another action on the item goes before it")));
    }
    let single = |slot: &&Slot| slot.cardinality() == Cardinality::Single;
    for slot in unique(actions.iter().map(|action| &action.slot).filter(single)) {
        let mut of_slot = all.clone();
        of_slot.retain(|(at, action)| action.slot == *slot && !out.contains_key(at));
        in_slot(of_slot, &mut out);
    }
    out
}

/// The rules of a single slot.
fn in_slot(mut of_slot: Vec<(usize, &Action)>, out: &mut BTreeMap<usize, &'static str>) {
    let writes = |action: &Action| !is_verdict(action) && action.is_grounded_update();
    let of_whole_slot = |action: &Action| {
        is_verdict(action) && action.target.is_none() && matches!(action.act, Act::Invalidate | Act::Unknown)
    };
    if of_slot.iter().any(|(_, action)| writes(action)) {
        for (at, _) in of_slot.extract_if(.., |(_, action)| of_whole_slot(action)) {
            out.insert(at, "the slot has a grounded update");
        }
    }
    let sure = |action: &Action| writes(action) && action.act == Act::Add && action.confidence >= SURE;
    let on_item = |action: &Action| {
        is_verdict(action) && action.target.is_some() && matches!(action.act, Act::Invalidate | Act::Weaken)
    };
    let beside = of_slot.iter().any(|(_, a)| sure(a)) && of_slot.iter().any(|(_, a)| on_item(a));
    of_slot.sort_by(|(_, a), (_, b)| {
        by_specificity(a, b).then(by_act(a, b)).then(surer(a, b, |a| !is_verdict(a)))
    });
    for (at, action) in of_slot.into_iter().skip(1) {
        if !(beside && (sure(action) || on_item(action))) {
            out.insert(at, "another action in the slot goes before it");
        }
    }
}

fn is_verdict(action: &Action) -> bool {
    action.step == Step::Adjudicate
}

fn by_act(a: &Action, b: &Action) -> Ordering {
    a.act.cmp(&b.act)
}

fn by_specificity(a: &Action, b: &Action) -> Ordering {
    b.specificity.cmp(&a.specificity)
}

/// The surer first, then the one that is `first`.
fn surer(a: &Action, b: &Action, first: impl Fn(&Action) -> bool) -> Ordering {
    b.confidence.total_cmp(&a.confidence).then(first(b).cmp(&first(a)))
}
