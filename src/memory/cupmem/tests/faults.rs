//! Replies that cannot be read, and models that are not there.

use super::super::Settings;
use super::super::asking::RETRIES;
use super::super::model::Step;
use super::script::{SCOPE, World, ops, session};
use crate::chat::MessageRole;
use crate::memory::system::protocol::{FailureKind, MemorySystem, Op};

const WORK: &str = "current_workload";
const QUERY: &str = "Am I still on nights?";

#[test]
fn a_reply_that_is_no_json_is_asked_for_again_and_shown_to_the_model() {
    let mut world = World::code();
    world.script.raw(Step::Spans, "Well, let me think.").raw(Step::Spans, r#"{"spans": [{}]}"#);
    world.script.says(WORK, "Works nights", 0.8);
    assert_eq!(ops(&world.write()), [(Op::Add, Some("item-0"))]);
    let calls = world.script.of(Step::Spans);
    assert_eq!(calls.len(), 3);
    let last = &calls[2].messages;
    assert_eq!(last.len(), 4, "instructions, data, the last reply and what was wrong with it");
    assert_eq!((last[2].role, last[2].content.as_str()), (MessageRole::Assistant, r#"{"spans": [{}]}"#));
    assert!(last[3].content.contains("missing field"), "{}", last[3].content);
    assert_eq!(calls.iter().map(|call| call.sampling.seed).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn after_three_retries_a_step_of_writing_is_left_out_and_told_as_an_error() {
    for (step, written) in [
        (Step::Spans, false),
        (Step::Candidates, false),
        (Step::LocalUpdate, false),
        (Step::Affected, true),
        (Step::Proposals, true),
        (Step::Adjudicate, true),
        (Step::Links, true),
    ] {
        let mut world = World::code();
        world.knows(WORK, "Works nights");
        world.knows(WORK, "Tutors on Sundays");
        world.script.says(WORK, "Has quit the mill", 0.8);
        if step == Step::Links {
            world.script.proposes(&[("item-0", 0.8)]).judges("INDIRECT_INVALIDATE", None);
        } else if step == Step::Adjudicate {
            world.script.proposes(&[("item-0", 0.8)]);
        }
        if matches!(step, Step::Spans | Step::Candidates) {
            // What `says` laid down comes after the faults, and is not asked for.
            world = World::code();
            world.knows(WORK, "Works nights");
            world.knows(WORK, "Tutors on Sundays");
            if step == Step::Candidates {
                let spans =
                    serde_json::json!({ "spans": [super::script::span("it", serde_json::json!({}))] });
                world.script.on(Step::Spans, spans);
            }
        }
        for _ in 0..=RETRIES {
            world.script.raw(step, "no idea");
        }
        let events = world.write();
        // The global lane is asked after the one that failed.
        let others = usize::from(step == Step::Proposals);
        assert_eq!(world.script.of(step).len(), 1 + RETRIES + others, "{step}");
        let told: Vec<&str> = events
            .iter()
            .filter(|event| event.op == Op::None)
            .filter_map(|event| event.reason.as_deref())
            .filter(|reason| reason.starts_with("error: "))
            .collect();
        let expected =
            format!("error: {step}: no readable reply in 4 attempts: it holds no JSON object: no idea");
        assert!(told.contains(&expected.as_str()), "{step}: {told:?}");
        assert_eq!(world.store().items.len(), if written { 3 } else { 2 }, "{step}");
        assert_eq!(world.store().sessions.len(), 3, "{step}: the session is written all the same");
    }
}

#[test]
fn a_step_of_reading_without_a_readable_reply_fails_the_probe() {
    for step in [Step::Parse, Step::Verify, Step::Recover, Step::Constraints, Step::Answer] {
        let mut world = World::code();
        world.knows(WORK, "Works nights");
        if step == Step::Constraints {
            let plan = super::script::parsed(serde_json::json!({ "intent": "task_planning" }));
            world.script.on(Step::Parse, plan);
        }
        for _ in 0..=RETRIES {
            world.script.raw(step, "no idea");
        }
        let error = world.system.answer(SCOPE, QUERY, None).unwrap_err();
        assert_eq!((error.op, error.kind), ("answer", FailureKind::Nonsense));
        assert!(error.message.starts_with(&format!("{step}: no readable reply in 4")), "{error}");
        assert_eq!(world.script.of(step).len(), 1 + RETRIES);
        world.system.answer(SCOPE, QUERY, None).unwrap();
    }
}

#[test]
fn a_model_that_is_not_there_leaves_the_store_as_it_was() {
    for step in [Step::Spans, Step::Candidates, Step::LocalUpdate, Step::Affected, Step::Proposals] {
        let mut world = World::code();
        world.knows(WORK, "Works nights");
        let before = world.system.fingerprint(SCOPE).unwrap();
        if matches!(step, Step::Spans) {
            world.script.raw(step, "unreachable");
        } else if step == Step::Candidates {
            let spans = serde_json::json!({ "spans": [super::script::span("it", serde_json::json!({}))] });
            world.script.on(Step::Spans, spans).raw(step, "unreachable");
        } else {
            world.script.says(WORK, "Works days", 0.8).raw(step, "unreachable");
        }
        let error = world.system.ingest(SCOPE, &session(1)).unwrap_err();
        assert_eq!((error.op, error.kind), ("ingest", FailureKind::Transient), "{step}");
        assert!(error.to_string().contains("nobody is there"), "{error}");
        assert_eq!(world.system.fingerprint(SCOPE).unwrap(), before, "{step}");
        world.script.says(WORK, "Works days", 0.8);
        assert_eq!(ops(&world.write()), [(Op::Add, Some("item-1"))], "{step}: the session can be sent again");
    }
    let mut world = World::code();
    world.script.raw(Step::Parse, "unreachable");
    let error = world.system.search(SCOPE, QUERY, 5, None).unwrap_err();
    assert_eq!(error.kind, FailureKind::Transient);
}

#[test]
fn schemas_temperatures_and_limits_are_asked_for() {
    let mut world = World::code();
    world.knows(WORK, "Works nights");
    world.script.says(WORK, "Works days", 0.8);
    world.write();
    world.system.answer(SCOPE, QUERY, None).unwrap();
    for call in world.script.calls() {
        let warm = if call.step == Step::Proposals { 0.30 } else { 0.0 };
        assert_eq!((call.sampling.temperature, call.sampling.max_new_tokens), (warm, 1024), "{}", call.step);
        let schema = call.schema.expect("held to a schema");
        assert_eq!(schema["additionalProperties"], false, "{}", call.step);
        assert!(call.messages[0].content.ends_with(&schema.to_string()), "the instructions state it too");
    }
    let mut world = World::new(Settings::parse("no-schema").unwrap());
    world.write();
    assert!(world.script.calls()[0].schema.is_none());
}
