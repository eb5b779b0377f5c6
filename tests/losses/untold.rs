//! Unreported data of a memory system is unknown: neither zero nor lost, and not counted as found.

use std::path::Path;

use palimpsest::losses::count::Part;
use palimpsest::losses::fact::{Carrier, Fact, Known};
use palimpsest::losses::records::blocks;
use palimpsest::losses::words::in_words;
use palimpsest::losses::writing::overwriting;
use palimpsest::memory::system::case_rows::MemoryRows;
use serde_json::{Value, json};

use super::stores::{
    self, CASES, IDEAL, NEW, OLD, PROBES, SESSIONS, count, id, label, lines, memory, sources, whole,
};
use crate::cli::{done, palimpsest};

/// Rewrites the ideal store's searches: `of` maps a case and the memory of each of these sessions, by rank.
fn search(dir: &Path, (k, order): (usize, &[usize]), of: impl Fn(usize, Value) -> Value) {
    for case in 0..CASES {
        let memories: Vec<Value> =
            order.iter().map(|&session| of(case, memory(IDEAL, session).unwrap())).collect();
        let rows = PROBES.map(|probe| {
            json!({ "probe": probe, "query": "?", "k": k, "memories": memories, "provenance": "system" })
        });
        std::fs::write(dir.join(format!("memory/{IDEAL}/case-{case}/searches.jsonl")), lines(rows)).unwrap();
    }
}

/// Replaces the ideal store's history with the session and write events of `of`. There is no dump.
fn tell(dir: &Path, of: impl Fn(&str) -> Vec<Value>) {
    for case in 0..CASES {
        let folder = dir.join(format!("memory/{IDEAL}/case-{case}"));
        let history = (0..SESSIONS).map(label).chain(["finish".to_owned()]).flat_map(|session| of(&session));
        std::fs::write(folder.join("events.jsonl"), lines(history)).unwrap();
        _ = std::fs::remove_file(folder.join("dump.jsonl"));
    }
}

fn table(dir: &Path, format: &str) -> String {
    done(palimpsest(["table", dir.to_str().unwrap(), "--memory", "--format", format])).out
}

/// The system's entry in the JSON.
fn told(dir: &Path) -> Value {
    let all: Value = serde_json::from_str(&table(dir, "json")).unwrap();
    all["runs"][0]["systems"][0].clone()
}

#[test]
fn a_share_is_what_is_certain_to_what_is_possible() {
    let dir = tempfile::tempdir().unwrap();
    stores::write(dir.path());
    // In half of the cases the sources of the new memory, which is first, are unknown.
    search(dir.path(), (20, &[4, 0, 2, 3, 5, 1]), |case, mut memory| {
        if case >= 2 && memory["id"] == id(NEW) {
            memory["sources"] = Value::Null;
        }
        memory
    });
    let losses = stores::open(dir.path());
    let all = blocks(std::slice::from_ref(&losses));
    let block = whole(&all, "memory-ideal");
    let hit = block.number(Part::Retrieval, "hit", "new", Some(5)).unwrap();
    assert_eq!((hit.count.count, hit.count.of, hit.count.unknown), (6, 6, 6));
    assert_eq!(hit.shown().shares(), Some([0.5, 1.0]));
    // Wilson's: 6 of 12 from 25.4 %, 12 of 12 to 100 %.
    let interval = hit.shown().interval().unwrap();
    assert!((interval.low - 0.253_78).abs() < 1e-5 && interval.high == 1.0, "{interval:?}");
    // The old one is last, after a memory that may hold it.
    let hit = block.number(Part::Retrieval, "hit", "old", Some(20)).unwrap();
    assert_eq!(hit.shown().shares(), Some([1.0, 1.0]));
    let rank = |role: &str| block.number(Part::Retrieval, "mean rank", role, None).unwrap().clone();
    assert_eq!((rank("old").mean, rank("old").count.unknown), (Some(6.0), 6));
    let text = table(dir.path(), "text");
    assert!(text.contains("6/12 to 12/12") && text.contains("50.0 to 100.0"), "{text}");
    let first = &in_words(&[losses])[0];
    for part in [
        "new (12): written 12 of 12, kept 12 of 12, retrieved 6 to 12 of 12 (6 unknown)",
        "(10 not measured)",
    ] {
        assert!(first.contains(part), "no {part} in {first}");
    }
    assert!(text.contains("list known"), "{text}");
    let csv = table(dir.path(), "csv");
    let line = "memory-ideal,1,all,all,retrieval,hit,new,5,6,6,6,0.5,1,";
    assert!(csv.lines().any(|row| row.contains(line)), "{csv}");
}

#[test]
fn a_k_that_was_never_asked_has_no_share() {
    let dir = tempfile::tempdir().unwrap();
    stores::write(dir.path());
    search(dir.path(), (5, &[4, 0, 2, 3, 5]), |_, memory| memory);
    let losses = stores::open(dir.path());
    let all = blocks(std::slice::from_ref(&losses));
    let block = whole(&all, "memory-ideal");
    assert_eq!(count(block, Part::Retrieval, "hit", "new", Some(5)), (12, 12, 0));
    for k in [10, 20] {
        for (name, role) in [("hit", "new"), ("hit", "old"), ("both", ""), ("hit all", "")] {
            assert!(block.number(Part::Retrieval, name, role, Some(k)).is_none(), "{name} {role} {k}");
        }
    }
}

#[test]
fn writing_without_a_report_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    stores::write(dir.path());
    // As this version and an older one write it.
    for told_field in [json!(false), Value::Null] {
        tell(dir.path(), |session| {
            let mut row = json!({ "session": session, "events": 0 });
            if !told_field.is_null() {
                row["told"] = told_field.clone();
            }
            vec![row]
        });
        let losses = stores::open(dir.path());
        let all = blocks(std::slice::from_ref(&losses));
        let block = whole(&all, "memory-ideal");
        for (name, role) in [
            ("written", "old"),
            ("written", "new"),
            ("kept", "old"),
            ("marked", "old"),
            ("removed", "old"),
            ("looked at", "old"),
        ] {
            assert_eq!(count(block, Part::Writing, name, role, None), (0, 0, CASES), "{name} {role}");
        }
        let words = in_words(&[losses]);
        // A system without any data is described too.
        let blind = "memory-blind: old (12): right 8 of 12; not measured: written, kept, retrieved, shown, attended, used";
        assert!(words.iter().any(|words| words.starts_with(blind)), "{words:?}");
        assert!(!words[0].contains("written 0"), "{}", words[0]);
        assert!(words[0].contains("not measured: written, kept"), "{}", words[0]);
        let said = "ideal was given 24 sessions of 4 histories and reports neither";
        assert!(words.iter().any(|words| words.starts_with(said)), "{words:?}");
        let system = told(dir.path());
        assert_eq!((&system["memories"], &system["sessions_with_memories"]), (&Value::Null, &Value::Null));
        assert_eq!((&system["untold_sessions"], &system["changed_searches"]), (&json!(24), &Value::Null));
    }
}

#[test]
fn a_system_that_tells_that_it_wrote_nothing_wrote_nothing() {
    let dir = tempfile::tempdir().unwrap();
    stores::write(dir.path());
    let row = |session: &str| json!({ "session": session, "events": 0, "told": true });
    let written = || {
        let losses = stores::open(dir.path());
        let all = blocks(std::slice::from_ref(&losses));
        let of = |name: &str| count(whole(&all, "memory-ideal"), Part::Writing, name, "new", None);
        (of("written"), of("kept"))
    };
    tell(dir.path(), |session| vec![row(session)]);
    assert_eq!(written(), ((0, CASES, 0), (0, CASES, 0)));
    let words = in_words(&[stores::open(dir.path())]);
    assert!(words[0].contains("wrote from 0 of them, and holds 0 memories"), "{}", words[0]);
    assert!(words[0].contains("Almost nothing was written"), "{}", words[0]);
    assert_eq!(told(dir.path())["memories"], 0);
    // An unfinished history may still write it, and so may a session without events.
    tell(dir.path(), |session| if session == "finish" { Vec::new() } else { vec![row(session)] });
    assert_eq!(written(), ((0, 0, CASES), (0, 0, CASES)));
    let add = json!({
        "session": label(0), "op": "add", "memory": "m0", "sources": sources(&[0]), "provenance": "system",
    });
    tell(dir.path(), |session| {
        let mut rows = vec![json!({ "session": session, "events": 0, "told": session != label(3) })];
        if session == label(0) {
            rows.insert(0, add.clone());
        }
        rows
    });
    assert_eq!(written(), ((0, 0, CASES), (0, 0, CASES)));
    let words = in_words(&[stores::open(dir.path())]);
    let said =
        "wrote from at least 4 of them, and holds at least 4 memories; it reports nothing on 4 sessions";
    assert!(words.iter().any(|words| words.contains(said)), "{words:?}");
}

/// Treatment of the old fact by these events; the old memory exists, and the new one comes in the newer session.
fn treated(events: Value) -> [Known; 4] {
    let end = |session: &str| json!({ "session": session, "events": 1, "told": true });
    let add = json!({
        "session": label(OLD), "op": "add", "memory": "old", "sources": sources(&[OLD]), "looked_at": [{ "memory": "x", "gated": false }],
        "provenance": "system",
    });
    let mut history = vec![add, end(&label(OLD))];
    history.extend(events.as_array().unwrap().iter().cloned());
    history.extend([end(&label(NEW)), end("finish")]);
    let history = serde_json::from_value(Value::Array(history)).unwrap();
    let rows = MemoryRows { history, ..MemoryRows::default() };
    let fact = |role: &str, session| Fact { role: role.to_owned(), side: None, sessions: [session].into() };
    let found = overwriting(&rows, Carrier { stated: None }, &fact("old", OLD), &fact("new", NEW));
    [found.looked_at, found.gated, found.marked, found.removed]
}

#[test]
fn candidates_and_gates_that_an_event_does_not_tell_are_unknown() {
    use Known::{No, Unknown, Yes};
    let add = |looked_at: Value| {
        let mut row = json!({
            "session": label(NEW), "op": "add", "memory": "new", "sources": sources(&[NEW]), "provenance": "system",
        });
        if !looked_at.is_null() {
            row["looked_at"] = looked_at;
        }
        json!([row])
    };
    for (events, expected) in [
        // The new session made no memory: nothing was compared.
        (json!([]), [No, No, No, No]),
        (add(json!([])), [No, No, No, No]),
        (add(json!([{ "memory": "old", "gated": true }])), [Yes, Yes, No, No]),
        (add(json!([{ "memory": "old", "gated": false }])), [Yes, No, No, No]),
        (add(json!([{ "memory": "old" }])), [Yes, Unknown, No, No]),
        // Other events list candidates, this one does not.
        (add(Value::Null), [Unknown, Unknown, No, No]),
    ] {
        let said = events.to_string();
        assert_eq!(treated(events), expected, "{said}");
    }
}
