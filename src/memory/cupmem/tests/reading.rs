//! R1 to R8.

use serde_json::{Value, json};

use super::super::model::Step;
use super::super::schema::Slot;
use super::super::{Settings, Switch};
use super::script::{SCOPE, World, parsed, verdict};
use crate::memory::system::protocol::{Found, MemorySystem, Status};

const HOME: &str = "current_base_location";
const WORK: &str = "current_workload";
const COMMUTE: &str = "current_commute_mode";
const GOAL: &str = "short_horizon_goal";
const QUERY: &str = "Which way should I cycle to work?";

/// item-0 cycles (stale, in a marked slot), item-1 lives in Bergen, item-2 wants to run.
fn after_a_move(mut world: World) -> World {
    world.knows(COMMUTE, "Cycles to work");
    let (word, unknown) =
        if world.system_is_code() { ("INDIRECT_INVALIDATE", false) } else { ("UNKNOWN", true) };
    world.script.says(HOME, "Lives in Bergen", 0.8).proposes(&[("item-0", 0.8)]);
    world.script.judges(word, unknown.then_some("item-0"));
    world.write();
    assert_eq!(world.marked(), [COMMUTE]);
    world.knows(GOAL, "Wants to run");
    world
}

fn search(world: &mut World) -> Found {
    world.system.search(SCOPE, QUERY, 20, Some("2024-06-01")).unwrap()
}

fn context(found: &Found) -> String {
    found.parts.iter().flatten().map(|part| part.text.as_str()).collect()
}

/// Memories with their statuses.
fn memories(found: &Found) -> Vec<(&str, Status)> {
    found.memories.iter().map(|memory| (memory.id.as_str(), memory.status)).collect()
}

#[test]
fn a_probe_of_the_code_takes_these_calls_and_one_of_the_paper_these() {
    let steps = |world: &World| world.script.calls().iter().map(|call| call.step).collect::<Vec<_>>();
    let mut world = after_a_move(World::code());
    world.script.verifies(json!({ "usable": ["item-1"] }));
    world.system.answer(SCOPE, QUERY, None).unwrap();
    assert_eq!(steps(&world), [Step::Parse, Step::Verify, Step::VerifyAgain, Step::Answer]);
    let mut world = after_a_move(World::paper());
    world.system.answer(SCOPE, QUERY, None).unwrap();
    assert_eq!(steps(&world), [Step::Parse, Step::Verify, Step::Answer], "no basis, and no recovery");
}

#[test]
fn a_search_and_an_answer_share_a_readout_until_the_next_session() {
    let mut world = after_a_move(World::code());
    search(&mut world);
    let asked = world.script.calls().len();
    search(&mut world);
    assert_eq!(world.script.calls().len(), asked);
    world.system.answer(SCOPE, QUERY, Some("2024-06-01")).unwrap();
    assert_eq!(world.script.calls().len(), asked + 1);
    world.knows(WORK, "Works nights");
    search(&mut world);
    assert!(world.script.calls().len() > 1);
}

#[test]
fn the_time_of_a_question_is_told_in_the_paper_alone() {
    for (mut world, told) in [(after_a_move(World::code()), false), (after_a_move(World::paper()), true)] {
        world.system.answer(SCOPE, QUERY, Some("2024-06-01")).unwrap();
        for call in world.script.calls() {
            let asked = matches!(call.step, Step::Parse | Step::Verify | Step::Answer);
            assert_eq!(call.data().contains("2024-06-01"), told && asked, "{}: {}", call.step, call.data());
            let dated = told && call.step == Step::Verify;
            assert_eq!(call.data().contains("since 2024-05-02"), dated, "{}: {}", call.step, call.data());
        }
    }
}

#[test]
fn slots_in_conflict_are_shown_whole_with_how_a_state_ended() {
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.script.says(WORK, "Works days", 0.8).decides("REPLACE", Some("item-0"));
    world.script.on(Step::Links, json!({ "relation": "SUCCESSOR", "reason": "days for nights" }));
    world.write();
    world.knows(GOAL, "Wants to run");
    world
        .script
        .on(Step::Parse, parsed(json!({ "old_premise": "Works nights", "proposition": "Works nights" })));
    search(&mut world);
    let shown = world.script.of(Step::Verify).remove(0);
    for line in [
        "work_and_schedule.current_workload (changed)",
        "  now item-1: Works days",
        "  former item-0: Works nights (no longer: local); now: Works days",
        "    later: Works days (days for nights)",
        "current_focus_and_goals.short_horizon_goal\n  now item-2: Wants to run",
        "Premise: Works nights",
    ] {
        assert!(shown.data().contains(line), "{line}\n{}", shown.data());
    }
    let mut world = after_a_move(World::code());
    search(&mut world);
    let shown = world.script.of(Step::Verify).remove(0);
    let bundle = "routine_and_transport.current_commute_mode (changed)\n  former item-0: Cycles to work (no longer: \
                  lost)\n  unknown: lost";
    assert!(shown.data().contains(bundle), "{}", shown.data());
}

#[test]
fn retrieval_is_by_premise_and_takes_eight_in_the_code_and_ten_in_the_paper() {
    for (mut world, most) in [(World::code(), 8), (World::paper(), 10)] {
        let slots = Slot::all().filter(|slot| slot.domain() != "work_and_schedule").take(20);
        for slot in slots {
            world.knows(slot.name(), "Says nothing of it");
        }
        world.knows(WORK, "Works nights");
        let premise = if most == 8 { "old_premise" } else { "presuppositions" };
        let said = if most == 8 { json!("Works nights") } else { json!(["Works nights"]) };
        world.script.on(Step::Parse, parsed(json!({ premise: said })));
        search(&mut world);
        let shown = world.script.of(Step::Verify).remove(0);
        let count = shown.data().matches("  now item-").count();
        // The code sees the three nearest slots whole, found or not.
        assert!((most..=most + if most == 8 { 2 } else { 0 }).contains(&count), "{count}");
        let first = shown.data().split("Memory:\n").nth(1).unwrap();
        assert!(first.starts_with("work_and_schedule.current_workload"), "{first}");
    }
}

#[test]
fn an_unretrieved_active_item_comes_with_its_conflicting_slot() {
    let mut world = World::code();
    for n in 0..8 {
        world.knows(GOAL, &format!("Cycle number {n} way"));
    }
    world.knows(WORK, "Cycles which way");
    world.script.says(WORK, "Drives", 0.8).decides("REPLACE", Some("item-8"));
    world.write();
    world.script.forget_calls();
    world.script.on(Step::Parse, parsed(json!({ "old_premise": "Cycles which way" })));
    search(&mut world);
    let shown = world.script.of(Step::Verify).remove(0);
    assert!(shown.data().contains("former item-8") && shown.data().contains("now item-9: Drives"));
}

#[test]
fn in_the_paper_a_verdict_is_held_to_what_was_shown() {
    let mut world = after_a_move(World::paper());
    world.script.on(
        Step::Verify,
        verdict(json!({
            "status": "OUTDATED",
            "supporting": ["item-0", "item-1"],
            "usable": ["item-0", "item-1", "item-2", "item-2", "item-77"],
            "blocked": ["item-2"],
            "unknown_slots": ["marker:current_commute_mode", "current_base_location", "nonsense"],
            "facts": [
                { "text": "You live in Bergen.", "items": ["item-1", "item-77"] },
                { "text": "You want to run.", "items": ["item-2"] },
                { "text": "You cycle.", "items": ["item-0"] },
                { "text": "You are tall.", "items": [] },
            ],
        })),
    );
    let found = search(&mut world);
    let expected = [("item-1", Status::Active), ("item-2", Status::Stale), ("item-0", Status::Stale)];
    let mut told = memories(&found);
    assert_eq!(told.remove(0), expected[0], "usable ones first");
    told.sort_by_key(|(id, _)| *id);
    assert_eq!(told, [("item-0", Status::Stale), ("item-2", Status::Stale)]);
    let text = context(&found);
    assert!(text.starts_with("True of the user now:\n- You live in Bergen.\n"), "{text}");
    for line in [
        "No longer true of the user:\n- Wants to run\n- Cycles to work\n",
        "Not known any more:\n- current commute mode: lost\n",
        "About the question:\n- What the question takes for granted no longer holds.\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("You cycle") && !text.contains("tall") && !text.contains("item-"), "{text}");
    let of = |part: &str| {
        let parts = found.parts.iter().flatten();
        parts.filter(|piece| piece.text.contains(part)).map(|piece| piece.memory.clone()).next().unwrap()
    };
    assert_eq!((of("live in Bergen"), of("Cycles")), (Some("item-1".into()), Some("item-0".into())));
    assert_eq!(of("Not known"), None);
}

/// The premise as the answer's context tells it.
fn premise(status: &str, with: Value) -> String {
    let mut world = after_a_move(World::paper());
    let mut reply = verdict(with);
    reply["status"] = json!(status);
    world.script.on(Step::Verify, reply);
    world.system.answer(SCOPE, QUERY, None).unwrap();
    let answer = world.script.of(Step::Answer).remove(0);
    match (answer.data().contains("no longer holds."), answer.data().contains("is not safe.")) {
        (true, true) => "outdated".to_owned(),
        (false, true) => "unsafe".to_owned(),
        (false, false) => "safe".to_owned(),
        (true, false) => answer.data().to_owned(),
    }
}

#[test]
fn in_the_paper_outdated_needs_grounds_and_unresolved_with_outdated_items_alone_is_outdated() {
    assert_eq!(premise("OUTDATED", json!({})), "safe", "without grounds it is unresolved");
    for grounds in ["outdated", "blocked", "historical"] {
        assert_eq!(premise("OUTDATED", json!({ grounds: ["item-0"] })), "outdated", "{grounds}");
        assert_eq!(premise("OUTDATED", json!({ grounds: ["item-9"] })), "safe", "{grounds}: not shown");
    }
    assert_eq!(premise("OUTDATED", json!({ "unknown_slots": [COMMUTE] })), "outdated");
    assert_eq!(premise("UNRESOLVED", json!({ "outdated": ["item-0"] })), "outdated");
    let both = json!({ "outdated": ["item-0"], "supporting": ["item-1"] });
    assert_eq!(premise("UNRESOLVED", both), "safe");
    assert_eq!(premise("UNRESOLVED", json!({ "premise_safe": false })), "unsafe");
    assert_eq!(premise("SUPPORTED", json!({ "supporting": ["item-1"], "usable": ["item-1"] })), "safe");
}

#[test]
fn values_of_usable_items_stand_for_facts_that_are_missing() {
    for mut world in [after_a_move(World::code()), after_a_move(World::paper())] {
        world.script.verifies(json!({ "usable": ["item-1"] }));
        assert!(context(&search(&mut world)).contains("True of the user now:\n- Lives in Bergen\n"));
    }
}

#[test]
fn an_answer_is_made_from_the_context_alone() {
    let mut world = after_a_move(World::code());
    world.script.verifies(json!({ "usable": ["item-1"], "historical": ["item-0"] }));
    let found = search(&mut world);
    world.script.on(Step::Answer, json!({ "answer": " By tram. " }));
    let answer = world.system.answer(SCOPE, QUERY, Some("2024-06-01")).unwrap();
    assert_eq!((answer.text.as_str(), answer.memories), ("By tram.", found.memories.clone()));
    let call = world.script.of(Step::Answer).remove(0);
    assert!(call.data().starts_with(context(&found).trim_end()), "{}", call.data());
    assert!(!call.data().contains("item-") && !call.data().contains("marker"), "{}", call.data());
    assert!(!call.data().contains("Wants to run"), "it was retrieved, and not found usable");
}

#[test]
fn k_bounds_the_memories_told() {
    let mut world = after_a_move(World::code());
    world.script.verifies(json!({ "usable": ["item-1", "item-2"] }));
    let found = world.system.search(SCOPE, QUERY, 1, None).unwrap();
    assert_eq!(found.memories.len(), 1);
    assert!(world.system.search(SCOPE, QUERY, 0, None).unwrap().memories.is_empty());
}

#[test]
fn without_a_verifier_the_store_decides() {
    let mut world = after_a_move(World::new(Settings::default().without(Switch::NoVerifier)));
    let found = search(&mut world);
    let mut told = memories(&found);
    told.sort_by_key(|(id, _)| *id);
    let expected = [("item-0", Status::Stale), ("item-1", Status::Active), ("item-2", Status::Active)];
    assert_eq!(told, expected);
    let text = context(&found);
    assert!(text.contains("- Lives in Bergen\n") && text.contains("Not known any more:\n"), "{text}");
    assert_eq!(world.script.of(Step::Verify).len() + world.script.of(Step::VerifyAgain).len(), 0);
}
