//! Level 2 of table 3: a memory rewritten in place is judged by each of its texts.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use palimpsest::benchmarks::stale::STALE;
use palimpsest::chat::{ChatError, ChatModel, Message, Reply, Sampling};
use palimpsest::judge::{Judge, Reasons, judge_memories, memory_instructions};
use palimpsest::losses::count::{Part, numbers};
use palimpsest::losses::fact::Level;
use palimpsest::runs::runner::Summary;
use palimpsest::runs::store::RunFolder;
use serde_json::{Value, json};

use super::stores::{self, CASES, IDEAL, NEW, OLD, PROBES, SESSIONS, label, lines, sources};
use crate::judge::said;

const OSLO: &str = "lives in Oslo";
const BERGEN: &str = "lives in Bergen";

/// A note states a fact if it contains the fact's words; counts the questions.
#[derive(Default)]
struct Literal {
    asked: usize,
}

impl ChatModel for Literal {
    fn name(&self) -> String {
        "literal".to_owned()
    }

    fn reply(&mut self, messages: &[Message], _: &Sampling) -> Result<Reply, ChatError> {
        self.asked += 1;
        let prompt = &messages.last().unwrap().content;
        let between = |tag: &str| {
            let (_, rest) = prompt.split_once(&format!("<{tag}>")).unwrap();
            rest.split_once(&format!("</{tag}>")).unwrap().0.trim().to_owned()
        };
        let choice = if between("note").contains(&between("fact")) { "states" } else { "other" };
        Ok(said(json!({ "note": { "choice": choice, "reason": "" } }).to_string()))
    }
}

/// The scripted stores, where the ideal one has a single memory: added as Oslo, rewritten as Bergen after the move.
fn write(dir: &Path) {
    stores::write(dir);
    let plan = std::fs::read_to_string(dir.join("plan.jsonl")).unwrap();
    let plan = plan.lines().map(|line| {
        let mut case: Value = serde_json::from_str(line).unwrap();
        case["judge"] = json!({ "old": OSLO, "new": BERGEN, "explanation": "e" });
        case
    });
    std::fs::write(dir.join("plan.jsonl"), lines(plan.collect::<Vec<_>>())).unwrap();
    let memory = json!({ "id": "home", "text": BERGEN, "sources": sources(&[OLD, NEW]), "status": "active" });
    let event = |session: usize, op: &str, text: &str, from: &[usize]| {
        json!({
            "session": label(session), "op": op, "memory": "home", "text": text, "sources": sources(from),
            "looked_at": if session == NEW { json!([{ "memory": "home" }]) } else { json!([]) }, "provenance": "system",
        })
    };
    let mut history = Vec::new();
    for session in 0..SESSIONS {
        match session {
            OLD => history.push(event(OLD, "add", OSLO, &[OLD])),
            NEW => history.push(event(NEW, "update", BERGEN, &[OLD, NEW])),
            _ => {}
        }
        history.push(json!({ "session": label(session), "events": 1, "told": true }));
    }
    history.push(json!({ "session": "finish", "events": 0, "told": true }));
    let searches = PROBES.map(
        |probe| json!({ "probe": probe, "query": "?", "k": 20, "memories": [memory], "provenance": "system" }),
    );
    for case in 0..CASES {
        let folder = dir.join(format!("memory/{IDEAL}/case-{case}"));
        std::fs::write(folder.join("events.jsonl"), lines(history.clone())).unwrap();
        std::fs::write(folder.join("dump.jsonl"), lines([memory.clone()])).unwrap();
        std::fs::write(folder.join("searches.jsonl"), lines(searches.clone())).unwrap();
    }
}

fn judge(dir: &Path) -> (Summary, usize) {
    let mut model = Literal::default();
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 64 };
    let plan = RunFolder::read(dir).unwrap().plan;
    let mut judge = Judge::Reply { models: vec![&mut model], sampling };
    let instructions = memory_instructions(Reasons::Last);
    let stop = AtomicBool::new(false);
    let summary = judge_memories(dir, (&plan, &STALE), &mut judge, &instructions, &stop, false).unwrap();
    (summary, model.asked)
}

/// `(count, of, unknown)` of a writing number at level 2 of the ideal store.
fn at_level_2(dir: &Path, name: &str, role: &str) -> (usize, usize, usize) {
    let losses = stores::open(dir);
    let traces: Vec<_> = losses.systems[0].conditions[0].traces[&Level::Stated].iter().collect();
    let numbers = numbers(&traces, true);
    let is = |one: &&palimpsest::losses::count::Number| {
        one.part == Part::Writing && one.name == name && one.role == role
    };
    let count = numbers.iter().find(is).unwrap_or_else(|| panic!("no {name} {role}")).count;
    (count.count, count.of, count.unknown)
}

#[test]
#[rustfmt::skip]
fn an_update_in_place_loses_what_the_text_before_it_said() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    // For each case: the first text with the old fact, the second with both.
    let (summary, _) = judge(dir.path());
    assert_eq!(summary.errors, 0);
    for (name, role, expected) in [
        ("written", "old", (4, 4, 0)),
        ("kept", "old", (0, 4, 0)),
        ("lost at update", "old", (4, 4, 0)),
        ("looked at", "old", (4, 4, 0)),
        ("marked", "old", (4, 4, 0)),
        ("removed", "old", (0, 4, 0)),
        ("written", "new", (4, 4, 0)),
        ("kept", "new", (4, 4, 0)),
    ] {
        assert_eq!(at_level_2(dir.path(), name, role), expected, "{name} {role}");
    }
    let stated = std::fs::read_to_string(dir.path().join(format!("memory/{IDEAL}/case-0/stated.jsonl"))).unwrap();
    let rows: Vec<Value> = stated.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said: Vec<(&str, &str, bool)> = (rows.iter())
        .map(|row| (row["text"].as_str().unwrap(), row["role"].as_str().unwrap(), row["states"].as_bool().unwrap()))
        .collect();
    assert_eq!(said, [(BERGEN, "new", true), (BERGEN, "old", false), (OSLO, "old", true)]);
}

#[test]
fn each_distinct_text_is_asked_about_once() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let (summary, asked) = judge(dir.path());
    assert_eq!((summary.planned, summary.skipped, asked), (summary.planned, 0, summary.planned));
    let (again, asked) = judge(dir.path());
    assert_eq!((again.planned, again.skipped, asked), (summary.planned, summary.planned, 0));
    // A recurring text counts once.
    let folder = dir.path().join(format!("memory/{IDEAL}/case-0"));
    let events = std::fs::read_to_string(folder.join("events.jsonl")).unwrap();
    let back = json!({
        "session": "finish", "op": "update", "memory": "home", "text": OSLO, "sources": sources(&[OLD, NEW]), "provenance": "system",
    });
    let update = events.lines().find(|line| line.contains("\"update\"")).unwrap();
    std::fs::write(folder.join("events.jsonl"), format!("{events}{back}\n{update}\n")).unwrap();
    // The first text now has both sources: one more question.
    let (third, asked) = judge(dir.path());
    assert_eq!((third.planned, asked), (summary.planned + 1, 1));
}

#[test]
fn a_text_that_was_not_judged_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    judge(dir.path());
    for case in 0..CASES {
        let path = dir.path().join(format!("memory/{IDEAL}/case-{case}/stated.jsonl"));
        let rows = std::fs::read_to_string(&path).unwrap();
        let rows = rows.lines().filter(|line| !line.contains(OSLO)).map(|line| format!("{line}\n"));
        std::fs::write(&path, rows.collect::<String>()).unwrap();
    }
    assert_eq!(at_level_2(dir.path(), "written", "old"), (0, 0, 4));
    assert_eq!(at_level_2(dir.path(), "looked at", "old"), (0, 0, 4));
    assert_eq!(at_level_2(dir.path(), "kept", "old"), (0, 4, 0));
}

/// A considered but unwritten candidate has a text too, which does not belong to the compared memory.
#[test]
fn a_candidate_that_changed_nothing_is_no_text_of_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let planned = judge(dir.path()).0.planned;
    let folder = dir.path().join(format!("memory/{IDEAL}/case-0"));
    let events = std::fs::read_to_string(folder.join("events.jsonl")).unwrap();
    let none = json!({
        "session": label(NEW), "op": "none", "memory": "home", "text": "likes fish", "sources": sources(&[NEW]), "provenance": "system",
    });
    std::fs::write(folder.join("events.jsonl"), format!("{events}{none}\n")).unwrap();
    assert_eq!(judge(dir.path()).0.planned, planned);
}
