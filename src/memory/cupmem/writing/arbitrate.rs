//! W7 of the paper's variant: of several actions on an item or a single slot, those that stay. Asks no model. The paper says nothing of it; all of
//! this is ours.
//!
//! On an item REPLACE beats INVALIDATE beats REFINE beats UNKNOWN, then the more specific, then the surer. In a single slot a grounded update beats
//! an UNKNOWN without target, and of two ADDs the surer stays, the later of equal ones. A REPLACE or REFINE that loses to another writing of the same
//! item is an ADD where the slot holds several states, so that its value is not lost.

use super::super::schema::Cardinality;
use super::action::{Act, Action};

/// The outcome.
#[derive(Debug, Default)]
pub struct Arbitrated {
    pub kept: Vec<Action>,
    /// Those that do not, with the reason.
    pub dropped: Vec<(Action, &'static str)>,
}

/// Arbitrates between the actions of a session.
pub fn arbitrate(actions: Vec<Action>) -> Arbitrated {
    let mut out = Arbitrated::default();
    let is_add = |action: &Action| action.act == Act::Add;
    for action in by_item(actions, &mut out.dropped) {
        let single = action.slot.cardinality() == Cardinality::Single && is_add(&action);
        let rival = |kept: &Action| single && kept.slot == action.slot && is_add(kept);
        match out.kept.iter_mut().find(|kept| rival(kept)) {
            Some(rival) if rival.confidence > action.confidence => {
                out.dropped.push((action, "a surer state has the slot"));
            }
            Some(rival) => {
                let rival = std::mem::replace(rival, action);
                out.dropped.push((rival, "a surer state has the slot"));
            }
            None => out.kept.push(action),
        }
    }
    single_slots(&mut out);
    out
}

/// One action an item.
fn by_item(mut actions: Vec<Action>, dropped: &mut Vec<(Action, &'static str)>) -> Vec<Action> {
    // The best first; stable, so that of equal ones the earlier step's stays.
    actions.sort_by(|a, b| {
        (a.act.cmp(&b.act))
            .then(b.specificity.cmp(&a.specificity))
            .then(b.confidence.total_cmp(&a.confidence))
    });
    let mut kept: Vec<Action> = Vec::new();
    for action in actions {
        let winner = kept.iter().find(|winner| action.target.is_some() && winner.target == action.target);
        let Some(winner) = winner else {
            kept.push(action);
            continue;
        };
        let writes = |action: &Action| matches!(action.act, Act::Replace | Act::Refine);
        let several = action.slot.cardinality() == Cardinality::Multi;
        let same_update = action.updates == winner.updates;
        if several && !same_update && writes(&action) && writes(winner) {
            kept.push(Action { act: Act::Add, target: None, specificity: 0, ..action });
        } else {
            dropped.push((action, "another action on the item goes before it"));
        }
    }
    kept
}

/// In a single slot an UNKNOWN without target gives way to a grounded update.
fn single_slots(out: &mut Arbitrated) {
    let all = std::mem::take(&mut out.kept);
    for action in &all {
        let single = action.slot.cardinality() == Cardinality::Single;
        let targetless = action.act == Act::Unknown && action.target.is_none();
        let grounded = |other: &Action| other.slot == action.slot && other.is_grounded_update();
        if single && targetless && all.iter().any(grounded) {
            out.dropped.push((action.clone(), "the slot has a grounded update"));
        } else {
            out.kept.push(action.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::model::Step;
    use super::super::super::schema::Slot;
    use super::*;

    fn action(act: Act, slot: &str, target: Option<&str>, confidence: f64) -> Action {
        Action {
            act,
            slot: Slot::parse(slot).unwrap(),
            target: target.map(str::to_owned),
            updates: vec![format!("update-{confidence}")],
            value: None,
            confidence,
            specificity: if target.is_some() { 2 } else { 0 },
            step: Step::LocalUpdate,
            reason: String::new(),
        }
    }

    fn acts(actions: &[Action]) -> Vec<Act> {
        actions.iter().map(|action| action.act).collect()
    }

    #[test]
    fn on_an_item_the_stronger_act_stays_then_the_more_specific_then_the_surer() {
        let order = [Act::Replace, Act::Invalidate, Act::Refine, Act::Unknown];
        for (at, &strong) in order.iter().enumerate() {
            for &weak in order.get(at + 1..).unwrap() {
                let both = vec![
                    action(weak, "current_health_state", Some("item-0"), 0.9),
                    action(strong, "current_health_state", Some("item-0"), 0.5),
                ];
                assert_eq!(acts(&arbitrate(both).kept), [strong], "{strong:?} beats {weak:?}");
            }
        }
        let mut hinted = action(Act::Invalidate, "current_workload", Some("item-0"), 0.9);
        hinted.specificity = 1;
        let named = action(Act::Invalidate, "current_workload", Some("item-0"), 0.5);
        let out = arbitrate(vec![hinted, named.clone()]);
        assert_eq!(out.kept, std::slice::from_ref(&named));
        let surer = action(Act::Invalidate, "current_workload", Some("item-0"), 0.6);
        assert_eq!(arbitrate(vec![named, surer.clone()]).kept, [surer]);
    }

    #[test]
    fn a_grounded_update_beats_an_unknown_without_target_in_a_single_slot_alone() {
        for (slot, stay) in [("current_health_state", 1), ("current_workload", 2)] {
            let unknown = action(Act::Unknown, slot, None, 0.9);
            let add = action(Act::Add, slot, None, 0.6);
            assert_eq!(arbitrate(vec![unknown, add]).kept.len(), stay, "{slot}");
        }
    }

    #[test]
    fn the_surer_of_two_states_has_an_empty_single_slot() {
        let add = |slot, confidence| action(Act::Add, slot, None, confidence);
        let out = arbitrate(vec![add("current_health_state", 0.5), add("current_health_state", 0.8)]);
        assert_eq!((out.kept[0].confidence, out.kept.len(), out.dropped.len()), (0.8, 1, 1));
        assert_eq!(arbitrate(vec![add("current_workload", 0.5), add("current_workload", 0.8)]).kept.len(), 2);
    }

    #[test]
    fn a_losing_value_is_added_where_the_slot_holds_several() {
        for (slot, expected) in
            [("current_workload", vec![Act::Replace, Act::Add]), ("current_health_state", vec![Act::Replace])]
        {
            let replace = |confidence| action(Act::Replace, slot, Some("item-0"), confidence);
            assert_eq!(acts(&arbitrate(vec![replace(0.6), replace(0.9)]).kept), expected);
        }
    }
}
