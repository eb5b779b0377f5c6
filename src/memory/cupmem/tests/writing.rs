//! W1 to W3: spans, candidates, the update of a slot.

use serde_json::{Value, json};

use super::super::model::Step;
use super::super::store::Strength;
use super::script::{World, candidate, ops, span};
use crate::memory::system::protocol::MemorySystem;
use crate::memory::system::protocol::{Op, SessionInput, TurnInput};

const HOME: &str = "current_base_location";
const WORK: &str = "current_workload";

/// Texts of the spans that W2 is shown.
fn kept(world: &mut World, spans: Value) -> Vec<String> {
    world.script.on(Step::Spans, json!({ "spans": spans }));
    world.write();
    let calls = world.script.of(Step::Candidates);
    world.script.forget_calls();
    let Some(call) = calls.first() else { return Vec::new() };
    let lines = call.data().lines().skip(1).take_while(|line| !line.is_empty());
    lines.map(|line| line.rsplit(": ").next().unwrap().to_owned()).collect()
}

#[test]
fn spans_of_a_current_state_are_kept_and_others_dropped() {
    let spans = json!([
        span("state", json!({ "salience": 0.30 })),
        span("noise", json!({ "type": "noise" })),
        span("was", json!({ "type": "past_future" })),
        span("past", json!({ "scope": "past", "change": "weak" })),
        span("dull", json!({ "salience": 0.29 })),
        span("  ", json!({})),
        span("left", json!({ "scope": "past", "change": "medium", "type": "support" })),
    ]);
    assert_eq!(kept(&mut World::code(), spans.clone()), ["state", "left"]);
    assert_eq!(kept(&mut World::paper(), spans), ["state", "dull", "left"], "the paper cuts no salience");
    for (scope, expected) in [("current", 1), ("mixed", 1), ("past", 0), ("future", 0)] {
        let spans = json!([span("it", json!({ "scope": scope }))]);
        assert_eq!(kept(&mut World::code(), spans).len(), expected, "{scope}");
    }
}

#[test]
fn the_code_asks_for_two_spans_and_keeps_what_it_is_given() {
    let spans = json!([
        span("c", json!({ "salience": 0.99, "type": "support" })),
        span("a", json!({ "salience": 0.5 })),
        span("d", json!({ "salience": 0.4 })),
        span("b", json!({ "salience": 0.9 })),
    ]);
    let mut world = World::code();
    world.write();
    assert!(world.script.of(Step::Spans)[0].messages[0].content.contains("Give two spans at most"));
    world.script.forget_calls();
    assert_eq!(kept(&mut world, spans.clone()), ["c", "a", "d", "b"]);
    assert_eq!(kept(&mut World::paper(), spans), ["c", "a", "d", "b"]);
}

#[test]
fn the_code_sees_user_turns_without_dates_and_the_paper_all() {
    for (mut world, assistant, date) in [(World::code(), false, false), (World::paper(), true, true)] {
        world.write();
        let call = world.script.of(Step::Spans).remove(0);
        assert!(call.data().contains("[0] user: I have news."), "{}", call.data());
        assert_eq!(call.data().contains("Do tell."), assistant);
        assert_eq!(call.data().contains("2024-05-01"), date);
    }
    let mut world = World::code();
    let turn = TurnInput { id: 0, role: "assistant".into(), content: "Hello?".into() };
    let session = SessionInput { id: "session[0]".into(), time: None, turns: vec![turn] };
    assert_eq!(world.system.ingest("history", &session).unwrap().unwrap(), []);
    assert_eq!(world.script.calls().len(), 0, "nothing of the user, nothing to ask");
    assert_eq!(world.store().sessions.len(), 1);
}

#[test]
fn turns_of_a_span_are_of_the_session_and_in_the_paper_found_by_its_words_where_they_are_wrong() {
    for (mut world, turns) in [(World::code(), vec![0]), (World::paper(), vec![0, 1, 2])] {
        check_turns(&mut world, turns);
    }
}

fn check_turns(world: &mut World, turns: Vec<usize>) {
    let spans = json!([
        span("I have", json!({ "turns": [0, 1, 7], "slots": [WORK] })),
        span("it is", json!({ "turns": [9] })),
    ]);
    let mut of_both = candidate(WORK, "Has news", 0.8);
    of_both["spans"] = json!(["s0", "s1", "s9"]);
    world.script.on(Step::Spans, json!({ "spans": spans }));
    world.script.on(Step::Candidates, json!({ "candidates": [of_both] }));
    world.write();
    let sources = world.store().items[0].sources();
    assert_eq!((sources[0].session.as_str(), sources[0].turns.clone()), ("session[0]", turns));
}

/// Values that W2's candidates are written with.
fn written(world: &mut World, spans: Value, candidates: Value) -> Vec<String> {
    world.script.on(Step::Spans, json!({ "spans": spans }));
    world.script.on(Step::Candidates, json!({ "candidates": candidates }));
    world.write();
    world.store().updates.iter().map(|update| format!("{}: {}", update.slot.name(), update.value)).collect()
}

#[test]
fn candidates_have_a_slot_a_span_and_confidence_enough() {
    let inferred = |value: &str, confidence, with: Value| {
        let mut one = candidate(WORK, value, confidence);
        one["source"] = json!("inferred");
        for (name, value) in with.as_object().unwrap() {
            one[name] = value.clone();
        }
        one
    };
    let swapped = |mut one: Value| {
        one["domain"] = json!(HOME);
        one["slot"] = json!("location_and_living");
        one
    };
    let spans = json!([span("weak", json!({ "type": "support", "strength": "weak" }))]);
    let candidates = json!([
        candidate(WORK, "explicit", 0.45),
        candidate(WORK, "unsure", 0.44),
        candidate(WORK, "explicit", 0.9),
        swapped(candidate("", "swapped", 0.9)),
        candidate("favourite_colour", "no slot", 0.9),
        inferred("weak only", 0.99, json!({})),
        inferred("no span", 0.99, json!({ "spans": ["s7"] })),
        candidate(WORK, " ", 0.9),
    ]);
    let code = written(&mut World::code(), spans.clone(), candidates.clone());
    let twice = "current_workload: explicit";
    assert_eq!(code, [twice, twice, "current_base_location: swapped"], "the code drops no repetition");
    let paper = written(&mut World::paper(), spans, candidates);
    assert_eq!(paper.len(), 4, "the paper cuts no confidence: {paper:?}");
    let strong = json!([span("strong", json!({ "type": "support" }))]);
    for (confidence, count) in [(0.54, 0), (0.55, 1)] {
        let one = json!([inferred("it", confidence, json!({}))]);
        assert_eq!(written(&mut World::code(), strong.clone(), one).len(), count);
    }
    let medium = |n| {
        let one = span("medium", json!({ "type": "support", "strength": "medium" }));
        Value::Array(vec![one; n])
    };
    for (spans, confidence, count) in [(2, 0.60, 1), (2, 0.59, 0), (1, 0.99, 0)] {
        let one = json!([inferred("it", confidence, json!({ "spans": ["s0", "s1"] }))]);
        assert_eq!(written(&mut World::code(), medium(spans), one).len(), count);
    }
}

#[test]
fn w2_is_shown_the_items_of_hinted_domains() {
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.knows(HOME, "Lives in Oslo");
    world.script.says(WORK, "Works days", 0.8);
    world.write();
    let call = world.script.of(Step::Candidates).remove(0);
    assert!(call.data().contains("Works nights") && !call.data().contains("Oslo"), "{}", call.data());
    for (mut world, former) in [(World::code(), true), (World::paper(), false)] {
        world.knows(WORK, "Works nights");
        world.script.says(WORK, "Works days", 0.8).decides("REPLACE", Some("item-0"));
        world.write();
        world.script.forget_calls();
        world.script.says(WORK, "Works at the mill", 0.8);
        world.write();
        for step in [Step::Candidates, Step::LocalUpdate] {
            let call = world.script.of(step).remove(0);
            assert_eq!(call.data().contains("Works nights"), former, "{step}: {}", call.data());
        }
    }
}

#[test]
fn each_local_decision_does_what_it_says() {
    for (decision, target, expected, active, value) in [
        ("ADD", None, vec![(Op::Add, Some("item-1"))], true, "Works nights"),
        ("REFINE", Some("item-0"), vec![(Op::Update, Some("item-0"))], true, "Works days"),
        (
            "REPLACE",
            Some("item-0"),
            vec![(Op::Stale, Some("item-0")), (Op::Add, Some("item-1"))],
            false,
            "Works nights",
        ),
        ("NO_OP", Some("item-0"), vec![(Op::None, Some("item-0"))], true, "Works nights"),
        (
            "INVALIDATE",
            Some("item-0"),
            vec![(Op::Stale, Some("item-0")), (Op::None, Some("item-0"))],
            false,
            "Works nights",
        ),
    ] {
        let mut world = World::code();
        world.knows(WORK, "Works nights");
        world.script.says(WORK, "Works days", 0.8).decides(decision, target);
        let events = world.write();
        assert_eq!(ops(&events), expected, "{decision}");
        assert_eq!(
            (world.is_active("item-0"), world.value("item-0").as_str()),
            (active, value),
            "{decision}"
        );
        // Looked at, and asked about, by the one update.
        let told = events.iter().find(|event| event.op != Op::Stale).unwrap();
        let looked: Vec<(&str, Option<bool>)> =
            told.looked_at.iter().flatten().map(|at| (at.memory.as_str(), at.gated)).collect();
        assert_eq!(looked, [("item-0", Some(true))], "{decision}");
        assert!(told.reason.as_ref().is_some_and(|reason| reason.starts_with("W3: ")), "{told:?}");
        let marked = if decision == "INVALIDATE" { vec![WORK.to_owned()] } else { vec![] };
        assert_eq!(world.marked(), marked, "{decision}");
    }
}

#[test]
fn a_refined_item_keeps_what_it_said_and_gains_evidence() {
    let mut world = World::code();
    world.knows_at(WORK, "Works nights", 0.9);
    world.script.says(WORK, "Works nights at the mill", 0.6).decides("REFINE", Some("item-0"));
    let events = world.write();
    assert_eq!(events[0].previous.as_deref(), Some("Works nights"));
    let item = &world.store().items[0];
    assert_eq!((item.confidence, item.evidence.len(), item.history.len()), (0.9, 2, 2));
    assert_eq!((item.created.index, item.last_updated.index), (0, 1));
    assert_eq!(item.history[1].before.as_deref(), Some("Works nights"));
    let sessions: Vec<String> = item.sources().into_iter().map(|source| source.session).collect();
    assert_eq!(sessions, ["session[0]", "session[1]"]);
}

#[test]
fn in_the_paper_a_target_that_is_none_falls_on_the_slots_only_item_or_is_an_add() {
    let mut world = World::paper();
    world.script.says(WORK, "Works nights", 0.8).decides("REPLACE", Some("item-9"));
    assert_eq!(ops(&world.write()), [(Op::Add, Some("item-0"))], "nothing to replace");
    world.script.says(WORK, "Works days", 0.8).decides("REPLACE", Some("item-9"));
    assert_eq!(ops(&world.write())[0], (Op::Stale, Some("item-0")), "the only one");
    world.knows(WORK, "Tutors on Sundays");
    world.script.says(WORK, "Writes", 0.8).decides("REFINE", None);
    assert_eq!(ops(&world.write()), [(Op::Add, Some("item-3"))], "which of the two is not said");
}

#[test]
fn an_add_to_an_occupied_single_slot_is_blocked_unless_it_is_sure() {
    for (before, now, weak, replaces) in [
        (0.70, 0.85, false, true),
        (0.71, 0.85, false, false),
        (0.60, 0.84, false, false),
        (0.84, 0.85, true, true),
        (0.80, 0.84, true, false),
    ] {
        let mut world = World::code();
        world.knows_at(HOME, "Lives in Oslo", before);
        if weak {
            world
                .script
                .says(WORK, "Travels", 0.8)
                .proposes(&[("item-0", 0.5)])
                .judges("WEAK_CHALLENGE", None);
            world.write();
            assert_eq!(world.store().items[0].strength, Strength::Weak);
        }
        world.script.says(HOME, "Lives in Bergen", now).decides("ADD", None);
        world.write();
        assert_eq!(world.is_active("item-0"), !replaces, "{before} {now} {weak}");
        let active = world.store().active().filter(|item| item.slot.name() == HOME).count();
        assert_eq!(active, 1, "a single slot has one default");
    }
}

#[test]
fn in_the_paper_the_later_default_has_a_single_slot() {
    let mut world = World::paper();
    world.knows_at(HOME, "Lives in Oslo", 0.9);
    world.script.says(HOME, "Lives in Bergen", 0.1).decides("ADD", None);
    assert_eq!(ops(&world.write()), [(Op::Stale, Some("item-0")), (Op::Add, Some("item-1"))]);
    let schema = world.script.of(Step::LocalUpdate)[0].schema.clone().unwrap();
    let decisions = &schema["properties"]["decision"]["enum"];
    assert_eq!(*decisions, json!(["ADD", "REFINE", "REPLACE", "NO_OP"]));
}

#[test]
fn w3_sees_five_items_of_the_slot_and_five_of_the_domain() {
    let mut world = World::code();
    for n in 0..7 {
        world.knows(WORK, &format!("Task number {n}"));
        world.knows("work_transition_or_change", &format!("Change number {n}"));
    }
    world.knows(HOME, "Lives in Oslo");
    world.script.says(WORK, "Task number 3", 0.8);
    world.write();
    let call = world.script.of(Step::LocalUpdate).remove(0);
    let shown = |word: &str| call.data().matches(word).count();
    assert_eq!((shown("Task number"), shown("Change number"), shown("Oslo")), (5 + 2, 5, 0));
    assert_eq!(call.data().matches("Task number 3").count(), 3, "said, proposed, and the nearest known");
}
