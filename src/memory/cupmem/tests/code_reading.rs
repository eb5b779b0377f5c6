//! Reading as the public code goes about it, where it is not the paper's variant.

use serde_json::{Value, json};

use super::super::model::Step;
use super::script::{SCOPE, World, parsed, verdict};
use crate::memory::system::protocol::{Found, MemorySystem, Status};

const HOME: &str = "current_base_location";
const WORK: &str = "current_workload";
const COMMUTE: &str = "current_commute_mode";
const GOAL: &str = "short_horizon_goal";
const QUERY: &str = "Which way should I cycle to work?";

/// item-0 cycles (stale, in a marked slot), item-1 lives in Bergen, item-2 wants to run.
fn after_a_move() -> World {
    let mut world = World::code();
    world.knows(COMMUTE, "Cycles to work");
    world.script.says(HOME, "Lives in Bergen", 0.8).proposes(&[("item-0", 0.8)]);
    world.script.judges("INDIRECT_INVALIDATE", None);
    world.write();
    world.knows(GOAL, "Wants to run");
    world
}

fn search(world: &mut World, query: &str) -> Found {
    world.system.search(SCOPE, query, 20, None).unwrap()
}

fn context(found: &Found) -> String {
    found.parts.iter().flatten().map(|part| part.text.as_str()).collect()
}

fn memories(found: &Found) -> Vec<(&str, Status)> {
    found.memories.iter().map(|memory| (memory.id.as_str(), memory.status)).collect()
}

fn count(world: &World, step: Step) -> usize {
    world.script.of(step).len()
}

#[test]
fn the_basis_is_looked_for_where_the_premise_fails_or_is_unsafe_or_a_plan_lacks_a_strong_one() {
    let plan = || json!({ "intent": "task_planning" });
    for (parse, over, times) in [
        (json!({}), json!({ "status": "SUPPORTED", "usable": ["item-0"] }), 0),
        (json!({}), json!({ "status": "UNRESOLVED", "usable": ["item-0"] }), 0),
        (json!({}), json!({ "status": "SUPPORTED", "usable": [] }), 1),
        (json!({}), json!({ "status": "SUPPORTED", "usable": ["item-0"], "premise_safe": false }), 1),
        (json!({}), json!({ "status": "OUTDATED", "usable": ["item-0"], "outdated": ["item-2"] }), 1),
        (plan(), json!({ "status": "SUPPORTED", "usable": ["item-0"] }), 0),
        (plan(), json!({ "status": "SUPPORTED", "usable": ["item-1"] }), 1),
        (json!({}), json!({ "status": "SUPPORTED", "usable": ["item-1"] }), 0),
    ] {
        // Nothing is stale: there is one search, and R5 has nothing to see. item-1 is weak.
        let mut world = World::code();
        world.knows(WORK, "Works nights");
        world.knows(WORK, "Tutors on Sundays");
        world
            .script
            .says(GOAL, "Wants to run", 0.8)
            .proposes(&[("item-1", 0.8)])
            .judges("WEAK_CHALLENGE", None);
        world.write();
        world.script.on(Step::Parse, parsed(parse.clone())).on(Step::Verify, verdict(over.clone()));
        search(&mut world, QUERY);
        assert_eq!(
            (count(&world, Step::Recover), count(&world, Step::VerifyAgain)),
            (times, 0),
            "{parse} {over}"
        );
    }
}

#[test]
fn a_verdict_is_sought_again_in_conflict_and_in_doubt() {
    // A strong hit beside one that is not current: whatever the verdict.
    let mut world = after_a_move();
    world.script.verifies(json!({ "status": "SUPPORTED", "supporting": ["item-1"], "usable": ["item-1"] }));
    search(&mut world, QUERY);
    assert_eq!(count(&world, Step::VerifyAgain), 1);
    let again = world.script.of(Step::VerifyAgain).remove(0);
    assert!(again.data().contains("Found besides"), "{}", again.data());
    assert!(!world.script.of(Step::Verify)[0].data().contains("Found besides"));
    // Among hits that are all current: UNRESOLVED, or unsure.
    for (status, confidence, times) in
        [("SUPPORTED", 0.45, 0), ("SUPPORTED", 0.44, 1), ("UNRESOLVED", 0.9, 1)]
    {
        let mut world = after_a_move();
        for n in 0..9 {
            world.knows(GOAL, &format!("Goal number {n}"));
        }
        let one = json!({ "status": status, "confidence": confidence, "usable": ["item-3"] });
        world.script.verifies(one);
        search(&mut world, "Goal number?");
        assert_eq!(count(&world, Step::VerifyAgain), times, "{status} {confidence}");
    }
    // The basis is looked for after it once more, each time in two searches.
    let mut world = after_a_move();
    world.script.verifies(json!({ "status": "OUTDATED", "outdated": ["item-0"] }));
    search(&mut world, QUERY);
    assert_eq!((count(&world, Step::VerifyAgain), count(&world, Step::Recover)), (1, 4));
}

/// The premise as the answer's context tells it.
fn premise(status: &str, over: Value) -> &'static str {
    let mut world = after_a_move();
    let mut reply = over;
    reply["status"] = json!(status);
    world.script.verifies(reply);
    world.system.answer(SCOPE, QUERY, None).unwrap();
    let answer = world.script.of(Step::Answer).remove(0);
    match (answer.data().contains("no longer holds."), answer.data().contains("is not safe.")) {
        (true, true) => "outdated",
        (false, true) => "unsafe",
        (false, false) => "safe",
        (true, false) => "outdated and safe",
    }
}

#[test]
fn a_verdict_is_held_to_the_store_by_the_public_codes_rules() {
    assert_eq!(premise("OUTDATED", json!({})), "unsafe", "without grounds it is unresolved, and unsafe");
    assert_eq!(premise("OUTDATED", json!({ "outdated": ["item-0"] })), "outdated");
    assert_eq!(premise("OUTDATED", json!({ "unknown_slots": [COMMUTE] })), "outdated");
    assert_eq!(premise("UNRESOLVED", json!({ "unknown_slots": [COMMUTE] })), "unsafe");
    assert_eq!(premise("UNRESOLVED", json!({ "outdated": ["item-0"] })), "safe");
    assert_eq!(premise("UNRESOLVED", json!({ "outdated": ["item-0"], "premise_safe": false })), "outdated");
    let both = json!({ "outdated": ["item-0"], "supporting": ["item-1"], "premise_safe": false });
    assert_eq!(premise("UNRESOLVED", both), "outdated");
    assert_eq!(premise("SUPPORTED", json!({ "usable": ["item-1"] })), "safe");
    let told = |over: Value| {
        let mut world = after_a_move();
        world.script.verifies(over);
        let found = search(&mut world, QUERY);
        (
            context(&found),
            memories(&found).iter().map(|(id, status)| ((*id).to_owned(), *status)).collect::<Vec<_>>(),
        )
    };
    let active = |id: &str| (id.to_owned(), Status::Active);
    let stale = |id: &str| (id.to_owned(), Status::Stale);
    // Support is usable where the premise holds and nothing else is named, or where it fails and nothing blocks it.
    let (text, found) = told(json!({ "status": "SUPPORTED", "supporting": ["item-1", "item-0"] }));
    assert!(text.starts_with("True of the user now:\n- Lives in Bergen\n"), "{text}");
    assert_eq!(found, [active("item-1")], "a stale item supports nothing, and is left out");
    let over = json!({ "status": "OUTDATED", "supporting": ["item-1", "item-2"], "outdated": ["item-2"] });
    assert_eq!(told(over).1, [active("item-1"), stale("item-2")]);
    // What is told as true are the items' own words.
    let facts = json!([{ "text": "You live by the sea.", "items": ["item-1"] }]);
    let (text, _) = told(json!({ "status": "SUPPORTED", "usable": ["item-1", "item-99"], "facts": facts }));
    assert!(text.contains("- Lives in Bergen\n") && !text.contains("by the sea"), "{text}");
}

#[test]
fn what_recovery_keeps_is_usable_where_it_is_active_and_not_blocked() {
    let mut world = after_a_move();
    for n in 0..9 {
        world.knows(GOAL, &format!("Which way, number {n}"));
    }
    world.script.on(Step::Parse, parsed(json!({ "proposition": "Lives in Bergen" })));
    for _ in 0..2 {
        world.script.on(Step::Recover, json!({ "keep": ["item-0", "item-1"], "reason": "" }));
        world.script.on(Step::Recover, json!({ "keep": ["item-1", "item-99"], "reason": "" }));
    }
    let found = search(&mut world, QUERY);
    assert_eq!(memories(&found), [("item-1", Status::Active), ("item-0", Status::Stale)]);
    let searches = world.script.of(Step::Recover);
    let ids = |at: usize| {
        let ids = searches[at].data().lines().last().unwrap().to_owned();
        ids.trim_start_matches("Ids: ").split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ids(0).len(), 2, "what is not current: a stale item and a marker");
    assert_eq!((ids(1).len(), ids(1)[0].as_str()), (8, "item-1"));
    let mut world = after_a_move();
    world.script.verifies(json!({ "blocked": ["item-1"] }));
    for _ in 0..4 {
        world.script.on(Step::Recover, json!({ "keep": ["item-1"], "reason": "" }));
    }
    assert_eq!(memories(&search(&mut world, QUERY)), [("item-1", Status::Stale)]);
}

#[test]
fn the_slots_that_a_probe_names_are_seen_whole() {
    let mut world = World::code();
    world.knows(WORK, "Tutors on Sundays");
    for slot in ["enduring_preference", "habitual_choice_pattern", "household_obligation", "routine_shift"] {
        for n in 0..3 {
            world.knows(slot, &format!("Which way, number {n}"));
        }
    }
    world.script.on(Step::Parse, parsed(json!({ "slots": [WORK] })));
    world.script.on(Step::Verify, verdict(json!({ "status": "SUPPORTED", "usable": ["item-0"] })));
    let found = search(&mut world, "Which way, number 1?");
    assert_eq!(memories(&found), [("item-0", Status::Active)]);
    // It was not found, and may not be named where its slot is not.
    world.script.on(Step::Verify, verdict(json!({ "status": "SUPPORTED", "usable": ["item-0"] })));
    assert_eq!(memories(&search(&mut world, "Which way, number 2?")), []);
}

/// A plan's context, by what R6 says.
fn planned(decision: &str, ids: &[&str], facts: Value, over: Value) -> (String, World) {
    let mut world = after_a_move();
    let plan = json!({ "intent": "task_planning", "goal": "get there", "options": ["tram", "bus"] });
    world.script.on(Step::Parse, parsed(plan)).verifies(over);
    let ground = json!({
        "decision": decision, "decisive": ids, "blocking": ids, "supporting": ids, "facts": facts,
    });
    world.script.on(Step::Ground, ground);
    let constraints =
        json!({ "must": ["Name the tram."], "must_not": ["Suggest the bicycle."], "open": ["The hour."] });
    world.script.on(Step::Constraints, constraints);
    let found = search(&mut world, QUERY);
    (context(&found), world)
}

#[test]
fn plans_are_grounded_and_bounded() {
    let usable = || json!({ "usable": ["item-1"], "historical": ["item-0"] });
    for (decision, words) in [
        ("PROCEED", "go ahead as asked"),
        ("ADJUST", "go ahead with changes"),
        ("BLOCK", "do not go ahead"),
        ("ASK", "ask the user first"),
    ] {
        let facts = json!([
            "It rains.",
            "You cycle, so CYCLES to work it is",
            "Bus 4 runs.",
            "Tram 2 too.",
            "No snow.",
            "Five."
        ]);
        let (text, world) = planned(decision, &["item-1"], facts, usable());
        for line in [
            &format!("How to go on:\n- {words}\n"),
            "To mention:\n- It rains.\n- Bus 4 runs.\n- Tram 2 too.\n- No snow.\nThe answer must:\n- Name the tram.\n",
            "The answer must not:\n- Suggest the bicycle.\nOpen:\n- The hour.\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        let ground = world.script.of(Step::Ground).remove(0);
        assert!(ground.data().contains("Goal: get there\nChoices: tram; bus\n"), "{}", ground.data());
        assert!(world.script.of(Step::Constraints)[0].data().contains(&format!("How to go on: {words}")));
    }
    // Going ahead on nothing, or on history alone: a question, or no where the premise is unsafe.
    for ids in [&[][..], &["item-0", "item-9"]] {
        let (text, _) = planned("PROCEED", ids, json!([]), usable());
        assert!(text.contains("How to go on:\n- ask the user first\n"), "{text}");
        let over = json!({ "usable": ["item-1"], "historical": ["item-0"], "premise_safe": false });
        let (text, _) = planned("ADJUST", ids, json!([]), over);
        assert!(text.contains("How to go on:\n- do not go ahead\n"), "{text}");
    }
}

#[test]
fn other_probes_are_grounded_where_they_name_choices_and_never_bounded() {
    for (options, status, grounds) in [
        (json!([]), "UNRESOLVED", 0),
        (json!(["tram", "bus"]), "UNRESOLVED", 1),
        (json!(["tram", "bus"]), "SUPPORTED", 0),
    ] {
        for intent in ["validity_check", "premise_laden"] {
            let mut world = after_a_move();
            world.script.on(Step::Parse, parsed(json!({ "intent": intent, "options": options })));
            world.script.verifies(json!({ "status": status, "usable": ["item-1"] }));
            search(&mut world, QUERY);
            assert_eq!(count(&world, Step::Ground), grounds, "{intent} {options} {status}");
            assert_eq!(count(&world, Step::Constraints), 0, "{intent}");
        }
    }
}
