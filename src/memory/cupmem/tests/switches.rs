//! Each switch takes away exactly its part: calls by step of one history and one probe.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::Settings;
use super::super::model::Step;
use super::script::{SCOPE, World, parsed};
use crate::memory::system::protocol::{Capability, FailureKind, MemorySystem, Status};

const COMMUTE: &str = "current_commute_mode";
const HOME: &str = "current_base_location";
const GOAL: &str = "short_horizon_goal";
const QUERY: &str = "Which way should I cycle to work?";

/// A history in which every step is asked: cycling, a goal, a move that ends the cycling. Then a plan that lacks a basis.
fn run(words: &str) -> World {
    let mut world = World::new(Settings::parse(words).unwrap());
    world.knows(COMMUTE, "Cycles to work");
    world.knows(GOAL, "Wants to run");
    let ends = if world.system_is_code() { "INDIRECT_INVALIDATE" } else { "STALE" };
    world.script.says(HOME, "Lives in Bergen", 0.8);
    let affected = json!({ "domain": "routine_and_transport", "reason": "far", "confidence": 0.9 });
    world.script.on(Step::Affected, json!({ "affected": [affected] }));
    world.script.proposes(&[("item-0", 0.8)]).proposes(&[]).judges(ends, None);
    world.write();
    if !words.contains("store-only") {
        world.script.on(Step::Parse, parsed(json!({ "intent": "task_planning" })));
        // Each time of the second search: the first is of what is not current.
        for _ in 0..4 {
            world.script.on(Step::Recover, json!({ "keep": ["item-2"], "reason": "" }));
        }
        world.system.answer(SCOPE, QUERY, None).unwrap();
    }
    world
}

fn counts(words: &str) -> BTreeMap<Step, usize> {
    run(words).script.counts()
}

/// The counts of the whole code, less steps.
fn code_less(steps: &[(Step, usize)]) -> BTreeMap<Step, usize> {
    let mut counts = BTreeMap::from([
        (Step::Spans, 1),
        (Step::Candidates, 1),
        (Step::LocalUpdate, 1),
        (Step::Affected, 1),
        (Step::Proposals, 3),
        (Step::Adjudicate, 1),
        (Step::Links, 1),
        (Step::Parse, 1),
        (Step::Verify, 1),
        (Step::Recover, 4),
        (Step::VerifyAgain, 1),
        (Step::Ground, 1),
        (Step::Constraints, 1),
        (Step::Answer, 1),
    ]);
    for (step, less) in steps {
        let count = counts.get_mut(step).unwrap();
        *count -= less;
        if *count == 0 {
            counts.remove(step);
        }
    }
    counts
}

#[test]
fn every_switch_takes_its_part_and_no_other() {
    assert_eq!(counts("code"), code_less(&[]));
    // Without the marker there is nothing that R3 has not seen.
    assert_eq!(counts("no-unknown"), code_less(&[(Step::VerifyAgain, 1), (Step::Recover, 2)]));
    // And nothing to ground a plan on.
    assert_eq!(counts("no-recovery"), code_less(&[(Step::Recover, 4), (Step::Ground, 1)]));
    assert_eq!(counts("no-links"), code_less(&[(Step::Links, 1)]));
    // The verdict then has a basis by itself.
    let verifier = [(Step::Verify, 1), (Step::VerifyAgain, 1), (Step::Recover, 4)];
    assert_eq!(counts("no-verifier"), code_less(&verifier));
    assert_eq!(counts("no-global"), code_less(&[(Step::Proposals, 1)]));
    // The domain has no lane, but its item stands in the global one.
    assert_eq!(counts("no-affected"), code_less(&[(Step::Affected, 1), (Step::Proposals, 1)]));
    let paper = [
        (Step::Links, 1),
        (Step::Recover, 4),
        (Step::VerifyAgain, 1),
        (Step::Ground, 1),
        (Step::Constraints, 1),
        // It asks about what there is: of the domain touched directly nothing is known.
        (Step::Proposals, 1),
    ];
    assert_eq!(counts("paper"), code_less(&paper));
    let writing = [
        (Step::LocalUpdate, 1),
        (Step::Affected, 1),
        (Step::Proposals, 3),
        (Step::Adjudicate, 1),
        (Step::Links, 1),
        // Nothing is stale or marked.
        (Step::Recover, 3),
        (Step::VerifyAgain, 1),
    ];
    assert_eq!(counts("readout-only"), code_less(&writing));
    let reading = [
        (Step::Parse, 1),
        (Step::Verify, 1),
        (Step::VerifyAgain, 1),
        (Step::Recover, 4),
        (Step::Ground, 1),
        (Step::Constraints, 1),
        (Step::Answer, 1),
    ];
    assert_eq!(counts("store-only"), code_less(&reading));
}

#[test]
fn without_unknown_no_slot_is_marked_and_no_model_is_offered_it() {
    let world = run("no-unknown");
    assert!(!world.is_active("item-0") && world.store().markers.is_empty());
    let call = world.script.of(Step::Adjudicate).remove(0);
    let offered = call.schema.unwrap()["properties"]["decision"]["enum"].to_string();
    assert!(!offered.contains("UNKNOWN") && !call.messages[0].content.contains("UNKNOWN"), "{offered}");
    assert_eq!(run("code").marked(), [COMMUTE]);
    let mut world = World::new(Settings::parse("no-unknown").unwrap());
    world.knows(GOAL, "Wants to run");
    world.script.says(GOAL, "Has lost all goals", 0.8).decides("INVALIDATE", None);
    world.write();
    assert!(world.is_active("item-0") && world.store().markers.is_empty());
}

#[test]
fn readout_only_appends_everything_and_reads_it_whole() {
    let mut world = World::new(Settings::parse("readout-only").unwrap());
    for town in ["Oslo", "Bergen", "Oslo"] {
        world.knows(HOME, &format!("Lives in {town}"));
    }
    assert_eq!(world.store().active_in(&world.store().items[0].slot).len(), 3, "a single slot included");
    world.system.answer(SCOPE, QUERY, None).unwrap();
    let steps: Vec<Step> = world.script.counts().into_keys().collect();
    assert_eq!(steps, [Step::Parse, Step::Verify, Step::Recover, Step::Answer]);
}

#[test]
fn store_only_gives_active_items_as_they_are() {
    let mut world = run("store-only");
    assert!(!world.system.hello().unwrap().can(Capability::Answer));
    world.script.forget_calls();
    let found = world.system.search(SCOPE, "Who lives in Bergen to run?", 5, None).unwrap();
    let told: Vec<(&str, Status)> =
        found.memories.iter().map(|memory| (memory.id.as_str(), memory.status)).collect();
    assert_eq!(told, [("item-2", Status::Active), ("item-1", Status::Active)], "by nearness, none stale");
    assert!(found.parts.is_none() && world.script.calls().is_empty());
    assert_eq!(world.system.search(SCOPE, "Bergen", 1, None).unwrap().memories.len(), 1);
    let refused = world.system.answer(SCOPE, QUERY, None).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Unsupported);
}
