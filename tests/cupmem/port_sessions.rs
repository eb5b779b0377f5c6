//! The product's store against that of [`super::port`], over ten handwritten sessions and many random ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use palimpsest::chat::Message;
use palimpsest::memory::cupmem::asking::Complete;
use palimpsest::memory::cupmem::schema::Slot;
use palimpsest::memory::cupmem::settings::Step;
use palimpsest::memory::cupmem::store::Strength;
use palimpsest::memory::cupmem::{CupMem, Settings, Store};
use palimpsest::memory::system::protocol::MemorySystem;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::port::{Judged, Port, SLOTS, Said};
use super::{SCOPE, hold, session};

/// A model with scripted replies per step and minimal defaults; records the updates that W9 asks about.
#[derive(Clone, Default)]
struct Scripted {
    replies: Arc<Mutex<BTreeMap<Step, VecDeque<Value>>>>,
    visited: Arc<Mutex<BTreeSet<String>>>,
}

impl Scripted {
    fn on(&self, step: Step, reply: Value) {
        self.replies.lock().unwrap().entry(step).or_default().push_back(reply);
    }

    fn model(&self) -> Complete {
        let model = self.clone();
        Box::new(move |step, messages, _, _| Ok(model.complete(step, messages)))
    }

    fn complete(&self, step: Step, messages: &[Message]) -> String {
        if step == Step::Links {
            let update = messages[1].content.lines().last().unwrap().rsplit(": ").next().unwrap();
            self.visited.lock().unwrap().insert(update.to_owned());
        }
        let laid = self.replies.lock().unwrap().get_mut(&step).and_then(VecDeque::pop_front);
        let least = match step {
            Step::Affected => json!({ "affected": [] }),
            Step::Proposals => json!({ "proposals": [] }),
            Step::Links => json!({ "relation": "NONE", "reason": "" }),
            _ => Value::Null,
        };
        laid.unwrap_or(least).to_string()
    }
}

/// A CUPMem of the code variant and its script.
struct World {
    system: CupMem,
    script: Scripted,
    sessions: usize,
}

impl World {
    fn new() -> Self {
        let script = Scripted::default();
        let mut system = CupMem::new(Settings::default(), "scripted", script.model(), None);
        system.reset(SCOPE).unwrap();
        World { system, script, sessions: 0 }
    }

    fn store(&self) -> &Store {
        self.system.store(SCOPE).unwrap()
    }
}

/// Scripts a session.
fn lay(world: &World, said: &[Said], judged: &[Judged]) {
    let first = world.store().updates.len();
    let span = json!({
        "turns": [0], "text": "it", "type": "state", "slots": [], "scope": "current", "salience": 0.9,
        "strength": "strong", "change": "none",
    });
    world.script.on(Step::Spans, json!({ "spans": [span] }));
    let candidates = said.iter().map(|s| {
        json!({
            "domain": Slot::parse(s.slot).unwrap().domain(), "slot": s.slot, "value": s.value, "source": "explicit",
            "kind": "observed", "confidence": s.sure, "spans": ["s0"],
        })
    });
    world.script.on(Step::Candidates, json!({ "candidates": candidates.collect::<Vec<_>>() }));
    for one in said {
        let reply = json!({ "decision": one.word, "target": one.target, "reason": "local" });
        world.script.on(Step::LocalUpdate, reply);
    }
    let driving = said.iter().enumerate().filter(|(_, s)| s.word != "NO_OP");
    let updates: Vec<String> = driving.map(|(at, _)| format!("update-{}", first + at)).collect();
    if !updates.is_empty() {
        let proposals = judged.iter().map(|j| {
            json!({
                "slot": j.slot, "item": j.hint, "value": "", "updates": updates, "spans": ["s0"],
                "reason": "rests on it", "confidence": j.sure,
            })
        });
        world.script.on(Step::Proposals, json!({ "proposals": proposals.collect::<Vec<_>>() }));
    }
}

/// Runs one session in both and compares the stores.
fn step(world: &mut World, port: &mut Port, said: &[Said], judged: &[Judged], about: &str) {
    lay(world, said, judged);
    for one in port.chosen(said, judged) {
        // The model's named target, not the resolved one.
        let named = judged.iter().find(|j| j.sure == one.sure).unwrap();
        let reply = json!({ "decision": named.word, "target": named.target, "reason": "lost" });
        world.script.on(Step::Adjudicate, reply);
    }
    world.script.visited.lock().unwrap().clear();
    let before = world.store().clone();
    world.system.ingest(SCOPE, &session(&world.sessions.to_string())).unwrap();
    world.sessions += 1;
    hold(&before, world.store(), true);
    port.session(said, judged);
    let used_up = world.script.replies.lock().unwrap().values().all(VecDeque::is_empty);
    assert!(used_up, "{about}: a reply was not asked for");
    let product: BTreeMap<String, (&str, &str, bool, bool)> = (world.store().items.iter())
        .map(|i| {
            let weak = i.strength == Strength::Weak;
            (i.id.clone(), (i.slot.name(), i.value.as_str(), i.is_active(), weak))
        })
        .collect();
    let expected: BTreeMap<String, (&str, &str, bool, bool)> = (port.known.iter())
        .map(|(id, k)| (id.clone(), (k.slot, k.value.as_str(), k.active, k.weak)))
        .collect();
    assert_eq!(product, expected, "{about}");
    let marked: BTreeMap<&str, usize> =
        world.store().standing().map(|marker| (marker.slot.name(), marker.at.index)).collect();
    assert_eq!(marked, port.unknown.iter().map(|(slot, at)| (*slot, *at)).collect(), "{about}");
    assert_eq!(*world.script.visited.lock().unwrap(), *port.visited.last().unwrap(), "{about}");
}

fn said(slot: &'static str, value: &str, sure: f64, word: &'static str, target: Option<&str>) -> Said {
    Said { slot, value: value.to_owned(), sure, word, target: target.map(str::to_owned) }
}

fn judged(
    slot: &'static str,
    hint: Option<&str>,
    sure: f64,
    word: &'static str,
    target: Option<&str>,
) -> Judged {
    Judged { slot, hint: hint.map(str::to_owned), sure, word, target: target.map(str::to_owned) }
}

#[test]
fn ten_sessions_leave_the_store_that_the_public_code_leaves() {
    const HOME: &str = "current_base_location";
    const PLACE: &str = "location_linked_condition";
    const WORK: &str = "current_workload";
    const COMMUTE: &str = "current_commute_mode";
    const GOAL: &str = "short_horizon_goal";
    let (mut world, mut port) = (World::new(), Port::default());
    let history: [(Vec<Said>, Vec<Judged>); 10] = [
        (
            vec![said(HOME, "Lives in Oslo", 0.9, "ADD", None), said(WORK, "Works nights", 0.8, "ADD", None)],
            vec![],
        ),
        (vec![said(COMMUTE, "Cycles", 0.7, "ADD", None), said(WORK, "Tutors", 0.6, "ADD", None)], vec![]),
        // Of two replacements of item-1 the more confident wins; a verdict weakens the third.
        (
            vec![
                said(WORK, "Works days", 0.9, "REPLACE", Some("item-1")),
                said(WORK, "Mills", 0.6, "REPLACE", Some("item-1")),
            ],
            vec![judged(WORK, Some("item-3"), 0.5, "WEAK_CHALLENGE", None)],
        ),
        // Blocked by a more confident home, which is then invalidated: the slot is unknown.
        (
            vec![said(HOME, "Lives in Bergen", 0.9, "ADD", None)],
            vec![judged(HOME, Some("item-0"), 0.5, "INDIRECT_INVALIDATE", None)],
        ),
        // A NO_OP drives nothing; a REFINE without target does nothing.
        (
            vec![
                said(GOAL, "Wants to run", 0.8, "NO_OP", None),
                said(WORK, "Grades", 0.8, "REFINE", Some("item-9")),
            ],
            vec![],
        ),
        // The slot becomes known again, and two ADDs of the same slot leave one.
        (
            vec![
                said(HOME, "Lives in Bergen", 0.6, "ADD", None),
                said(HOME, "Lives by the sea", 0.7, "ADD", None),
            ],
            vec![],
        ),
        // Unknown by its hint, in a multi-state slot.
        (
            vec![said(WORK, "Is on leave", 0.5, "ADD", None)],
            vec![judged(WORK, Some("item-4"), 0.9, "SET_UNKNOWN_CURRENT", None)],
        ),
        // A slot without an item: its single state goes if it is older.
        (
            vec![said(PLACE, "Far from the mill", 0.8, "ADD", None)],
            vec![
                judged(COMMUTE, None, 0.9, "SET_UNKNOWN_CURRENT", None),
                judged(PLACE, None, 0.8, "SET_UNKNOWN_CURRENT", None),
            ],
        ),
        // Also in a slot that the session writes to.
        (
            vec![said(PLACE, "Near the pier", 0.8, "ADD", None)],
            vec![
                judged(PLACE, None, 0.8, "SET_UNKNOWN_CURRENT", None),
                judged(HOME, Some("item-5"), 0.3, "WEAK_CHALLENGE", None),
            ],
        ),
        // A low-confidence home yields to a confident one.
        (
            vec![said(HOME, "Lives in Oslo again", 0.86, "ADD", None)],
            vec![judged(PLACE, Some("item-7"), 0.4, "NO_OP", None)],
        ),
    ];
    for (n, (said, judged)) in history.iter().enumerate() {
        step(&mut world, &mut port, said, judged, &format!("session {n}"));
    }
    // Handwritten expectations.
    let state = |id: &str| {
        let item = world.store().item(id).unwrap();
        (item.value.clone(), item.is_active(), item.strength == Strength::Weak)
    };
    let expected = [
        ("Lives in Oslo", false, false),
        ("Works nights", false, false),
        ("Cycles", false, false),
        ("Tutors", true, true),
        ("Works days", false, false),
        ("Lives by the sea", false, true),
        ("Is on leave", true, false),
        ("Far from the mill", false, false),
        ("Near the pier", false, false),
        ("Lives in Oslo again", true, false),
    ];
    for (n, (value, active, weak)) in expected.into_iter().enumerate() {
        assert_eq!(state(&format!("item-{n}")), (value.to_owned(), active, weak), "item-{n}");
    }
    assert_eq!(world.store().items.len(), expected.len());
    let mut marked: Vec<&str> = world.store().standing().map(|marker| marker.slot.name()).collect();
    marked.sort_unstable();
    assert_eq!(marked, [COMMUTE, WORK, PLACE]);
}

#[test]
fn whatever_is_decided_ten_sessions_leave_the_same_store() {
    for seed in 0..150 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut world, mut port) = (World::new(), Port::default());
        for session in 0..10 {
            let active: Vec<String> =
                port.known.iter().filter(|(_, k)| k.active).map(|(id, _)| id.clone()).collect();
            let mut pick = |n: usize| rng.random_range(0..n);
            let mut all = Vec::new();
            for n in 0..=pick(3) {
                let slot = SLOTS[pick(SLOTS.len())].1;
                // W3 and W6 show five items of a slot; the choice of the five is not tested here.
                let full = port.active(slot).len() >= 3;
                let word = match full {
                    true => ["REFINE", "REPLACE", "NO_OP", "INVALIDATE"][pick(4)],
                    false => ["ADD", "ADD", "ADD", "REFINE", "REPLACE", "NO_OP", "INVALIDATE"][pick(7)],
                };
                let of_slot = port.active(slot);
                let target = if of_slot.is_empty() || pick(4) == 0 {
                    None
                } else {
                    Some(of_slot[pick(of_slot.len())].clone())
                };
                let sure = [0.5, 0.7, 0.84, 0.85, 0.9, 1.0][pick(6)];
                all.push(Said { slot, value: format!("State {session}.{n}"), sure, word, target });
            }
            let mut proposals = Vec::new();
            for n in 0..pick(4) {
                let slot = SLOTS[pick(SLOTS.len())].1;
                let mut any =
                    || (!active.is_empty() && pick(4) > 0).then(|| active[pick(active.len())].clone());
                let (hint, target) = (any(), any());
                // Prefers its item's slot.
                let of_hint = hint.as_ref().map(|id| port.known[id].slot).filter(|_| pick(4) > 0);
                let word = ["INDIRECT_INVALIDATE", "WEAK_CHALLENGE", "SET_UNKNOWN_CURRENT", "NO_OP"][pick(4)];
                let sure = 0.1 + 0.2 * n as f64;
                proposals.push(Judged { slot: of_hint.unwrap_or(slot), hint, sure, word, target });
            }
            step(&mut world, &mut port, &all, &proposals, &format!("seed {seed}, session {session}"));
        }
    }
}
