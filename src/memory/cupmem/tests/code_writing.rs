//! Writing as the public code goes about it, where it is not the paper's variant: a difference a test, and the store that it leaves.

use serde_json::{Value, json};

use super::super::model::Step;
use super::super::store::{ChangeKind, Relation, Strength};
use super::script::{World, candidate, ops, span};
use crate::memory::system::protocol::Op;

const HOME: &str = "current_base_location";
const PLACE: &str = "location_linked_condition";
const WORK: &str = "current_workload";
const COMMUTE: &str = "current_commute_mode";
const GOAL: &str = "short_horizon_goal";

/// A session of several candidates with W3's decision and target on each.
fn says(world: &World, all: &[(&str, &str, f64, &str, Option<&str>)]) {
    world.script.on(Step::Spans, json!({ "spans": [span("it", json!({}))] }));
    let candidates: Vec<Value> =
        all.iter().map(|(slot, value, sure, ..)| candidate(slot, value, *sure)).collect();
    world.script.on(Step::Candidates, json!({ "candidates": candidates }));
    for (.., decision, target) in all {
        world.script.decides(decision, *target);
    }
}

/// A proposal of a slot, on the grounds of an update.
fn of_slot(slot: &str, item: Option<&str>, value: &str, update: &str, confidence: f64) -> Value {
    json!({
        "slot": slot, "item": item, "value": value, "updates": [update], "spans": ["s0"], "reason": "rests on it",
        "confidence": confidence,
    })
}

fn proposes(world: &World, proposals: &[Value]) {
    world.script.on(Step::Proposals, json!({ "proposals": proposals }));
}

/// What a slot holds: active values, stale values, and whether it is marked.
fn holds(world: &World, slot: &str) -> (Vec<String>, Vec<String>, bool) {
    let of = |active: bool| {
        let items = world.store().items.iter().filter(|i| i.slot.name() == slot && i.is_active() == active);
        items.map(|item| item.value.clone()).collect::<Vec<_>>()
    };
    (of(true), of(false), world.marked().contains(&slot.to_owned()))
}

fn words(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

#[test]
fn an_update_that_w3_calls_a_no_op_drives_nothing_further() {
    for (mut world, drives) in [(World::code(), false), (World::paper(), true)] {
        world.knows(GOAL, "Wants to run");
        says(
            &world,
            &[(WORK, "Works nights", 0.8, "NO_OP", None), (HOME, "Lives in Bergen", 0.8, "ADD", None)],
        );
        world.write();
        for step in [Step::Affected, Step::Proposals] {
            let call = world.script.of(step).remove(0);
            assert!(call.data().contains("Lives in Bergen"), "{step}");
            assert_eq!(call.data().contains("Works nights"), drives, "{step}: {}", call.data());
        }
        world.script.forget_calls();
        world.script.says(WORK, "Works nights", 0.8).decides("NO_OP", None);
        world.write();
        let asked = world.script.of(Step::Affected).len() + world.script.of(Step::Proposals).len();
        assert_eq!(asked > 0, drives, "a session of nothing else ends there");
    }
}

#[test]
fn updates_come_before_invalidations_so_that_a_blocked_add_leaves_the_slot_unknown() {
    let mut world = World::code();
    world.knows_at(HOME, "Lives in Oslo", 0.9);
    world.script.says(HOME, "Lives in Bergen", 0.9).proposes(&[("item-0", 0.5)]);
    world.script.judges("INDIRECT_INVALIDATE", None);
    world.write();
    assert_eq!(holds(&world, HOME), (vec![], words(&["Lives in Oslo"]), true));
    assert_eq!(world.store().items.len(), 1, "the new home is nowhere");
    // W9 visits the update all the same: a verdict that was applied rests on it.
    let visited = world.script.of(Step::Links);
    assert_eq!(visited.len(), 1);
    assert!(visited[0].data().contains("Lives in Bergen"), "{}", visited[0].data());
    // An ADD that is sure enough to replace its occupant leaves nothing to invalidate.
    let mut world = World::code();
    world.knows_at(HOME, "Lives in Oslo", 0.7);
    world.script.says(HOME, "Lives in Bergen", 0.9).proposes(&[("item-0", 0.5)]);
    world.script.judges("INDIRECT_INVALIDATE", None);
    world.write();
    assert_eq!(holds(&world, HOME), (words(&["Lives in Bergen"]), words(&["Lives in Oslo"]), false));
    // In a slot of several the new state stays, and the slot is marked after it.
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.script.says(WORK, "Works days", 0.8).proposes(&[("item-0", 0.8)]);
    world.script.judges("INDIRECT_INVALIDATE", None);
    world.write();
    assert_eq!(holds(&world, WORK), (words(&["Works days"]), words(&["Works nights"]), true));
}

#[test]
fn an_update_less_sure_than_85_gives_way_to_the_invalidation_of_its_slots_item() {
    for (sure, home) in [(0.84, 0), (0.86, 1)] {
        let mut world = World::code();
        world.knows_at(HOME, "Lives in Oslo", 0.5);
        world.script.says(HOME, "Lives in Bergen", sure).proposes(&[("item-0", 0.5)]);
        world.script.judges("INDIRECT_INVALIDATE", None);
        world.write();
        let (active, _, marked) = holds(&world, HOME);
        assert_eq!((active.len(), marked), (home, home == 0), "{sure}");
    }
}

#[test]
fn set_unknown_without_target_falls_back_to_its_hint_in_slots_of_several_items_too() {
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.knows(WORK, "Tutors on Sundays");
    world.script.says(HOME, "Lives in Bergen", 0.8).proposes(&[("item-0", 0.8)]);
    world.script.judges("SET_UNKNOWN_CURRENT", None);
    let events = world.write();
    assert_eq!(holds(&world, WORK), (words(&["Tutors on Sundays"]), words(&["Works nights"]), true));
    assert!(events.iter().any(|event| event.op == Op::Unknown));
}

#[test]
fn a_proposal_may_be_of_a_slot_and_unknown_ends_its_default_where_there_is_one() {
    for (slot, items, archived) in [(WORK, 0, 0), (WORK, 1, 1), (WORK, 2, 0), (COMMUTE, 1, 1)] {
        let mut world = World::code();
        for n in 0..items {
            world.knows(slot, &format!("State {n}"));
        }
        world.script.says(HOME, "Lives in Bergen", 0.8);
        proposes(&world, &[of_slot(slot, None, "", &format!("update-{items}"), 0.8)]);
        world.script.judges("SET_UNKNOWN_CURRENT", None);
        world.write();
        assert_eq!(world.store().stale().count(), archived, "{slot} {items}");
        assert_eq!(world.marked(), [slot], "{items}");
        let asked = world.script.of(Step::Adjudicate).remove(0);
        let what = format!("what {} was assumed to be", world.store().markers[0].slot);
        assert!(asked.data().starts_with(&format!("Older state: {what}\n")), "{}", asked.data());
    }
    // What the session itself has just written there ends with it; the public code loses it altogether.
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.script.says(WORK, "Works days", 0.8);
    proposes(&world, &[of_slot(WORK, None, "", "update-1", 0.8)]);
    world.script.judges("SET_UNKNOWN_CURRENT", None);
    world.write();
    assert_eq!(holds(&world, WORK), (vec![], words(&["Works nights", "Works days"]), true));
    assert_eq!(world.store().items[1].archived().unwrap().kind, ChangeKind::Unknown);
}

#[test]
fn a_decision_that_needs_a_target_does_nothing_without() {
    for decision in ["REFINE", "REPLACE", "INVALIDATE"] {
        for target in [None, Some("item-9"), Some("item-1")] {
            let mut world = World::code();
            world.knows(WORK, "Works nights");
            world.knows("work_transition_or_change", "Has a new post");
            world.script.says(WORK, "Works days", 0.9).decides(decision, target);
            assert_eq!(world.write()[0].op, Op::None, "{decision} {target:?}");
            assert_eq!(
                holds(&world, WORK),
                (words(&["Works nights"]), vec![], false),
                "{decision} {target:?}"
            );
        }
    }
    // Of W6 too: an invalidation of a slot as such.
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.script.says(HOME, "Lives in Bergen", 0.8);
    proposes(&world, &[of_slot(WORK, Some("item-7"), "", "update-1", 0.8)]);
    world.script.judges("INDIRECT_INVALIDATE", None);
    world.write();
    assert_eq!(holds(&world, WORK), (words(&["Works nights"]), vec![], false));
    // It still has its place in arbitration: in a single slot it beats an ADD, and nothing is written.
    let mut world = World::code();
    says(&world, &[(HOME, "Lives in Bergen", 0.9, "ADD", None), (HOME, "Has left", 0.5, "INVALIDATE", None)]);
    world.write();
    assert_eq!(holds(&world, HOME), (vec![], vec![], false));
}

#[test]
fn the_losing_replace_of_two_is_suppressed_and_not_added() {
    for (mut world, active) in
        [(World::code(), vec!["Works days"]), (World::paper(), vec!["Works days", "Works at the mill"])]
    {
        world.knows(WORK, "Works nights");
        let target = Some("item-0");
        says(
            &world,
            &[
                (WORK, "Works at the mill", 0.6, "REPLACE", target),
                (WORK, "Works days", 0.9, "REPLACE", target),
            ],
        );
        world.write();
        let (found, stale, _) = holds(&world, WORK);
        assert_eq!((found, stale), (words(&active), words(&["Works nights"])));
    }
}

#[test]
fn a_marker_that_is_set_again_has_the_later_reason() {
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.knows(WORK, "Tutors on Sundays");
    for (n, reason) in [(0, "the mill shut"), (1, "no pupils")] {
        world.script.says(PLACE, &format!("Far from town {n}"), 0.8).proposes(&[(&format!("item-{n}"), 0.8)]);
        let verdict = json!({ "decision": "INDIRECT_INVALIDATE", "target": null, "reason": reason });
        world.script.on(Step::Adjudicate, verdict);
        world.write();
    }
    let standing: Vec<&str> = world.store().standing().map(|marker| marker.reason.as_str()).collect();
    assert_eq!(standing, ["no pupils"]);
    assert_eq!(world.store().markers.len(), 2, "the earlier one stays on record");
}

#[test]
fn lanes_show_what_is_stale_and_unknown_and_the_global_one_its_items_slot_mates() {
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.script.says(PLACE, "Far from town", 0.8).proposes(&[("item-0", 0.8)]);
    world.script.judges("INDIRECT_INVALIDATE", None);
    world.write();
    for n in 0..6 {
        world.knows(GOAL, &format!("Goal number {n}"));
    }
    world.script.says(WORK, "Works days", 0.8);
    world.write();
    let lanes = world.script.of(Step::Proposals);
    for line in
        ["Archived there before:\nwork_and_schedule.current_workload: Works nights", "current_workload: lost"]
    {
        assert!(lanes[0].data().contains(line), "{line}\n{}", lanes[0].data());
    }
    assert_eq!(lanes[1].data().matches("Goal number").count(), 6, "{}", lanes[1].data());
    // A slot-mate that was not among the nearest may be meant.
    let named =
        lanes[1].data().lines().filter(|line| line.starts_with("item-") && line.contains("Goal")).count();
    assert_eq!(named, 6);
}

/// The proposals that W6 is asked about, of those that the lanes make: three tickets and a goal.
fn adjudicated(direct: &[Value], global: &[Value]) -> Vec<String> {
    let mut world = World::code();
    for n in 0..3 {
        world.knows("transport_access_condition", &format!("Ticket number {n}"));
    }
    world.knows(GOAL, "Wants to run");
    world.script.says("transport_access_condition", "Has no ticket", 0.8);
    proposes(&world, direct);
    proposes(&world, global);
    world.write();
    let line = |data: &str| data.lines().next().unwrap()["Older state: ".len()..].to_owned();
    world.script.of(Step::Adjudicate).iter().map(|call| line(call.data())).collect()
}

#[test]
fn proposals_are_ranked_by_item_match_and_concreteness_and_two_are_adjudicated() {
    let ticket = |item: Option<&str>, value: &str, sure| {
        of_slot("transport_access_condition", item, value, "update-4", sure)
    };
    let tickets =
        |n: usize| format!("item-{n}, routine_and_transport.transport_access_condition: Ticket number {n}");
    // A value matches where it holds the item's, or is held by it, in any of the slot's items; anything but a placeholder is concrete.
    let three = [
        ticket(Some("item-0"), "none", 0.9),
        ticket(Some("item-1"), "?", 0.1),
        ticket(Some("item-2"), "TICKET", 0.1),
    ];
    assert_eq!(adjudicated(&three, &[]), [tickets(2), tickets(1)]);
    // An item that is named in its own slot goes before a slot, however sure.
    let both = [ticket(None, "Ticket number 1", 0.9), ticket(Some("item-0"), "", 0.1)];
    let of_slot_alone =
        "what routine_and_transport.transport_access_condition was assumed to be: Ticket number 1";
    assert_eq!(adjudicated(&both, &[]), [tickets(0), of_slot_alone.to_owned()]);
    // Two lanes go before one, and merge: the goal is asked about once.
    let goal = |item: Option<&str>| of_slot(GOAL, item, "Wants to run", "update-4", 0.1);
    let asked = adjudicated(&[ticket(Some("item-0"), "Ticket", 0.9), goal(None)], &[goal(None)]);
    assert_eq!(asked[0], tickets(0));
    assert!(asked[1].starts_with("what current_focus_and_goals.short_horizon_goal"), "{asked:?}");
    // Without an update, a span, a reason or a slot it is none.
    let mut none =
        [ticket(None, "a", 0.9), ticket(None, "b", 0.9), ticket(None, "c", 0.9), ticket(None, "d", 0.9)];
    none[0]["updates"] = json!(["update-0"]);
    none[1]["spans"] = json!([]);
    none[2]["reason"] = json!(" ");
    none[3]["slot"] = json!("favourite_colour");
    assert_eq!(adjudicated(&none, &[]), [""; 0]);
}

#[test]
fn a_weak_challenge_of_a_weak_item_changes_nothing_and_counts_as_accepted() {
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.knows(GOAL, "Wants to run");
    for n in 0..2 {
        world.script.says(PLACE, &format!("Far from town {n}"), 0.8).proposes(&[("item-0", 0.8)]);
        world.script.judges("WEAK_CHALLENGE", None);
        world.write();
    }
    let item = &world.store().items[0];
    assert_eq!((item.strength, item.history.len()), (Strength::Weak, 2));
}

#[test]
fn links_are_sought_first_among_the_items_that_verdicts_ended() {
    // REPLACE in W3 ends item-0; the verdict on item-1 ends that. For the goal only the second is fresh.
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.knows(COMMUTE, "Cycles to work");
    says(&world, &[(WORK, "Works days", 0.8, "REPLACE", Some("item-0")), (GOAL, "Rests", 0.8, "ADD", None)]);
    world.script.proposes(&[("item-1", 0.8)]).judges("INDIRECT_INVALIDATE", None);
    for relation in ["NONE", "SUCCESSOR", "SUPPORT", "NONE"] {
        world.script.on(Step::Links, json!({ "relation": relation, "reason": "linked" }));
    }
    let events = world.write();
    assert_eq!(
        ops(&events),
        [
            (Op::Stale, Some("item-0")),
            (Op::Add, Some("item-2")),
            (Op::Add, Some("item-3")),
            (Op::Stale, Some("item-1"))
        ]
    );
    let asked: Vec<String> = (world.script.of(Step::Links).iter())
        .map(|call| call.data().lines().next().unwrap().rsplit(": ").next().unwrap().to_owned())
        .collect();
    assert_eq!(asked, ["Cycles to work", "Works nights", "Cycles to work", "Works nights"]);
    let links: Vec<(&str, &str, Relation)> = (world.store().links.iter())
        .map(|link| (link.item.as_str(), link.update.as_str(), link.relation))
        .collect();
    assert_eq!(
        links,
        [("item-0", "update-2", Relation::Successor), ("item-1", "update-3", Relation::Support)]
    );
}
