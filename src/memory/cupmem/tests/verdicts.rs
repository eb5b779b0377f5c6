//! W4 to W9: affected domains, proposals, adjudication, application, links.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::super::Settings;
use super::super::model::Step;
use super::super::store::{ChangeKind, Relation, Strength};
use super::script::{World, candidate, ops, span};
use crate::memory::system::protocol::Op;

const HOME: &str = "current_base_location";
const WORK: &str = "current_workload";
const COMMUTE: &str = "current_commute_mode";
const GOAL: &str = "short_horizon_goal";
const PLACE: &str = "location_linked_condition";

fn affected(domains: &[&str]) -> Value {
    let one = |(at, domain): (usize, &&str)| json!({ "domain": domain, "reason": "it rests on it", "confidence": 0.9 - 0.1 * at as f64 });
    json!({ "affected": domains.iter().enumerate().map(one).collect::<Vec<_>>() })
}

/// The lanes that W5 asked about.
fn lanes(world: &World) -> Vec<String> {
    let lane = |data: &str| {
        let line = data.lines().find(|line| line.starts_with("Older states (")).unwrap().to_owned();
        line.trim_start_matches("Older states (").trim_end_matches("):").to_owned()
    };
    world.script.of(Step::Proposals).iter().map(|call| lane(call.data())).collect()
}

#[test]
fn affected_domains_are_others_than_those_touched_and_three_at_most() {
    let mut world = World::code();
    world.knows(GOAL, "Wants to run");
    world.script.says(HOME, "Lives in Oslo", 0.8).on(
        Step::Affected,
        affected(&[
            "location_and_living",
            "astrology",
            "routine_and_transport",
            "routine_and_transport",
            "family_and_caregiving",
            "current_focus_and_goals",
            "stable_preferences",
        ]),
    );
    world.write();
    let notes = world.store().sessions.last().unwrap().notes.iter();
    let told: Vec<String> = notes
        .filter(|note| note.step == Step::Affected)
        .map(|note| format!("{} {}", note.about, note.decision))
        .collect();
    let expected = [
        "location_and_living dropped",
        "astrology dropped",
        "routine_and_transport affected",
        "routine_and_transport dropped",
        "family_and_caregiving affected",
        "current_focus_and_goals affected",
        "stable_preferences dropped",
    ];
    assert_eq!(told, expected);
    let asked =
        ["location_and_living", "routine_and_transport", "family_and_caregiving", "current_focus_and_goals"];
    assert_eq!(lanes(&world), [&asked[..], &["all other domains"]].concat());
}

#[test]
fn a_lane_a_domain_touched_or_affected_and_a_global_one_of_the_rest() {
    let mut world = World::code();
    world.knows(HOME, "Lives in Oslo");
    world.knows(COMMUTE, "Cycles to work");
    for n in 0..6 {
        world.knows(GOAL, &format!("Goal number {n}"));
    }
    world.script.says(WORK, "Works from home", 0.8).on(Step::Affected, affected(&["routine_and_transport"]));
    world.write();
    assert_eq!(
        lanes(&world),
        ["work_and_schedule", "routine_and_transport", "all other domains"],
        "also where nothing older is known"
    );
    let global = world.script.of(Step::Proposals).remove(2);
    let shown = |text: &str| global.data().matches(text).count();
    assert_eq!(shown("Goal number"), 6, "four are found, and the others of their slot come with them");
    assert_eq!(shown("Cycles"), 0, "it is in a lane of its own");
    // What spans hint at is touched directly, with a candidate or without.
    let mut world = World::code();
    world.knows(COMMUTE, "Cycles to work");
    world.script.on(Step::Spans, json!({ "spans": [span("it", json!({ "slots": [COMMUTE] }))] }));
    world.script.on(Step::Candidates, json!({ "candidates": [candidate(WORK, "Works from home", 0.8)] }));
    world.write();
    assert_eq!(lanes(&world), ["work_and_schedule", "routine_and_transport", "all other domains"]);
    assert!(world.script.of(Step::Proposals)[2].data().contains("Cycles"), "all where none are outside");
    assert_eq!(world.script.of(Step::Affected)[0].data().matches("Touched directly").count(), 1);
}

#[test]
fn only_items_older_than_the_session_stand_in_lanes() {
    let mut world = World::code();
    world.script.says(WORK, "Works nights", 0.8);
    world.write();
    assert_eq!(lanes(&world), ["work_and_schedule"], "the first session has nothing older");
    assert!(world.script.of(Step::Proposals)[0].data().ends_with("Older states (work_and_schedule):\nnone"));
    let mut world = World::paper();
    world.script.says(WORK, "Works nights", 0.8);
    world.write();
    assert_eq!(lanes(&world), [""; 0], "the paper's variant asks about what there is");
}

#[test]
fn in_the_paper_proposals_are_merged_by_item_and_all_adjudicated() {
    let setup = |mut world: World| {
        for n in 0..3 {
            world.knows(COMMUTE_MULTI, &format!("Ticket number {n}"));
        }
        world.knows(GOAL, "Wants to run");
        world.script.says(COMMUTE_MULTI, "Has no ticket", 0.8);
        let proposal = |item: &str, value: &str, confidence: f64| {
            json!({
                "item": item, "value": value, "updates": [], "spans": ["s0"], "reason": "gone",
                "confidence": confidence,
            })
        };
        world.script.on(
            Step::Proposals,
            json!({ "proposals": [
                proposal("item-0", "tickets", 0.99),
                proposal("item-7", "ticket  NUMBER 1", 0.2),
                proposal("item-2", "Ticket number 2", 0.1),
            ] }),
        );
        world.script.on(
            Step::Proposals,
            json!({ "proposals": [proposal("item-3", "Wants to run", 0.3), proposal("item-8", "?", 1.0)] }),
        );
        world.write();
        let items = world.script.of(Step::Adjudicate);
        let about = |data: &str| {
            data.lines().next().unwrap()["Older state: ".len()..].split(',').next().unwrap().to_owned()
        };
        items.iter().map(|call| about(call.data())).collect::<Vec<_>>()
    };
    // Both named exactly and with their value: the global lane before the direct one. Behind them the one without its value, and the one without its id.
    assert_eq!(setup(World::paper()), ["item-3", "item-2", "item-0", "item-1"]);
}

const COMMUTE_MULTI: &str = "transport_access_condition";

#[test]
fn of_equal_proposals_the_global_lanes_goes_first() {
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.knows(GOAL, "Wants to run");
    world.script.says(WORK, "Works days", 0.8);
    // One lane of work; of the global lane only the goal is outside.
    world.script.proposes(&[("item-0", 0.9)]).proposes(&[("item-1", 0.1)]);
    world.write();
    let first = world.script.of(Step::Adjudicate).remove(0);
    assert!(
        first.data().starts_with("Older state: item-1"),
        "of equal ones the global lane's: {}",
        first.data()
    );
}

/// A commute that a move may end.
fn moved(mut world: World, decision: &str, target: Option<&str>) -> World {
    world.knows(COMMUTE, "Cycles to work");
    world.script.says(HOME, "Lives in Bergen", 0.8).proposes(&[("item-0", 0.8)]).judges(decision, target);
    world.write();
    assert!(world.script.is_used_up());
    world
}

#[test]
fn each_verdict_of_the_code_does_what_it_says() {
    for target in [None, Some("item-0"), Some("item-77")] {
        let world = moved(World::code(), "INDIRECT_INVALIDATE", target);
        assert!(!world.is_active("item-0"), "{target:?}: what is no candidate falls back to the hint");
        assert_eq!(world.marked(), [COMMUTE], "every invalidation marks its slot");
        assert_eq!(world.store().items[0].archived().unwrap().kind, ChangeKind::Invalidated);
    }
    let world = moved(World::code(), "WEAK_CHALLENGE", None);
    assert!(world.is_active("item-0") && world.store().items[0].strength == Strength::Weak);
    let world = moved(World::code(), "NO_OP", None);
    assert_eq!(world.store().items[0].history.len(), 1);
    for target in [None, Some("item-0")] {
        let world = moved(World::code(), "SET_UNKNOWN_CURRENT", target);
        assert!(!world.is_active("item-0"), "{target:?}");
        assert_eq!(world.marked(), [COMMUTE]);
        assert_eq!(world.store().items[0].archived().unwrap().kind, ChangeKind::Unknown);
    }
}

#[test]
fn each_verdict_of_the_paper_does_what_it_says() {
    let world = moved(World::paper(), "KEEP", None);
    assert!(world.is_active("item-0"));
    let world = moved(World::paper(), "STALE", Some("item-0"));
    assert!(!world.is_active("item-0") && world.marked().is_empty(), "only UNKNOWN marks");
    let world = moved(World::paper(), "UNKNOWN", Some("item-0"));
    assert!(!world.is_active("item-0") && world.marked() == [COMMUTE]);
    let world = moved(World::paper(), "REPLACE", Some("item-0"));
    assert!(
        !world.is_active("item-0") && world.store().items.len() == 2,
        "no value, so nothing in its place"
    );
    let mut world = World::paper();
    world.knows(COMMUTE, "Cycles to work");
    world.script.says(HOME, "Lives in Bergen", 0.8).proposes(&[("item-0", 0.8)]).on(
        Step::Adjudicate,
        json!({ "decision": "REPLACE", "target": "item-0", "value": "Takes the train", "reason": "too far" }),
    );
    let events = world.write();
    let expected = [(Op::Add, Some("item-1")), (Op::Stale, Some("item-0")), (Op::Add, Some("item-2"))];
    assert_eq!(ops(&events), expected);
    let new = world.store().item("item-2").unwrap();
    assert_eq!((new.value.as_str(), new.slot.name()), ("Takes the train", COMMUTE));
    assert_eq!(
        new.sources(),
        world.store().update("update-1").map(|u| super::super::store::sources(&u.evidence)).unwrap()
    );
}

#[test]
fn the_paper_has_four_outcomes_and_a_word_of_the_code_is_asked_for_again() {
    let mut world = World::paper();
    world.knows(COMMUTE, "Cycles to work");
    world.script.says(HOME, "Lives in Bergen", 0.8).proposes(&[("item-0", 0.8)]);
    world.script.judges("INDIRECT_INVALIDATE", None).judges("STALE", None);
    world.write();
    assert_eq!(world.script.of(Step::Adjudicate).len(), 2);
    assert!(!world.is_active("item-0"));
    let schema = world.script.of(Step::Adjudicate)[0].schema.clone().unwrap();
    assert_eq!(schema["properties"]["decision"]["enum"], json!(["KEEP", "STALE", "REPLACE", "UNKNOWN"]));
}

#[test]
fn in_the_paper_another_candidate_may_be_the_target_and_in_the_code_none_of_another_slot() {
    for (mut world, word, target, kept) in [
        (World::paper(), "STALE", "item-1", "item-0"),
        (World::code(), "INDIRECT_INVALIDATE", "item-0", "item-1"),
    ] {
        world.knows(COMMUTE, "Cycles to work");
        world.knows("routine_shift", "Swims before work");
        world.script.says(HOME, "Lives in Bergen", 0.8).proposes(&[("item-0", 0.8)]);
        world.script.judges(word, Some("item-1"));
        world.write();
        assert!(world.is_active(kept) && !world.is_active(target), "{word}");
    }
}

#[test]
fn a_replacement_that_the_update_wrote_itself_is_not_written_twice() {
    let mut world = World::paper();
    world.knows(WORK, "Works nights");
    world.script.says(WORK, "Works days", 0.8).decides("ADD", None).proposes(&[("item-0", 0.8)]).on(
        Step::Adjudicate,
        json!({ "decision": "REPLACE", "target": "item-0", "value": "Works days", "reason": "days now" }),
    );
    let events = world.write();
    assert_eq!(ops(&events), [(Op::Add, Some("item-1")), (Op::Stale, Some("item-0"))]);
}

#[test]
fn an_item_ends_only_by_something_later() {
    use super::super::store::{Grounds, Store};
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    let mut store: Store = world.store().clone();
    let grounds = |index| {
        let at = super::super::store::Moment { session: format!("session[{index}]"), index, time: None };
        Grounds { at, step: Step::Adjudicate, updates: vec!["update-0".into()], reason: "r".into() }
    };
    assert!(store.archive("item-0", ChangeKind::Invalidated, grounds(0)).unwrap_err().contains("not older"));
    assert!(store.weaken("item-0", grounds(0)).is_err());
    assert_eq!(store, *world.store());
    store.archive("item-0", ChangeKind::Invalidated, grounds(1)).unwrap();
    assert!(store.archive("item-0", ChangeKind::Invalidated, grounds(2)).unwrap_err().contains("already"));
    assert!(store.archive("item-9", ChangeKind::Invalidated, grounds(2)).is_err());
    assert_eq!(store.items.len(), 1, "and it stays");
}

#[test]
fn a_session_decides_by_the_store_from_before_it() {
    let mut world = World::code();
    world.script.on(Step::Spans, json!({ "spans": [span("it", json!({}))] }));
    let two = [candidate(WORK, "Works nights", 0.8), candidate(WORK, "Tutors on Sundays", 0.8)];
    world.script.on(Step::Candidates, json!({ "candidates": two }));
    world.write();
    let second = &world.script.of(Step::LocalUpdate)[1];
    assert!(!second.data().contains("item-0"), "{}", second.data());
    assert_eq!(world.store().items.len(), 2);
}

#[test]
fn a_state_written_in_a_marked_slot_clears_the_marker_which_stays_on_record() {
    for (decision, target) in [("ADD", None), ("REPLACE", Some("item-1")), ("REFINE", Some("item-1"))] {
        let mut world = World::code();
        world.knows(WORK, "Works nights");
        world.knows(WORK, "Tutors on Sundays");
        world.script.says(HOME, "Lives in Bergen", 0.8).proposes(&[("item-0", 0.8)]);
        world.script.judges("INDIRECT_INVALIDATE", None);
        world.write();
        assert_eq!(world.marked(), [WORK]);
        world.script.says(WORK, "Works days", 0.8).decides(decision, target);
        world.write();
        assert_eq!(world.marked(), [""; 0], "{decision}");
        let marker = &world.store().markers[0];
        assert_eq!((marker.at.index, marker.cleared.as_ref().unwrap().index), (2, 3));
    }
}

#[test]
fn links_are_judged_one_by_one_four_an_update_the_fresh_first() {
    let mut world = World::code();
    for n in 0..6 {
        world.knows(WORK, &format!("Shift number {n}"));
    }
    for n in 0..6 {
        world.script.says(PLACE, &format!("Far from town {n}"), 0.8);
        world.script.proposes(&[(&format!("item-{n}"), 0.8)]).judges("INDIRECT_INVALIDATE", None);
        world.write();
    }
    assert_eq!(world.store().stale().count(), 6);
    world.knows(COMMUTE, "Cycles to work");
    world.script.says(WORK, "Works from home", 0.8).proposes(&[("item-12", 0.8)]);
    world.script.judges("INDIRECT_INVALIDATE", None);
    for relation in ["SUPPORT", "SUCCESSOR", "NONE"] {
        world.script.on(Step::Links, json!({ "relation": relation, "reason": "linked" }));
    }
    world.write();
    let asked: Vec<String> = (world.script.of(Step::Links).iter())
        .map(|call| call.data().lines().next().unwrap().rsplit(": ").next().unwrap().to_owned())
        .collect();
    assert_eq!(asked, ["Cycles to work", "Shift number 5", "Shift number 4", "Shift number 3"]);
    let links: Vec<(&str, Relation)> =
        world.store().links.iter().map(|link| (link.item.as_str(), link.relation)).collect();
    assert_eq!(links, [("item-12", Relation::Support), ("item-5", Relation::Successor)]);
}

#[test]
fn links_reach_affected_domains_and_two_by_similarity() {
    let mut world = World::code();
    world.knows(COMMUTE, "Cycles to work");
    for n in 0..3 {
        world.knows(GOAL, &format!("Goal number {n}"));
    }
    for n in 0..4 {
        world.script.says(PLACE, &format!("Far from town {n}"), 0.8);
        world.script.proposes(&[(&format!("item-{n}"), 0.8)]).judges("INDIRECT_INVALIDATE", None);
        world.write();
    }
    world.script.forget_calls();
    world.script.says(WORK, "Goal number 1", 0.8).on(Step::Affected, affected(&["routine_and_transport"]));
    world.write();
    let asked = world.script.of(Step::Links);
    assert_eq!(asked.len(), 3, "one affected, two near");
    assert!(asked[0].data().contains("Cycles") && asked[1].data().contains("Goal number 1"));
}

#[test]
fn the_paper_links_nothing() {
    let mut world = moved(World::paper(), "STALE", None);
    world.knows(WORK, "Works nights");
    assert_eq!(world.script.of(Step::Links).len(), 0);
}

#[test]
fn events_say_what_was_looked_at_and_what_was_asked_about() {
    let mut world = World::code();
    world.knows(COMMUTE, "Cycles to work");
    world.knows(GOAL, "Wants to run");
    world.script.says(HOME, "Lives in Bergen", 0.8).proposes(&[("item-0", 0.8)]);
    world.script.judges("INDIRECT_INVALIDATE", None);
    let events = world.write();
    assert_eq!(ops(&events), [(Op::Add, Some("item-2")), (Op::Stale, Some("item-0"))]);
    let looked: Vec<(&str, Option<bool>)> =
        events[0].looked_at.iter().flatten().map(|at| (at.memory.as_str(), at.gated)).collect();
    assert_eq!(looked, [("item-0", Some(true)), ("item-1", Some(false))]);
    let sessions: Vec<String> =
        events[1].sources.iter().flatten().map(|source| source.session.clone()).collect();
    assert_eq!(sessions, ["session[0]"], "an item's own sources, also when it ends");
    assert!(events[1].reason.as_ref().unwrap().contains("W6: lost"));
}

/// Whatever a model says, [`super::script::hold`] holds after every session.
#[test]
fn whatever_a_model_says_nothing_is_deleted_and_only_later_evidence_ends_an_item() {
    const SLOTS: [&str; 4] = [HOME, WORK, COMMUTE, GOAL];
    for seed in 0..20 {
        for variant in ["code", "paper", "code,no-unknown", "paper,no-global", "readout-only"] {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut world = World::new(Settings::parse(variant).unwrap());
            for session in 0..8 {
                let values = ["Lives in Oslo", "Works nights", "Cycles to work", "Wants to run"];
                let mut pick = |n: usize| rng.random_range(0..n);
                let candidates: Vec<Value> = (0..=pick(3))
                    .map(|_| candidate(SLOTS[pick(4)], values[pick(4)], pick(11) as f64 / 10.0))
                    .collect();
                world.script.on(Step::Spans, json!({ "spans": [span("it", json!({}))] }));
                world.script.on(Step::Candidates, json!({ "candidates": candidates }));
                let mut item = || format!("item-{}", pick(session + 2));
                let (mut local, mut judged) = (Vec::new(), Vec::new());
                for _ in 0..4 {
                    local.push(item());
                    judged.push(item());
                    world.script.proposes(&[(&item(), 0.5), (&item(), 0.7)]);
                }
                let code = world.system_is_code();
                let words: &[&str] = match (code, variant.contains("no-unknown")) {
                    (true, true) => &["INDIRECT_INVALIDATE", "WEAK_CHALLENGE", "NO_OP"],
                    (true, false) => {
                        &["INDIRECT_INVALIDATE", "WEAK_CHALLENGE", "NO_OP", "SET_UNKNOWN_CURRENT"]
                    }
                    (false, _) => &["KEEP", "STALE", "REPLACE", "UNKNOWN"],
                };
                let decisions = ["ADD", "REFINE", "REPLACE", "NO_OP", "INVALIDATE"];
                for (local, judged) in local.iter().zip(&judged) {
                    let decision = decisions[pick(if code { 5 } else { 4 })];
                    world.script.decides(decision, (pick(4) > 0).then_some(local));
                    let (decision, target) = (words[pick(words.len())], (pick(4) > 0).then_some(judged));
                    world.script.on(
                        Step::Adjudicate,
                        json!({ "decision": decision, "target": target, "value": "Instead", "reason": "" }),
                    );
                }
                world.write();
            }
            if variant.contains("no-unknown") {
                assert!(world.store().markers.is_empty());
            }
            if variant == "readout-only" {
                assert_eq!(world.store().stale().count(), 0);
            }
        }
    }
}
