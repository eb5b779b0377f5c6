//! Actions on the store, as W3 and W6 propose them, and W7: of several on an item or in a single slot, those that stay. Asks no model.
//!
//! In the paper's variant, of whose arbitration the paper says nothing: on an item REPLACE beats INVALIDATE beats REFINE beats UNKNOWN, then the more
//! specific, then the surer. In a single slot a grounded update beats an UNKNOWN without target, and of two ADDs the surer stays, the later of equal
//! ones. A REPLACE or REFINE that loses to another writing of the same item is an ADD where the slot holds several states, so that its value is not
//! lost.
//!
//! In the code's variant, first by item: REPLACE beats INVALIDATE beats REFINE beats ADD beats WEAKEN beats UNKNOWN, then the more specific, then the
//! surer, then a verdict before an update. Then by single slot, of what is left: a verdict without target gives way to an update that writes; of the
//! rest the most specific stays alone, then by the same order, an update before a verdict. But a sure ADD stays beside invalidations and challenges of
//! items, and they beside it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::memory::cupmem::model::Step;
use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::store::Update;
use palimpsest_data::ground::order::unique;

/// A kind of action, in the order in which one beats the next on the same item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// Archive the target; the value has its place.
    Replace,
    Invalidate,
    Refine,
    Add,
    Weaken,
    /// Mark the slot unknown, and archive its default or the target.
    Unknown,
}

impl Act {
    pub fn name(self) -> &'static str {
        match self {
            Act::Replace => "REPLACE",
            Act::Invalidate => "INVALIDATE",
            Act::Refine => "REFINE",
            Act::Add => "ADD",
            Act::Weaken => "WEAKEN",
            Act::Unknown => "UNKNOWN",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Action {
    pub act: Act,
    pub slot: Slot,
    pub target: Option<String>,
    /// The updates that it rests on; a value is the first one's.
    pub updates: Vec<String>,
    /// The value of a replacement that is not the update's own.
    pub value: Option<String>,
    /// From 0 to 1.
    pub confidence: f64,
    /// Specificity; greater is more specific. In the paper's variant 2 where the decision names its target, 1 where the target is a hint's, 0
    /// without target; in the code's 3 with a target, 2 with a value, 1 with a reason alone.
    pub specificity: u8,
    pub step: Step,
    pub reason: String,
}

impl Action {
    /// An action of W3 for an update.
    pub fn of_update(act: Act, update: &Update, target: Option<String>, reason: String) -> Self {
        Action {
            act,
            slot: update.slot.clone(),
            specificity: if target.is_some() { 2 } else { 0 },
            target,
            updates: vec![update.id.clone()],
            value: None,
            confidence: update.confidence,
            step: Step::LocalUpdate,
            reason,
        }
    }

    /// Its target, or its slot.
    pub fn about(&self) -> String {
        self.target.clone().unwrap_or_else(|| self.slot.to_string())
    }

    fn is_verdict(&self) -> bool {
        self.step == Step::Adjudicate
    }

    /// Does it write a state that evidence states?
    fn is_grounded_update(&self) -> bool {
        matches!(self.act, Act::Replace | Act::Refine | Act::Add)
    }
}

fn by_act(a: &Action, b: &Action) -> Ordering {
    a.act.cmp(&b.act)
}

fn by_specificity(a: &Action, b: &Action) -> Ordering {
    b.specificity.cmp(&a.specificity)
}

fn by_confidence(a: &Action, b: &Action) -> Ordering {
    b.confidence.total_cmp(&a.confidence)
}

const ANOTHER_ON_ITEM: &str = "another action on the item goes before it";
const GROUNDED: &str = "the slot has a grounded update";

/// The actions of the paper's variant that stay, and those that are dropped, with the reason.
pub fn arbitrate(mut actions: Vec<Action>) -> (Vec<Action>, Vec<(Action, &'static str)>) {
    let (mut of_items, mut kept, mut dropped): (Vec<Action>, Vec<Action>, Vec<_>) = Default::default();
    // One an item, the best first; stable, so that of equal ones the earlier step's stays.
    actions.sort_by(|a, b| by_act(a, b).then(by_specificity(a, b)).then(by_confidence(a, b)));
    for action in actions {
        let writes = |action: &Action| matches!(action.act, Act::Replace | Act::Refine);
        let on_item = |winner: &&Action| action.target.is_some() && winner.target == action.target;
        match of_items.iter().find(on_item) {
            None => of_items.push(action),
            Some(winner)
                if !action.slot.is_single()
                    && action.updates != winner.updates
                    && writes(&action)
                    && writes(winner) =>
            {
                of_items.push(Action { act: Act::Add, target: None, specificity: 0, ..action });
            }
            Some(_) => dropped.push((action, ANOTHER_ON_ITEM)),
        }
    }
    // One ADD a single slot.
    for mut action in of_items {
        let adds = |action: &Action| action.slot.is_single() && action.act == Act::Add;
        let rival = |kept: &&mut Action| adds(&action) && adds(&**kept) && kept.slot == action.slot;
        match kept.iter_mut().find(rival) {
            Some(rival) => {
                if rival.confidence <= action.confidence {
                    std::mem::swap(rival, &mut action);
                }
                dropped.push((action, "a surer state has the slot"));
            }
            None => kept.push(action),
        }
    }
    let all = kept.clone();
    let gives_way = |action: &mut Action| {
        let targetless = action.act == Act::Unknown && action.target.is_none();
        let grounded = |other: &Action| other.slot == action.slot && other.is_grounded_update();
        action.slot.is_single() && targetless && all.iter().any(grounded)
    };
    dropped.extend(kept.extract_if(.., gives_way).map(|action| (action, GROUNDED)));
    (kept, dropped)
}

/// An ADD of this confidence stays beside verdicts on items.
const SURE: f64 = 0.85;

/// Places of the actions that are suppressed in the code's variant, each with the reason. Updates come before verdicts.
pub fn suppressed(actions: &[Action]) -> BTreeMap<usize, &'static str> {
    let mut out = BTreeMap::new();
    let all: Vec<(usize, &Action)> = actions.iter().enumerate().collect();
    for item in unique(actions.iter().filter_map(|action| action.target.as_ref())) {
        let mut of_item = all.clone();
        of_item.retain(|(_, action)| action.target.as_ref() == Some(item));
        of_item.sort_by(|(_, a), (_, b)| {
            let verdict_first = b.is_verdict().cmp(&a.is_verdict());
            by_act(a, b).then(by_specificity(a, b)).then(by_confidence(a, b)).then(verdict_first)
        });
        out.extend(of_item.iter().skip(1).map(|(at, _)| (*at, ANOTHER_ON_ITEM)));
    }
    for slot in unique(actions.iter().map(|action| &action.slot).filter(|slot| slot.is_single())) {
        let mut of_slot = all.clone();
        of_slot.retain(|(at, action)| action.slot == *slot && !out.contains_key(at));
        in_slot(of_slot, &mut out);
    }
    out
}

/// The rules of a single slot.
fn in_slot(mut of_slot: Vec<(usize, &Action)>, out: &mut BTreeMap<usize, &'static str>) {
    let writes = |action: &Action| !action.is_verdict() && action.is_grounded_update();
    let of_whole_slot = |action: &Action| {
        action.is_verdict() && action.target.is_none() && matches!(action.act, Act::Invalidate | Act::Unknown)
    };
    if of_slot.iter().any(|(_, action)| writes(action)) {
        let give_way = of_slot.extract_if(.., |(_, action)| of_whole_slot(action));
        out.extend(give_way.map(|(at, _)| (at, GROUNDED)));
    }
    let sure = |action: &Action| writes(action) && action.act == Act::Add && action.confidence >= SURE;
    let on_item = |action: &Action| {
        action.is_verdict() && action.target.is_some() && matches!(action.act, Act::Invalidate | Act::Weaken)
    };
    let beside = of_slot.iter().any(|(_, a)| sure(a)) && of_slot.iter().any(|(_, a)| on_item(a));
    of_slot.sort_by(|(_, a), (_, b)| {
        let update_first = a.is_verdict().cmp(&b.is_verdict());
        by_specificity(a, b).then(by_act(a, b)).then(by_confidence(a, b)).then(update_first)
    });
    for (at, action) in of_slot.into_iter().skip(1) {
        if !(beside && (sure(action) || on_item(action))) {
            out.insert(at, "another action in the slot goes before it");
        }
    }
}
