//! The protocol: identity, scopes, saving, provenance, and the store in words.

use serde_json::json;

use super::super::model::Step;
use super::super::{Settings, Store, show};
use super::script::{SCOPE, World, session, verdict};
use crate::memory::system::protocol::{
    Capability, FailureKind, Memory, MemorySystem, ProvenanceClaim, Status,
};

const HOME: &str = "current_base_location";
const WORK: &str = "current_workload";
const COMMUTE: &str = "current_commute_mode";

/// Lays down the replies to session `n` of a history with every kind of change.
fn lay(world: &World, n: usize) {
    let script = &world.script;
    match n {
        0 => script.says(COMMUTE, "Cycles to work", 0.7),
        1 => script.says(WORK, "Works nights", 0.7),
        2 => script.says(WORK, "Works nights at the mill", 0.8).decides("REFINE", Some("item-1")),
        3 => script
            .says(HOME, "Lives in Bergen", 0.8)
            .proposes(&[("item-0", 0.9), ("item-1", 0.5)])
            .judges("INDIRECT_INVALIDATE", None)
            .judges("WEAK_CHALLENGE", None)
            .on(Step::Links, json!({ "relation": "SUPPORT", "reason": "a long way" })),
        _ => script.says(COMMUTE, "Takes the tram", 0.8),
    };
}

fn history(sessions: usize) -> World {
    let mut world = World::code();
    for n in 0..sessions {
        lay(&world, n);
        world.write();
    }
    world
}

#[test]
fn saved_and_loaded_at_any_session_is_uninterrupted() {
    let mut whole = history(5);
    let expected = whole.system.fingerprint(SCOPE).unwrap();
    for cut in 0..=5 {
        let folder = tempfile::tempdir().unwrap();
        let mut first = history(cut);
        first.system.save(SCOPE, &folder.path().join("deep")).unwrap();
        let mut second = World::code();
        second.system.load(SCOPE, &folder.path().join("deep")).unwrap();
        assert_eq!(second.store(), first.store());
        for n in cut..5 {
            lay(&second, n);
            second.system.ingest(SCOPE, &session(n)).unwrap();
        }
        assert_eq!(second.system.fingerprint(SCOPE).unwrap(), expected, "cut at {cut}");
        assert_eq!(second.system.dump(SCOPE).unwrap(), whole.system.dump(SCOPE).unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("cupmem.json"), "{\"items\": 3").unwrap();
    let broken = whole.system.load(SCOPE, folder.path()).unwrap_err();
    assert!(broken.message.contains("cupmem.json is no saved CUPMem store"), "{broken}");
    let missing = whole.system.load(SCOPE, &folder.path().join("none")).unwrap_err();
    assert_eq!((missing.op, missing.kind), ("load", FailureKind::Fatal));
}

#[test]
fn memories_are_read_back_by_their_sessions() {
    let mut world = history(5);
    let ids = |memories: &[Memory]| {
        memories.iter().map(|memory| (memory.id.clone(), memory.status)).collect::<Vec<_>>()
    };
    let of =
        |world: &mut World, n: usize| ids(&world.system.readback(SCOPE, &[format!("session[{n}]")]).unwrap());
    assert_eq!(of(&mut world, 0), [("item-0".to_owned(), Status::Stale)]);
    assert_eq!(of(&mut world, 1), [("item-1".to_owned(), Status::Active)]);
    assert_eq!(of(&mut world, 2), [("item-1".to_owned(), Status::Active)], "refined by it");
    assert_eq!(of(&mut world, 9), []);
    let dump = world.system.dump(SCOPE).unwrap();
    assert_eq!(dump.len(), 4, "stale ones included");
    assert_eq!(dump[0].time.as_deref(), Some("2024-05-01"));
    assert_eq!(dump[0].sources.as_ref().unwrap()[0].turns, [0]);
}

#[test]
fn scopes_are_apart_and_a_reset_empties_one() {
    let mut world = history(2);
    world.system.reset("other").unwrap();
    assert!(world.system.dump("other").unwrap().is_empty());
    lay(&world, 1);
    world.system.ingest("other", &session(1)).unwrap();
    assert_eq!(world.system.dump("other").unwrap().len(), 1);
    assert_eq!(world.system.dump(SCOPE).unwrap().len(), 2);
    world.system.reset(SCOPE).unwrap();
    assert_eq!(world.system.dump(SCOPE).unwrap().len(), 0);
    assert_eq!(world.system.dump("other").unwrap().len(), 1);
    let unknown = world.system.search("nowhere", "?", 3, None).unwrap_err();
    assert_eq!(unknown.kind, FailureKind::Input);
    let twice = world.system.ingest("other", &session(1)).unwrap_err();
    assert!(twice.message.contains("session[1] is written already"), "{twice}");
    world.system.close();
    assert!(world.system.dump("other").is_err());
}

#[test]
fn identity_tells_variants_switches_and_similarity_apart() {
    let hello = |words: &str| World::new(Settings::parse(words).unwrap()).system.hello().unwrap();
    let code = hello("code");
    assert_eq!((code.name.as_str(), code.version.as_str()), ("cupmem", "2 code by bm25"));
    assert_eq!(code.provenance, ProvenanceClaim::Exact);
    for capability in [Capability::Answer, Capability::Save, Capability::LookedAt, Capability::Readback] {
        assert!(code.can(capability));
    }
    let digests: std::collections::BTreeSet<Option<String>> =
        ["code", "paper", "no-global", "no-schema"].map(|words| hello(words).digest).into();
    assert_eq!(digests.len(), 4);
    assert_eq!(hello("code").digest, code.digest);
}

#[test]
fn probing_leaves_the_store_as_it_was() {
    let mut world = history(4);
    let before = world.system.fingerprint(SCOPE).unwrap();
    world.script.on(Step::Verify, verdict(json!({ "usable": ["item-2"], "blocked": ["item-1"] })));
    world.system.answer(SCOPE, "Which way should I cycle?", None).unwrap();
    assert_eq!(world.system.fingerprint(SCOPE).unwrap(), before);
}

#[test]
fn a_slots_life_can_be_read() {
    let world = history(5);
    let text = show(world.store());
    for line in [
        "routine_and_transport.current_commute_mode (one state at a time)\n  item-0 (stale, 0.70): Cycles to work\n    \
         written session[0] of 2024-05-01 by update-0 \"Cycles to work\" in W3: new\n    \
         invalidated session[3] of 2024-05-04 by update-3 \"Lives in Bergen\" in W6: lost\n    \
         said in session[0] turn 0: \"Cycles to work\"\n    \
         supported by update-3 \"Lives in Bergen\", session[3] of 2024-05-04: a long way\n",
        "  unknown since session[3] of 2024-05-04, by update-3: lost\n    until session[4] of 2024-05-05\n",
        "  item-1 (active, weak, 0.80): Works nights at the mill\n",
        "    refined session[2] of 2024-05-03 by update-2 \"Works nights at the mill\" in W3: local (was: Works nights)\n",
        "\nDecisions by session\nsession[0] of 2024-05-01\n  W1 Cycles to work -> kept\n",
        "  W6 item-0 -> INDIRECT_INVALIDATE: lost\n",
        "  W8 item-0 -> item-0 archived: lost\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(show(&Store::default()).starts_with("The store holds no states."));
}
