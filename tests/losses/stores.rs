//! Five scripted stores over four cases, with the expected counts.

use std::path::Path;

use ndarray::Array4;
use palimpsest::benchmarks::stale::STALE;
use palimpsest::losses::Losses;
use palimpsest::losses::count::{Count, Part};
use palimpsest::losses::fact::Level;
use palimpsest::losses::records::{Block, blocks, pairs};
use palimpsest::losses::words::in_words;
use palimpsest::memory::system::{MemoryContext, Show};
use palimpsest::runs::condition::Condition;
use palimpsest::runs::header::{Machine, RunHeader};
use palimpsest::runs::judge_name::JudgeChoice;
use palimpsest::runs::rows::{AnswerRow, VerdictRow};
use palimpsest::runs::store::RunFolder;
use palimpsest_core::attention::AttentionStore;
use palimpsest_core::span::Span;
use serde_json::{Value, json};

use crate::attention::store::of_masses;

pub const PROBES: [&str; 3] = ["SR", "PR", "IPA"];
pub const CASES: usize = 4;
pub const SESSIONS: usize = 6;
pub const OLD: usize = 1;
pub const NEW: usize = 4;
const K: usize = 3;
const JUDGE: &str = "http://host/v1#able-70b";

/// Keeps every session, and marks the old one stale once the new one arrives.
pub const IDEAL: &str = "ideal";
/// Writes nothing of the old session.
const NO_OLD: &str = "no-old";
/// Writes nothing of the new session.
const NO_NEW: &str = "no-new";
/// Merges the new fact into the old one's memory.
const MIXED: &str = "mixed";
/// Reports no sources.
const BLIND: &str = "blind";
const SYSTEMS: [&str; 5] = [IDEAL, NO_OLD, NO_NEW, MIXED, BLIND];

pub fn label(session: usize) -> String {
    format!("session[{session}]")
}

pub fn sources(sessions: &[usize]) -> Value {
    sessions.iter().map(|&session| json!({ "session": label(session) })).collect()
}

pub fn id(session: usize) -> String {
    format!("m{session}")
}

/// A system's memory with its sessions.
fn held(system: &str, session: usize) -> Option<Value> {
    match (system, session) {
        (NO_OLD, OLD) | (NO_NEW, NEW) | (MIXED, NEW) => None,
        (MIXED, OLD) => Some(sources(&[OLD, NEW])),
        (BLIND, _) => Some(Value::Null),
        _ => Some(sources(&[session])),
    }
}

pub fn memory(system: &str, session: usize) -> Option<Value> {
    let status = if (system, session) == (IDEAL, OLD) { "stale" } else { "active" };
    let sources = held(system, session)?;
    Some(
        json!({ "id": id(session), "text": format!("fact {session}"), "sources": sources, "status": status }),
    )
}

/// Sessions in rank order of their memories.
fn order(system: &str) -> Vec<usize> {
    match system {
        IDEAL => vec![4, 0, 2, 3, 5, 1],
        NO_OLD => vec![4, 0, 2, 3, 5],
        NO_NEW => vec![1, 0, 2, 3, 5],
        MIXED => vec![0, 1, 2, 3, 5],
        _ => vec![4, 1, 0, 2, 3, 5],
    }
}

pub fn lines(rows: impl IntoIterator<Item = Value>) -> String {
    rows.into_iter().map(|row| format!("{row}\n")).collect()
}

fn events(system: &str) -> Vec<Value> {
    let mut rows = Vec::new();
    for session in 0..SESSIONS {
        let mut event = |op: &str, memory: usize, held: Value, looked_at: Value| {
            let mut row =
                json!({ "session": label(session), "op": op, "memory": id(memory), "provenance": "system" });
            if !held.is_null() {
                row["sources"] = held;
            }
            if !looked_at.is_null() {
                row["looked_at"] = looked_at;
            }
            rows.push(row);
        };
        match (system, session) {
            (NO_OLD, OLD) | (NO_NEW, NEW) => {}
            (MIXED, OLD) => event("add", OLD, sources(&[OLD]), Value::Null),
            (MIXED, NEW) => event("update", OLD, sources(&[OLD, NEW]), Value::Null),
            (IDEAL, NEW) => {
                event("add", NEW, sources(&[NEW]), json!([{ "memory": id(OLD), "gated": true }]));
                event("stale", OLD, Value::Null, Value::Null);
            }
            // Lists no candidates, as none exist.
            (NO_NEW, _) => event("add", session, sources(&[session]), json!([])),
            (BLIND, _) => event("add", session, Value::Null, Value::Null),
            _ => event("add", session, sources(&[session]), Value::Null),
        }
        rows.push(json!({ "session": label(session), "events": 1 }));
    }
    rows
}

fn is_right(system: &str, probe: &str) -> bool {
    match system {
        IDEAL | NO_OLD => true,
        NO_NEW => false,
        MIXED => probe == "SR",
        _ => probe != "IPA",
    }
}

fn conditions() -> Vec<Condition> {
    let of = |system: &str, show: Show| Condition {
        name: format!("memory-{system}{}", show.suffix()),
        memory: Some(MemoryContext { system: system.to_owned(), k: K, show }),
        ..Condition::PLAIN
    };
    let mut all: Vec<Condition> = SYSTEMS.map(|system| of(system, Show::Ranked)).into();
    all.push(of(IDEAL, Show::Perfect));
    all
}

/// The query's attention to three memories of ten tokens: most to the first, except in the last case.
fn store(case: usize, condition: &str) -> AttentionStore {
    let spans = [
        Span::new("bos", 0..1),
        Span::new("memory[0]", 1..11).with_role("new"),
        Span::new("memory[1]", 11..21),
        Span::new("memory[2]", 21..31),
        Span::new("query", 31..36).with_role("query"),
    ];
    let masses = if case + 1 < CASES { [0.1, 0.5, 0.2, 0.1, 0.1] } else { [0.3, 0.1, 0.2, 0.3, 0.1] };
    let mass = Array4::from_shape_fn((1, 1, 1, spans.len()), |(_, _, _, key)| masses[key]);
    AttentionStore {
        case: format!("case-{case}"),
        condition: condition.to_owned(),
        ..of_masses(mass, vec![spans[4].clone()], spans.to_vec())
    }
}

/// Effects of hiding the new memory on the ideal store's answers to SR: above all controls, below most, not measured.
fn causes() -> Vec<Value> {
    let effect = |drop: f64| json!({ "log_p_drop": drop, "kl": 0.0, "kl_answer": 0.0, "changed": false });
    let mut rows = Vec::new();
    for (case, drop) in [(0, 0.5), (1, 0.05)] {
        let of = |tokens: [usize; 2], drop: f64| {
            json!({
                "case": format!("case-{case}"), "probe": "SR", "condition": "memory-ideal", "tokens": tokens, "seed": 0,
                "answer_tokens": 5, "log_p": -1.0, "effect": effect(drop),
            })
        };
        for (stretch, drop) in [0.1, 0.2, 0.3, 0.1].into_iter().enumerate() {
            let mut row = of([11 + 4 * stretch, 15 + 4 * stretch], drop);
            row["kind"] = json!("control");
            row["stretch"] = json!(stretch);
            rows.push(row);
        }
        let mut row = of([1, 11], drop);
        row["span"] = json!("memory[0]");
        row["role"] = json!("new");
        rows.push(row);
    }
    rows
}

/// Writes the run.
pub fn write(dir: &Path) {
    let conditions = conditions();
    let (mut answers, mut verdicts, mut plan) = (Vec::new(), Vec::new(), Vec::new());
    std::fs::create_dir_all(dir.join("attention")).unwrap();
    std::fs::create_dir_all(dir.join("cases")).unwrap();
    for case in 0..CASES {
        let name = format!("case-{case}");
        let kind = format!("T{}", 1 + case % 2);
        plan.push(json!({
            "position": case, "case": name, "labels": { "type": kind },
            "probes": PROBES.map(|probe| json!({ "id": probe, "query": format!("{probe} of {name}?") })),
            "evidence": [{ "role": "old", "session": OLD }, { "role": "new", "session": NEW }],
            "judge": { "old": "o", "new": "n", "explanation": "e" },
        }));
        for system in SYSTEMS {
            let folder = dir.join(format!("memory/{system}/{name}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("events.jsonl"), lines(events(system))).unwrap();
            let dump = (0..SESSIONS).filter_map(|session| memory(system, session));
            std::fs::write(folder.join("dump.jsonl"), lines(dump)).unwrap();
            let search = PROBES.map(|probe| {
                let memories: Vec<Value> =
                    order(system).into_iter().filter_map(|session| memory(system, session)).collect();
                let mut row = json!({
                    "probe": probe, "query": "?", "k": 20, "memories": memories, "provenance": "system",
                });
                if system == IDEAL {
                    row["readback"] = json!([memory(system, OLD), memory(system, NEW)]);
                }
                row
            });
            std::fs::write(folder.join("searches.jsonl"), lines(search)).unwrap();
        }
        for condition in &conditions {
            let system = condition.memory.as_ref().unwrap().system.as_str();
            let perfect = condition.memory.as_ref().unwrap().show == Show::Perfect;
            for probe in PROBES {
                let mut memories: Vec<String> = match perfect {
                    true => vec![id(OLD), id(NEW)],
                    false => order(system).into_iter().take(K).map(id).collect(),
                };
                let mut dropped = Vec::new();
                if (system, probe) == (MIXED, "IPA") {
                    memories.remove(1);
                    dropped.push(1);
                }
                let file = format!("attention/{name}-{probe}--{}.safetensors", condition.name);
                let measured = condition.name == "memory-ideal" && probe == "SR";
                if measured {
                    store(case, &condition.name).save(&dir.join(&file)).unwrap();
                }
                let row = AnswerRow {
                    case: name.clone(),
                    probe: probe.to_owned(),
                    condition: condition.name.clone(),
                    query: format!("{probe} of {name}?"),
                    answer: Some("so".to_owned()),
                    context: Some(Vec::new()),
                    memories: Some(memories),
                    dropped_sessions: dropped,
                    attention: measured.then_some(file),
                    ..AnswerRow::default()
                };
                answers.push(serde_json::to_value(row).unwrap());
                let verdict = VerdictRow {
                    case: name.clone(),
                    probe: probe.to_owned(),
                    condition: condition.name.clone(),
                    judge: JUDGE.to_owned(),
                    correct: Some(is_right(system, probe)),
                    ..VerdictRow::default()
                };
                verdicts.push(serde_json::to_value(verdict).unwrap());
            }
        }
    }
    let digest = "5f3ec375179e20e2e94469e018189188f34e2e7e5f21cbecbd99fcfa648c1876";
    let identity = json!({
        "dataset": { "name": "scripted", "digest": digest },
        "model": { "name": "scripted", "digest": digest },
        "dtype": "f32", "prompts": digest, "sampling": null,
        "context": { "tokens": 4096, "policy": "plain" },
        "seed": 0, "only": null, "limit": null, "attention": true, "version": "0.1.0", "conditions": conditions,
    });
    let header = RunHeader::new(serde_json::from_value(identity).unwrap(), None, Machine::default());
    std::fs::write(dir.join("run.json"), serde_json::to_string(&header).unwrap()).unwrap();
    std::fs::write(dir.join("plan.jsonl"), lines(plan)).unwrap();
    std::fs::write(dir.join("answers.jsonl"), lines(answers)).unwrap();
    std::fs::write(dir.join("verdicts.jsonl"), lines(verdicts)).unwrap();
    std::fs::write(dir.join("causes.jsonl"), lines(causes())).unwrap();
}

pub(super) fn open(dir: &Path) -> Losses {
    Losses::open(&RunFolder::read(dir).unwrap(), &STALE, JudgeChoice::default()).unwrap().unwrap()
}

/// The condition's block over all types and probes.
pub(super) fn whole<'a>(blocks: &'a [Block<'a>], condition: &str) -> &'a Block<'a> {
    let is = |block: &&Block<'_>| {
        block.condition.name == condition
            && block.level == Level::Source
            && block.kind.is_none()
            && block.probe.is_none()
    };
    blocks.iter().find(is).unwrap()
}

pub(super) fn count(
    block: &Block<'_>,
    part: Part,
    name: &str,
    role: &str,
    k: Option<usize>,
) -> (usize, usize, usize) {
    let number = block.number(part, name, role, k);
    let Count { count, of, unknown } =
        number.unwrap_or_else(|| panic!("no {name} {role} {k:?} of {}", block.condition.name)).count;
    (count, of, unknown)
}

/// An expected number: `(condition, name, role, k, (count, of, unknown))`.
type Expected = (&'static str, &'static str, &'static str, Option<usize>, (usize, usize, usize));

fn check(part: Part, expected: &[Expected]) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let losses = open(dir.path());
    let blocks = blocks(std::slice::from_ref(&losses));
    for &(condition, name, role, k, numbers) in expected {
        let found = count(whole(&blocks, condition), part, name, role, k);
        assert_eq!(found, numbers, "{condition}: {name} {role} {k:?}");
    }
}

const ALL: (usize, usize, usize) = (12, 12, 0);
const NONE: (usize, usize, usize) = (0, 12, 0);
const UNKNOWN: (usize, usize, usize) = (0, 0, 12);
/// Same for stores: one per case, whatever its questions.
const STORES: (usize, usize, usize) = (4, 4, 0);
const NO_STORE: (usize, usize, usize) = (0, 4, 0);
const UNTOLD: (usize, usize, usize) = (0, 0, 4);

#[test]
#[rustfmt::skip]
fn facts_are_written_kept_and_lost_as_the_stores_say() {
    check(Part::Writing, &[
        ("memory-ideal", "written", "old", None, STORES),
        ("memory-ideal", "written", "new", None, STORES),
        ("memory-ideal", "kept", "old", None, NO_STORE),
        ("memory-ideal", "kept", "new", None, STORES),
        ("memory-ideal", "lost at stale", "old", None, STORES),
        ("memory-ideal", "looked at", "old", None, STORES),
        ("memory-ideal", "gated", "old", None, STORES),
        ("memory-ideal", "marked", "old", None, STORES),
        ("memory-ideal", "removed", "old", None, NO_STORE),
        ("memory-ideal", "active", "old", None, NO_STORE),
        ("memory-ideal", "written all", "", None, STORES),
        ("memory-ideal", "kept some", "", None, STORES),
        ("memory-no-old", "written", "old", None, NO_STORE),
        ("memory-no-old", "kept", "old", None, NO_STORE),
        ("memory-no-old", "written", "new", None, STORES),
        ("memory-no-old", "kept", "new", None, STORES),
        ("memory-no-old", "looked at", "old", None, UNTOLD),
        ("memory-no-old", "marked", "old", None, NO_STORE),
        ("memory-no-new", "written", "old", None, STORES),
        ("memory-no-new", "kept", "old", None, STORES),
        ("memory-no-new", "written", "new", None, NO_STORE),
        ("memory-no-new", "looked at", "old", None, NO_STORE),
        ("memory-no-new", "gated", "old", None, (0, 0, 0)),
        ("memory-no-new", "marked", "old", None, NO_STORE),
        ("memory-mixed", "written", "old", None, STORES),
        ("memory-mixed", "written", "new", None, STORES),
        ("memory-mixed", "kept", "old", None, STORES),
        ("memory-mixed", "kept", "new", None, STORES),
        ("memory-mixed", "looked at", "old", None, UNTOLD),
        ("memory-mixed", "marked", "old", None, STORES),
        ("memory-mixed", "removed", "old", None, NO_STORE),
        ("memory-mixed", "active", "old", None, STORES),
        ("memory-blind", "written", "old", None, UNTOLD),
        ("memory-blind", "kept", "new", None, UNTOLD),
        ("memory-blind", "written none", "", None, UNTOLD),
    ]);
}

#[test]
#[rustfmt::skip]
fn every_k_is_cut_from_one_search() {
    check(Part::Retrieval, &[
        ("memory-ideal", "hit", "new", Some(1), ALL),
        ("memory-ideal", "hit", "old", Some(5), NONE),
        ("memory-ideal", "hit", "old", Some(10), ALL),
        ("memory-ideal", "both", "", Some(5), NONE),
        ("memory-ideal", "both", "", Some(20), ALL),
        ("memory-ideal", "newer above older", "", Some(20), ALL),
        ("memory-ideal", "newer above older", "", Some(5), (0, 0, 0)),
        ("memory-ideal", "distractor", "", Some(1), NONE),
        ("memory-no-old", "hit", "old", Some(20), NONE),
        ("memory-no-old", "hit", "new", Some(1), ALL),
        ("memory-no-new", "hit", "old", Some(1), ALL),
        ("memory-no-new", "hit", "new", Some(20), NONE),
        ("memory-mixed", "hit", "old", Some(1), NONE),
        ("memory-mixed", "distractor", "", Some(1), ALL),
        ("memory-mixed", "both", "", Some(3), ALL),
        ("memory-mixed", "newer above older", "", Some(3), NONE),
        ("memory-mixed", "hit all", "", Some(3), ALL),
        ("memory-blind", "hit", "new", Some(1), UNKNOWN),
        ("memory-blind", "distractor", "", Some(1), UNKNOWN),
        ("memory-blind", "hit none", "", Some(20), UNKNOWN),
    ]);
}

#[test]
#[rustfmt::skip]
fn answers_are_right_given_the_list_of_their_condition() {
    check(Part::Answers, &[
        ("memory-ideal", "right", "", None, ALL),
        ("memory-ideal", "right given only", "new", None, ALL),
        ("memory-ideal", "right given both", "", None, (0, 0, 0)),
        ("memory-ideal", "failure despite", "new", None, NONE),
        ("memory-ideal-perfect", "right given both", "", None, ALL),
        ("memory-ideal-perfect", "right given first", "old", None, ALL),
        ("memory-ideal-perfect", "right given first", "new", None, (0, 0, 0)),
        ("memory-no-old", "right given only", "new", None, ALL),
        ("memory-no-new", "right given only", "old", None, NONE),
        ("memory-no-new", "failure despite", "new", None, (0, 0, 0)),
        ("memory-mixed", "right given both", "", None, (4, 12, 0)),
        ("memory-mixed", "failure despite", "new", None, (8, 12, 0)),
        ("memory-mixed", "right given first", "new", None, (0, 0, 0)),
        ("memory-blind", "right", "", None, (8, 12, 0)),
        ("memory-blind", "right given neither", "", None, (0, 0, 0)),
    ]);
}

#[test]
#[rustfmt::skip]
fn the_waterfall_loses_each_fact_where_its_store_or_its_reader_does() {
    let none = (0, 0, 0);
    check(Part::Waterfall, &[
        ("memory-ideal", "written", "new", None, ALL),
        ("memory-ideal", "kept", "new", None, ALL),
        ("memory-ideal", "retrieved", "new", None, ALL),
        ("memory-ideal", "shown", "new", None, ALL),
        // Attention was recorded for SR only; the last case ignores the new memory.
        ("memory-ideal", "attended", "new", None, (3, 4, 8)),
        // Of the 11 that reached this stage two were measured.
        ("memory-ideal", "used", "new", None, (1, 2, 9)),
        ("memory-ideal", "right", "new", None, (10, 10, 0)),
        ("memory-ideal", "kept", "old", None, NONE),
        ("memory-ideal", "retrieved", "old", None, none),
        ("memory-ideal", "right", "old", None, none),
        ("memory-no-old", "written", "old", None, NONE),
        ("memory-no-old", "kept", "old", None, none),
        ("memory-no-old", "right", "new", None, ALL),
        ("memory-no-new", "written", "new", None, NONE),
        ("memory-no-new", "right", "new", None, none),
        ("memory-no-new", "shown", "old", None, ALL),
        ("memory-no-new", "attended", "old", None, UNKNOWN),
        ("memory-no-new", "right", "old", None, NONE),
        // The mixed memory did not fit beside IPA's others.
        ("memory-mixed", "retrieved", "new", None, ALL),
        ("memory-mixed", "shown", "new", None, (8, 12, 0)),
        ("memory-mixed", "right", "new", None, (4, 8, 0)),
        ("memory-mixed", "shown", "old", None, (8, 12, 0)),
        ("memory-blind", "written", "new", None, UNKNOWN),
        ("memory-blind", "shown", "new", None, UNKNOWN),
        ("memory-blind", "right", "new", None, (8, 12, 0)),
        // Perfect retrieval shows evidence only, so its attention has no comparison.
        ("memory-ideal-perfect", "retrieved", "new", None, ALL),
        ("memory-ideal-perfect", "attended", "new", None, UNKNOWN),
    ]);
    check(Part::Left, &[
        ("memory-ideal", "attended", "new", None, (3, 4, 8)),
        ("memory-ideal", "right", "new", None, (10, 12, 0)),
        ("memory-mixed", "right", "new", None, (4, 12, 0)),
        ("memory-no-new", "right", "new", None, NONE),
    ]);
}

#[test]
fn types_and_probes_have_rows_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let losses = open(dir.path());
    let blocks = blocks(std::slice::from_ref(&losses));
    let of = |kind: Option<&str>, probe: Option<&str>| {
        let is = |block: &&Block<'_>| {
            block.condition.name == "memory-mixed"
                && (block.kind.as_deref(), block.probe.as_deref()) == (kind, probe)
        };
        count(blocks.iter().find(is).unwrap(), Part::Answers, "right", "", None)
    };
    assert_eq!(of(Some("T1"), Some("SR")), (2, 2, 0));
    assert_eq!(of(Some("T2"), None), (2, 6, 0));
    assert_eq!(of(None, Some("PR")), (0, 4, 0));
    // Five systems, one under two conditions: two types and all, three probes and all.
    assert_eq!(blocks.len(), 6 * 3 * 4);
}

#[test]
fn the_second_level_counts_memories_that_a_judge_finds_to_state_the_fact() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    // Rows without a text, as in older files: they belong to the last text.
    let rows = [(id(NEW), "new", NEW, true), (id(OLD), "old", OLD, false)].map(|(memory, role, session, states)| {
        json!({ "memory": memory, "role": role, "session": label(session), "states": states, "judge": JUDGE })
    });
    std::fs::write(dir.path().join("memory/ideal/case-0/stated.jsonl"), lines(rows)).unwrap();
    let losses = open(dir.path());
    let levels: Vec<Vec<u8>> = (losses.systems.iter())
        .map(|system| system.levels().iter().map(|level| level.number()).collect())
        .collect();
    assert_eq!(levels, [vec![1, 2], vec![1], vec![1], vec![1], vec![1]]);
    let traces: Vec<_> = losses.systems[0].conditions[0].traces[&Level::Stated].iter().collect();
    let numbers = palimpsest::losses::count::numbers(&traces, true);
    let of = |name: &str, role: &str| {
        let is = |number: &&palimpsest::losses::count::Number| {
            number.part == Part::Writing && number.name == name && number.role == role
        };
        numbers.iter().find(is).map(|number| (number.count.count, number.count.of)).unwrap()
    };
    assert_eq!((of("written", "new"), of("kept", "new"), of("written", "old")), ((1, 1), (1, 1), (0, 1)));
}

#[test]
fn systems_are_tested_against_each_other_on_the_same_questions() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let found = pairs(&[open(dir.path())]);
    // All pairs of five systems; perfect retrieval has no partner.
    assert_eq!(found.len(), 10);
    let of = |first: &str, second: &str| {
        found.iter().find(|pair| (pair.first.as_str(), pair.second.as_str()) == (first, second)).unwrap()
    };
    let pair = of("memory-ideal", "memory-no-new");
    assert_eq!((pair.questions, pair.first_right, pair.second_right, pair.b, pair.c), (12, 12, 0, 12, 0));
    // statsmodels 0.14: mcnemar([[0, 12], [0, 0]], exact=True), mcnemar([[4, 8], [0, 0]], exact=True),
    // mcnemar([[4, 4], [0, 4]], exact=True).
    assert!((pair.p - 0.000_488_281_25).abs() < 1e-15);
    assert!((of("memory-ideal", "memory-mixed").p - 0.007_812_5).abs() < 1e-15);
    assert!((of("memory-mixed", "memory-blind").p - 0.125).abs() < 1e-15);
    assert_eq!(of("memory-ideal", "memory-no-old").p, 1.0);
    // The smallest of ten.
    assert!((pair.p_holm - 10.0 * pair.p).abs() < 1e-15);
}

#[test]
fn words_tell_where_facts_are_lost_and_when_almost_nothing_was_written() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let words = in_words(&[open(dir.path())]);
    assert!(
        words[0].starts_with(
            "memory-ideal: old (12): written 12 of 12, kept 0 of 12; the largest loss is 12, before"
        ),
        "{}",
        words[0]
    );
    assert!(words[0].contains("new (12): written 12 of 12, kept 12 of 12"), "{}", words[0]);
    assert!(!words.iter().any(|words| words.contains("Almost nothing")));
    let wrote = "ideal was given 24 sessions of 4 histories, wrote from 24 of them, and holds 24 memories.";
    assert!(words.iter().any(|words| words == wrote), "{words:?}");

    // A small model with unparseable replies: one memory of one session.
    for case in 0..CASES {
        let folder = dir.path().join(format!("memory/ideal/case-{case}"));
        let ended = (0..SESSIONS).map(|session| json!({ "session": label(session), "events": 0 }));
        let one = json!({
            "session": label(0), "op": "add", "memory": "m0", "sources": sources(&[0]), "provenance": "system",
        });
        let history = std::iter::once(one).filter(|_| case == 0).chain(ended);
        std::fs::write(folder.join("events.jsonl"), lines(history)).unwrap();
        let dump = memory(IDEAL, 0).filter(|_| case == 0);
        std::fs::write(folder.join("dump.jsonl"), lines(dump)).unwrap();
        let call = json!({
            "phase": "ingest", "about": label(0), "path": "/v1/chat/completions", "request": "r", "status": 200,
            "seconds": 1.0, "json": false,
        });
        std::fs::write(folder.join("calls.jsonl"), lines([call])).unwrap();
    }
    let words = in_words(&[open(dir.path())]);
    let first = &words[0];
    assert!(
        first.contains("24 sessions of 4 histories, wrote from 1 of them, and holds 1 memories"),
        "{first}"
    );
    assert!(
        first.contains("4 of 4 replies of its model that should have been JSON did not parse"),
        "{first}"
    );
    assert!(first.contains("Almost nothing was written"), "{first}");

    // A system that writes evidence only has few memories too, without fault: half of the facts are there.
    for case in 0..CASES {
        let folder = dir.path().join(format!("memory/ideal/case-{case}"));
        let ended = (0..SESSIONS).map(|session| json!({ "session": label(session), "events": 0 }));
        let add = |session: usize| {
            let (at, from) = (label(session), sources(&[session]));
            json!({ "session": at, "op": "add", "memory": id(session), "sources": from, "provenance": "system" })
        };
        let kept = [OLD, NEW].into_iter().filter(|_| case < 2);
        std::fs::write(folder.join("events.jsonl"), lines(kept.clone().map(add).chain(ended))).unwrap();
        std::fs::write(folder.join("dump.jsonl"), lines(kept.filter_map(|session| memory(IDEAL, session))))
            .unwrap();
    }
    let words = in_words(&[open(dir.path())]);
    let of_ideal = words.iter().find(|words| words.starts_with("ideal was given")).unwrap();
    assert!(of_ideal.contains("wrote from 4 of them") && !of_ideal.contains("Almost nothing"), "{of_ideal}");
}

#[test]
fn a_run_without_a_memory_system_has_no_losses() {
    let dir = tempfile::tempdir().unwrap();
    crate::synthetic_run::write(dir.path(), &crate::synthetic_run::Plan::small());
    let folder = RunFolder::read(dir.path()).unwrap();
    assert!(Losses::open(&folder, &STALE, JudgeChoice::default()).unwrap().is_none());
}
