//! What must hold for: memory systems behind their protocol, good and bad ones, and what a run keeps of them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use palimpsest::data::{Case, Evidence, History, Probe, Segment, Turn};
use palimpsest::memory::system::child::ChildProcess;
use palimpsest::memory::system::history::{Retries, SystemRun, Wanted};
use palimpsest::memory::system::protocol::{FailureKind, HelloRequest, Op, SystemError};
use palimpsest::memory::system::record::case_folder;
use palimpsest::memory::system::rows::{EventRow, HistoryRow, Provenance, SearchRow, SessionRow};
use palimpsest::memory::system::wire::{Patience, WireSystem};

const FACTS: [&str; 6] = [
    "I live in a cottage by the sea.",
    "My cat is called Ümlaut 猫, and she sleeps on the “north” sill.",
    "I moved from the cottage into a flat in the hills.",
    "Tea is what I drink in the morning.",
    "My brother repairs clocks.",
    "Coffee is what I drink in the morning now.",
];

/// A case of six sessions; the answer to its first probe is told in sessions 0 and 2.
fn case(id: &str) -> Case {
    let segment = |(index, fact): (usize, &&str)| Segment {
        kind: "session".to_owned(),
        index,
        time: format!("2024-05-0{}T10:00:00", index + 1).parse().ok(),
        turns: vec![Turn::new("user", *fact), Turn::new("assistant", "I see.")],
    };
    let probe = |id: &str, query: &str, evidence: &[usize]| Probe {
        id: id.to_owned(),
        form: "question".to_owned(),
        query: query.to_owned(),
        evidence: evidence.iter().map(|at| Evidence::segment("fact", *at)).collect(),
        ..Probe::default()
    };
    let probes = vec![
        probe("home", "Is the cottage by the sea where I live?", &[0, 2]),
        probe("drink", "What do I drink in the morning?", &[3, 5]),
        probe("cat", "What is my cat called?", &[1]),
    ];
    let history = History {
        segments: FACTS.iter().enumerate().map(segment).collect(),
        query_time: "2024-06-01T10:00:00".parse().ok(),
    };
    Case { id: id.to_owned(), history, probes, ..Case::default() }
}

fn script() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/memory/scripted.py");
    format!("python3 '{}'", path.display())
}

fn patience() -> Patience {
    Patience {
        start: Duration::from_secs(20),
        session: Duration::from_secs(2),
        search: Duration::from_secs(2),
    }
}

fn start(run: &Path, behaviour: &str) -> Result<SystemRun, SystemError> {
    std::fs::create_dir_all(run).unwrap();
    let child = ChildProcess::new(&format!("{} {behaviour}", script()), &run.join("stderr.log")).unwrap();
    let hello = HelloRequest { protocol: 1, folder: run.display().to_string(), ..HelloRequest::default() };
    let system = WireSystem::new("scripted", child, hello, patience());
    let retries = Retries { most: 3, delay: Duration::from_millis(1) };
    Ok(SystemRun::start("scripted", Box::new(system), run)?.with_retries(retries))
}

const WANTED: Wanted = Wanted { k: 3, readback: true, answer: false };

/// All rows of a case under a behaviour.
fn rows(run: &Path, behaviour: &str) -> Vec<SearchRow> {
    let case = case("a case");
    let mut system = start(run, behaviour).unwrap();
    case.probes.iter().map(|probe| system.searched(&case, probe, WANTED).unwrap()).collect()
}

fn history(run: &Path) -> Vec<HistoryRow> {
    let path = case_folder(run, "scripted", "a case").join("events.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn events(run: &Path) -> Vec<EventRow> {
    let event = |row| if let HistoryRow::Event(row) = row { Some(row) } else { None };
    history(run).into_iter().filter_map(event).collect()
}

fn sessions(run: &Path) -> Vec<SessionRow> {
    let session = |row| if let HistoryRow::Session(row) = row { Some(row) } else { None };
    history(run).into_iter().filter_map(session).collect()
}

/// The failed sessions, with the kinds.
fn failures(run: &Path) -> Vec<(String, FailureKind)> {
    let failed = sessions(run).into_iter().filter_map(|row| Some((row.session, row.failed?.kind)));
    failed.collect()
}

/// The files that have to be the same however a run came about.
fn kept(run: &Path) -> BTreeMap<PathBuf, String> {
    let folder = case_folder(run, "scripted", "a case");
    let names = ["events.jsonl", "dump.jsonl", "searches.jsonl"];
    let read = |name: &str| Some((PathBuf::from(name), std::fs::read_to_string(folder.join(name)).ok()?));
    names.into_iter().filter_map(read).collect()
}

fn sources(row: &SearchRow) -> Vec<Option<Vec<String>>> {
    let named = |memory: &palimpsest::memory::system::protocol::Memory| {
        Some(memory.sources.as_ref()?.iter().map(|source| source.session.clone()).collect())
    };
    row.memories.iter().map(named).collect()
}

#[test]
fn a_perfect_system_finds_the_evidence_and_keeps_its_sources() {
    let run = tempfile::tempdir().unwrap();
    let rows = rows(run.path(), "");
    assert_eq!(rows.len(), 3);
    for row in &rows {
        assert_eq!((row.memories.len(), row.provenance, row.changed), (3, Provenance::System, Some(false)));
        assert_eq!((&row.failed, &row.readback_failed), (&None, &None));
    }
    assert_eq!(rows[2].memories[0].text, FACTS[1], "text is kept as it was said");
    let read_back = rows[0].readback.as_ref().unwrap();
    assert_eq!(read_back.iter().map(|m| m.text.as_str()).collect::<Vec<_>>(), [FACTS[0], FACTS[2]]);
    let ended: Vec<String> = sessions(run.path()).into_iter().map(|row| row.session).collect();
    let expected = (0..6).map(|at| format!("session[{at}]")).chain(["finish".to_owned()]);
    assert_eq!(ended, expected.collect::<Vec<_>>());
    assert_eq!(events(run.path()).len(), 6);
}

#[test]
fn sources_come_by_the_best_way_that_the_system_offers() {
    for (behaviour, way, first) in [
        ("silent", Provenance::System, Some("session[0]")),
        ("events", Provenance::Events, Some("session[0]")),
        ("dump", Provenance::Dump, Some("session[0]")),
        ("times no-save", Provenance::Dump, Some("session[0]")),
        ("no-sources", Provenance::Unknown, None),
    ] {
        let run = tempfile::tempdir().unwrap();
        let rows = rows(run.path(), behaviour);
        assert_eq!(rows[0].provenance, way, "{behaviour}");
        let found = sources(&rows[0])[0].clone().map(|names| names[0].clone());
        assert_eq!(found.as_deref(), first, "{behaviour}");
        let failed = rows[0].readback_failed.as_ref().map(|failure| failure.kind);
        match first {
            None => assert_eq!(failed, Some(FailureKind::Unsupported), "{behaviour}"),
            // Without a dump nothing can be read back, whatever is known of sources.
            Some(_) if behaviour == "events" => assert_eq!(failed, Some(FailureKind::Unsupported)),
            Some(_) => {
                let texts: Vec<&str> =
                    rows[0].readback.as_ref().unwrap().iter().map(|memory| memory.text.as_str()).collect();
                assert_eq!(texts, [FACTS[0], FACTS[2]], "{behaviour}");
            }
        }
    }
}

#[test]
fn what_is_forgotten_mixed_or_refused_is_told_by_events() {
    let run = tempfile::tempdir().unwrap();
    rows(run.path(), "keep-last=2");
    let ops: Vec<Op> = events(run.path()).iter().map(|row| row.event.op).collect();
    assert_eq!(ops.iter().filter(|op| **op == Op::Delete).count(), 4);
    let run = tempfile::tempdir().unwrap();
    rows(run.path(), "keep-first=2");
    assert_eq!(sessions(run.path()).iter().map(|row| row.events).collect::<Vec<_>>(), [1, 1, 0, 0, 0, 0, 0]);
    let run = tempfile::tempdir().unwrap();
    let mixed = rows(run.path(), "mixed dump");
    let all: Vec<String> = (0..6).map(|at| format!("session[{at}]")).collect();
    assert_eq!(
        sources(&mixed[0]),
        [Some(all)],
        "differences of dumps unite the sources of a memory that is rewritten"
    );
}

#[test]
fn a_session_that_fails_is_a_row_and_costs_no_other() {
    for (behaviour, kind) in [
        ("dies=2", FailureKind::Dead),
        ("dies=2 no-save", FailureKind::Dead),
        ("hangs=2", FailureKind::TimedOut),
        ("nonsense=2", FailureKind::Nonsense),
        ("wrong-id=2", FailureKind::Nonsense),
        ("input=2", FailureKind::Input),
    ] {
        let run = tempfile::tempdir().unwrap();
        let rows = rows(run.path(), behaviour);
        assert_eq!(failures(run.path()), [("session[2]".to_owned(), kind)], "{behaviour}");
        let failure = sessions(run.path())[2].failed.clone().unwrap();
        assert!(failure.message.contains("memory system scripted: ingest: "), "{}", failure.message);
        assert!(rows.iter().all(|row| row.failed.is_none()), "{behaviour}: {:?}", rows[0].failed);
        assert_eq!(events(run.path()).len(), 5, "{behaviour}");
        // Another process leaves it as it is.
        let before = kept(run.path());
        std::fs::remove_file(case_folder(run.path(), "scripted", "a case").join("searches.jsonl")).unwrap();
        self::rows(run.path(), behaviour);
        assert_eq!(kept(run.path()), before, "{behaviour}");
    }
}

#[test]
fn sources_that_were_never_sent_are_refused_wherever_they_are_named() {
    let run = tempfile::tempdir().unwrap();
    let rows = rows(run.path(), "strange-source=2");
    let expected = [("session[2]", FailureKind::Nonsense), ("finish", FailureKind::Nonsense)];
    assert_eq!(failures(run.path()), expected.map(|(name, kind)| (name.to_owned(), kind)));
    let failure = rows[0].failed.clone().unwrap();
    assert!(failure.message.contains("search: it names the source `session[999]`"), "{}", failure.message);
}

#[test]
fn a_history_is_given_up_after_three_losses_in_a_row() {
    let run = tempfile::tempdir().unwrap();
    let rows = rows(run.path(), "dies=ingest");
    let kinds = [FailureKind::Dead, FailureKind::Dead, FailureKind::Fatal];
    assert_eq!(failures(run.path()).into_iter().map(|(_, kind)| kind).collect::<Vec<_>>(), kinds);
    for row in rows {
        let failure = row.failed.unwrap();
        assert!(failure.message.contains("3 sessions in a row could not be written"), "{}", failure.message);
    }
}

#[test]
fn a_death_that_happens_once_leaves_no_trace() {
    let whole = tempfile::tempdir().unwrap();
    rows(whole.path(), "");
    for place in ["0", "3", "finish", "search", "readback", "fingerprint", "dump"] {
        for saves in ["", "no-save"] {
            let run = tempfile::tempdir().unwrap();
            let flag = run.path().join("died");
            let rows = rows(run.path(), &format!("{saves} 'dies-once={}@{place}'", flag.display()));
            assert!(flag.exists(), "{place}");
            assert!(rows.iter().all(|row| row.failed.is_none()), "{place}: {:?}", rows[0].failed);
            if place != "fingerprint" {
                assert_eq!(kept(run.path()), kept(whole.path()), "{place} {saves}");
            }
        }
    }
}

#[test]
fn errors_that_pass_are_tried_again_and_others_are_not() {
    let run = tempfile::tempdir().unwrap();
    let rows_of = rows(run.path(), "transient=1");
    assert_eq!(failures(run.path()), []);
    assert!(rows_of.iter().all(|row| row.failed.is_none()));
    let run = tempfile::tempdir().unwrap();
    let rows_of = rows(run.path(), "fatal=1");
    assert_eq!(failures(run.path()), [("session[1]".to_owned(), FailureKind::Fatal)]);
    assert!(rows_of.iter().all(|row| row.failed.as_ref().unwrap().message.contains("fatal, as told")));
}

#[test]
fn a_system_that_hangs_at_every_search_costs_one_wait_a_probe() {
    let run = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let rows = rows(run.path(), "hangs=search");
    assert!(begun.elapsed() < Duration::from_secs(20));
    for row in rows {
        let failure = row.failed.unwrap();
        assert_eq!(failure.kind, FailureKind::TimedOut);
        assert!(failure.message.contains("no reply within 2 s"), "{}", failure.message);
    }
}

#[test]
fn more_memories_than_asked_for_are_cut_and_a_store_that_changes_is_told() {
    let run = tempfile::tempdir().unwrap();
    assert!(rows(run.path(), "ignores-k").iter().all(|row| row.memories.len() == 3));
    for behaviour in ["restless", "restless unaligned"] {
        let run = tempfile::tempdir().unwrap();
        assert!(rows(run.path(), behaviour).iter().all(|row| row.changed == Some(true)), "{behaviour}");
    }
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_with_the_same_bytes() {
    let whole = tempfile::tempdir().unwrap();
    rows(whole.path(), "");
    let expected = kept(whole.path());
    assert_eq!(expected.len(), 3);
    for saves in ["", "no-save", "dump", "dump no-save"] {
        let expected = match saves.contains("dump") {
            true => {
                let whole = tempfile::tempdir().unwrap();
                rows(whole.path(), saves);
                kept(whole.path())
            }
            false => expected.clone(),
        };
        for stop in 0..8 {
            let run = tempfile::tempdir().unwrap();
            let case = case("a case");
            let mut system = start(run.path(), saves).unwrap().told(move |progress| {
                assert!(progress.done != stop, "stopped");
            });
            let stopped = catch_unwind(AssertUnwindSafe(|| {
                system.searched(&case, &case.probes[0], WANTED).unwrap();
            }));
            assert_eq!(stopped.is_err(), stop <= 6);
            drop(system);
            // The last row is torn.
            let path = case_folder(run.path(), "scripted", "a case").join("events.jsonl");
            let text = std::fs::read(&path).unwrap();
            std::fs::write(&path, &text[..text.len().saturating_sub(stop * 9)]).unwrap();
            rows(run.path(), saves);
            assert_eq!(kept(run.path()), expected, "stopped at {stop} {saves}");
        }
    }
}

#[test]
fn rows_that_are_there_need_no_system() {
    let run = tempfile::tempdir().unwrap();
    let first = rows(run.path(), "");
    // It would die at its first session.
    assert_eq!(rows(run.path(), "dies=0"), first);
}

#[test]
fn a_system_that_cannot_start_says_why() {
    let run = tempfile::tempdir().unwrap();
    let error = start(run.path(), "dies=hello").map(|_| ()).unwrap_err();
    assert_eq!((error.kind, error.op), (FailureKind::Dead, "hello"));
    assert!(error.message.contains("exit status: 7") && error.message.contains("out of luck"), "{error}");
    let child = ChildProcess::new("no-such-program --x", &run.path().join("log")).unwrap();
    let system = WireSystem::new("none", child, HelloRequest::default(), patience());
    let error = SystemRun::start("none", Box::new(system), run.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("`no-such-program`") && error.contains("is it installed"), "{error}");
    assert!(ChildProcess::new("python3 'half", run.path()).map(|_| ()).unwrap_err().contains("quotation"));
}

#[test]
fn cases_in_turn_share_a_system_and_keep_apart() {
    let run = tempfile::tempdir().unwrap();
    let mut system = start(run.path(), "").unwrap();
    let (one, mut other) = (case("../one"), case("other"));
    other.history.segments.truncate(2);
    let of = |system: &mut SystemRun, case: &Case, probe: usize| {
        system.searched(case, &case.probes[probe], WANTED).unwrap().memories.len()
    };
    assert_eq!(of(&mut system, &one, 0), 3);
    assert_eq!(of(&mut system, &other, 0), 2);
    assert_eq!(of(&mut system, &one, 1), 3);
    assert_eq!(std::fs::read_dir(run.path().join("memory/scripted")).unwrap().count(), 2);
}
