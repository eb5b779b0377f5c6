//! Sources of memories, and their histories in words.

use palimpsest::memory::system::protocol::{
    Memory, Op, ProvenanceClaim, SessionInput, Source, Status, WriteEvent,
};
use palimpsest::memory::system::record::FINISH;
use palimpsest::memory::system::rows::{HistoryRow, Provenance, lives};
use palimpsest::memory::system::sources::Sources;

fn sessions() -> Vec<SessionInput> {
    let session = |at: usize| SessionInput {
        id: format!("session[{at}]"),
        time: Some(format!("2024-05-0{}T10:00:00", at + 1)),
        turns: Vec::new(),
    };
    (0..3).map(session).collect()
}

fn memory(id: &str, text: &str) -> Memory {
    Memory { id: id.to_owned(), text: text.to_owned(), ..Memory::default() }
}

fn named(sources: &Option<Vec<Source>>) -> Option<Vec<&str>> {
    Some(sources.as_ref()?.iter().map(|source| source.session.as_str()).collect())
}

#[test]
fn a_memory_that_is_rewritten_keeps_its_earlier_sources() {
    let mut sources = Sources::new(ProvenanceClaim::None, &sessions());
    for (session, dump) in [
        ("session[0]", vec![memory("a", "tea")]),
        ("session[1]", vec![memory("a", "tea"), memory("b", "cat")]),
        ("session[2]", vec![memory("a", "tea, then coffee")]),
    ] {
        for event in sources.difference(&dump) {
            sources.event(session, event, Provenance::Dump);
        }
    }
    let mut dump = [memory("a", "tea, then coffee")];
    assert_eq!(sources.complete(&mut dump), Provenance::Dump);
    assert_eq!(named(&dump[0].sources), Some(vec!["session[0]", "session[2]"]));
}

#[test]
fn a_difference_tells_additions_changes_ends_and_removals() {
    let mut sources = Sources::new(ProvenanceClaim::None, &sessions());
    let first = [memory("a", "tea"), memory("b", "cat"), memory("c", "sea")];
    for event in sources.difference(&first) {
        sources.event("session[0]", event, Provenance::Dump);
    }
    let stale = Memory { status: Status::Stale, ..memory("b", "cat") };
    let found = sources.difference(&[memory("a", "coffee"), stale, memory("d", "hill")]);
    let told: Vec<_> = found.iter().map(|event| (event.op, event.memory.as_deref().unwrap())).collect();
    assert_eq!(told, [(Op::Update, "a"), (Op::Stale, "b"), (Op::Add, "d"), (Op::Delete, "c")]);
    assert_eq!(found[0].previous.as_deref(), Some("tea"));
}

#[test]
fn times_name_the_one_session_of_that_time() {
    let sources = Sources::new(ProvenanceClaim::None, &sessions());
    let at = |time: &str| {
        let mut memories = [Memory { time: Some(time.to_owned()), ..memory("a", "tea") }];
        let way = sources.complete(&mut memories);
        (way, named(&memories[0].sources).map(|names| names.join(",")))
    };
    assert_eq!(at("2024-05-02T10:00:00"), (Provenance::Times, Some("session[1]".to_owned())));
    assert_eq!(at("2024-05-02"), (Provenance::Times, Some("session[1]".to_owned())));
    assert_eq!(at("2024-05-02 11:00"), (Provenance::Unknown, None));
}

#[test]
fn the_end_of_the_writing_is_no_source() {
    let mut sources = Sources::new(ProvenanceClaim::None, &sessions());
    let memory = Some("a".to_owned());
    let add = WriteEvent { op: Op::Add, memory, text: Some("x".to_owned()), ..WriteEvent::default() };
    let row = sources.event(FINISH, add, Provenance::Events);
    assert_eq!((row.event.sources, row.provenance), (None, Provenance::Unknown));
}

#[test]
fn a_life_says_who_ended_it_and_why() {
    let text = r#"{"session":"session[0]","op":"add","memory":"m0","text":"I live\nin Seattle.","sources":[{"session":"session[0]"}],"provenance":"system"}
{"session":"session[0]","events":1}
{"session":"session[2]","op":"add","memory":"m1","text":"I live in Austin.","sources":[{"session":"session[2]"}],"looked_at":[{"memory":"m0","gated":true}],"provenance":"system"}
{"session":"session[2]","op":"stale","memory":"m0","sources":[{"session":"session[0]"}],"reason":"moved","provenance":"system"}
{"session":"session[2]","events":2}
{"session":"session[3]","events":0,"failed":{"kind":"timed_out","message":"no reply"}}"#;
    let rows: Vec<HistoryRow> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = "m0
  session[0]: added: \"I live in Seattle.\"
  session[2]: considered for m1, and passed the gate
  session[2]: marked out of date (from session[0]), because: moved
m1
  session[2]: added: \"I live in Austin.\"
session[3] could not be written: no reply
";
    assert_eq!(lives(&rows), expected);
}
