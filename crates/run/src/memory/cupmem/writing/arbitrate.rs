//! Proposed actions of W3 and W6, and W7: arbitration between actions on one item or in one single slot. Asks no model.
//!
//! Paper's variant (the paper does not describe arbitration): on an item REPLACE beats INVALIDATE beats REFINE beats UNKNOWN, then the more
//! specific, then the more confident action wins. In a single slot a grounded update beats an UNKNOWN without target; of two ADDs the more
//! confident stays, ties to the later. In multi-state slots a losing REPLACE or REFINE becomes an ADD, so its value is kept.
//!
//! Code's variant, per item: REPLACE, INVALIDATE, REFINE, ADD, WEAKEN, UNKNOWN, then specificity, confidence, verdicts before updates. Then
//! per single slot among the rest: a verdict without target yields to an update that writes; otherwise only the most specific stays, then
//! the same order, updates before verdicts. A confident ADD coexists with invalidations and challenges of items.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::memory::cupmem::schema::Slot;
use crate::memory::cupmem::settings::Step;
use crate::memory::cupmem::store::Update;
use palimpsest_data::ground::order::unique;

/// In order of precedence on the same item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// Archive the target; the value replaces it.
    Replace,
    Invalidate,
    Refine,
    Add,
    Weaken,
    /// Mark the slot unknown; archive its default or the target.
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
    /// Updates it rests on; the value defaults to the first one's.
    pub updates: Vec<String>,
    /// Replacement value, if not the update's own.
    pub value: Option<String>,
    /// In [0, 1].
    pub confidence: f64,
    /// Greater is more specific. Paper's variant: 2 target named by the decision, 1 target from a hint, 0 no target. Code's variant: 3
    /// target, 2 value, 1 reason only.
    pub specificity: u8,
    pub step: Step,
    pub reason: String,
}

impl Action {
    /// An action of W3 without a target.
    pub fn of_update(act: Act, update: &Update, reason: &str) -> Self {
        Action {
            act,
            slot: update.slot.clone(),
            specificity: 0,
            target: None,
            updates: vec![update.id.clone()],
            value: None,
            confidence: update.confidence,
            step: Step::LocalUpdate,
            reason: reason.to_owned(),
        }
    }

    pub fn about(&self) -> String {
        self.target.clone().unwrap_or_else(|| self.slot.to_string())
    }

    fn is_verdict(&self) -> bool {
        self.step == Step::Adjudicate
    }

    fn is_grounded_update(&self) -> bool {
        matches!(self.act, Act::Replace | Act::Refine | Act::Add)
    }
}

/// By act, then the more specific, then the more confident.
fn precedence(a: &Action, b: &Action) -> Ordering {
    (a.act.cmp(&b.act)).then(b.specificity.cmp(&a.specificity)).then(b.confidence.total_cmp(&a.confidence))
}

const ANOTHER_ON_ITEM: &str = "another action on the item goes before it";
const GROUNDED: &str = "the slot has a grounded update";

/// Paper's variant: kept actions, and dropped ones with the reason.
pub fn arbitrate(mut actions: Vec<Action>) -> (Vec<Action>, Vec<(Action, &'static str)>) {
    let (mut of_items, mut kept, mut dropped): (Vec<Action>, Vec<Action>, Vec<_>) = Default::default();
    // Best per item; the sort is stable, so ties go to the earlier step.
    actions.sort_by(precedence);
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
    for mut action in of_items {
        let adds = |action: &Action| action.slot.is_single() && action.act == Act::Add;
        let rival = |kept: &&mut Action| adds(&action) && adds(kept) && kept.slot == action.slot;
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

/// An ADD of this confidence coexists with verdicts on items.
const SURE: f64 = 0.85;

/// Code's variant: indices of suppressed actions, with the reason. Updates must precede verdicts.
pub fn suppressed(actions: &[Action]) -> BTreeMap<usize, &'static str> {
    let mut out = BTreeMap::new();
    let all: Vec<(usize, &Action)> = actions.iter().enumerate().collect();
    for item in unique(actions.iter().filter_map(|action| action.target.as_ref())) {
        let mut of_item = all.clone();
        of_item.retain(|(_, action)| action.target.as_ref() == Some(item));
        of_item.sort_by(|(_, a), (_, b)| precedence(a, b).then(b.is_verdict().cmp(&a.is_verdict())));
        out.extend(of_item.iter().skip(1).map(|(at, _)| (*at, ANOTHER_ON_ITEM)));
    }
    for slot in unique(actions.iter().map(|action| &action.slot).filter(|slot| slot.is_single())) {
        let mut of_slot = all.clone();
        of_slot.retain(|(at, action)| action.slot == *slot && !out.contains_key(at));
        in_slot(of_slot, &mut out);
    }
    out
}

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
        let specific_first = b.specificity.cmp(&a.specificity);
        specific_first.then(precedence(a, b)).then(a.is_verdict().cmp(&b.is_verdict()))
    });
    for (at, action) in of_slot.into_iter().skip(1) {
        if !(beside && (sure(action) || on_item(action))) {
            out.insert(at, "another action in the slot goes before it");
        }
    }
}
