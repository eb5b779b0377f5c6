//! Memory systems behind their protocol, valid and faulty, and the run's record of them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use palimpsest::case::{Case, Evidence, History, Probe, Segment, Turn};
use palimpsest::chat::endpoint::Keys;
use palimpsest::memory::system::environment::Environment;
use palimpsest::memory::system::history::{SystemRun, Wanted};
use palimpsest::memory::system::http_server::{Handler, HttpServer, Request, Response};
use palimpsest::memory::system::protocol::{FailureKind, HelloRequest, Op, SystemError};
use palimpsest::memory::system::proxy::{Decoding, Models, Proxy, Upstream};
use palimpsest::memory::system::record::case_folder;
use palimpsest::memory::system::rows::{CallRow, EventRow, HistoryRow, Provenance, SearchRow, SessionRow};
use palimpsest::memory::system::transport::{Address, ChildProcess};
use palimpsest::memory::system::wire::{Patience, WireSystem};
use serde_json::{Value, json};

mod check;
mod limits;
mod sources;

const FACTS: [&str; 6] = [
    "I live in a cottage by the sea.",
    "My cat is called Ümlaut 猫, and she sleeps on the “north” sill.",
    "I moved from the cottage into a flat in the hills.",
    "Tea is what I drink in the morning.",
    "My brother repairs clocks.",
    "Coffee is what I drink in the morning now.",
];

/// A case of six sessions; the answer to its first probe is in sessions 0 and 2.
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

fn environment() -> Environment {
    Environment::with(&[]).unwrap()
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
    let child =
        ChildProcess::new(&format!("{} {behaviour}", script()), &run.join("stderr.log"), environment())
            .unwrap();
    let hello = HelloRequest { protocol: 1, folder: run.display().to_string(), ..HelloRequest::default() };
    let system = WireSystem::new("scripted", child, hello, patience());
    SystemRun::start("scripted", Box::new(system), run)
}

const WANTED: Wanted = Wanted { k: 3, readback: true, answer: false };

/// All rows of a case under a behaviour.
fn rows(run: &Path, behaviour: &str) -> Vec<SearchRow> {
    let case = case("a case");
    let mut system = start(run, behaviour).unwrap();
    case.probes.iter().map(|probe| system.searched(&case, probe, WANTED).unwrap()).collect()
}

fn history(run: &Path) -> Vec<HistoryRow> {
    let path = run.join(case_folder("scripted", "a case")).join("events.jsonl");
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

/// Failed sessions, with the failure kinds.
fn failures(run: &Path) -> Vec<(String, FailureKind)> {
    let failed = sessions(run).into_iter().filter_map(|row| Some((row.session, row.failed?.kind)));
    failed.collect()
}

/// Files that must not depend on how the run was executed.
fn kept(run: &Path) -> BTreeMap<PathBuf, String> {
    let folder = run.join(case_folder("scripted", "a case"));
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
        // Without events and without a dump, a session's changes are unknown.
        let told = Some(behaviour != "no-sources");
        assert!(sessions(run.path()).iter().all(|row| row.told == told), "{behaviour}");
        let found = sources(&rows[0])[0].clone().map(|names| names[0].clone());
        assert_eq!(found.as_deref(), first, "{behaviour}");
        let failed = rows[0].readback_failed.as_ref().map(|failure| failure.kind);
        match first {
            None => assert_eq!(failed, Some(FailureKind::Unsupported), "{behaviour}"),
            // Without a dump nothing can be read back, even if sources are known.
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
        // Another process leaves it unchanged.
        let before = kept(run.path());
        std::fs::remove_file(run.path().join(case_folder("scripted", "a case")).join("searches.jsonl"))
            .unwrap();
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
            // The last row is truncated.
            let path = run.path().join(case_folder("scripted", "a case")).join("events.jsonl");
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
    let child = ChildProcess::new("no-such-program --x", &run.path().join("log"), environment()).unwrap();
    let system = WireSystem::new("none", child, HelloRequest::default(), patience());
    let error = SystemRun::start("none", Box::new(system), run.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("`no-such-program`") && error.contains("is it installed"), "{error}");
    let half = ChildProcess::new("python3 'half", run.path(), environment()).map(|_| ());
    assert!(half.unwrap_err().contains("quotation"));
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

/// A scripted model: repeats the message as JSON, malformed if it mentions a cat. Counts its calls.
fn scripted_model(calls: &Arc<AtomicUsize>) -> HttpServer {
    let calls = Arc::clone(calls);
    let handler: Handler = Arc::new(move |request: Request| {
        calls.fetch_add(1, Ordering::Relaxed);
        let asked: Value = serde_json::from_slice(&request.body).unwrap();
        assert!(request.path.starts_with("/base/v1/"), "{}", request.path);
        if request.path.ends_with("/embeddings") {
            return Response::json(
                200,
                &json!({"data": [{"index": 0, "embedding": [0.5, 1.0]}], "usage": {"prompt_tokens": 3}}),
            );
        }
        let said = asked["messages"][0]["content"].as_str().unwrap();
        let content = match said.contains("cat") {
            true => format!("{{\"fact\": \"{said}"),
            false => json!({"fact": said}).to_string(),
        };
        if asked["stream"] == true {
            let events = content.split_inclusive(' ').map(|word| {
                format!(
                    "data: {}\n\n",
                    json!({"choices": [{"delta": {"content": word}, "finish_reason": null}]})
                )
            });
            let body = events.chain(["data: [DONE]\n\n".to_owned()]).collect::<String>().into_bytes();
            return Response { status: 200, content_type: "text/event-stream".to_owned(), body };
        }
        let choice = json!({"message": {"role": "assistant", "content": content}, "finish_reason": "stop"});
        let usage = json!({"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}});
        Response::json(200, &json!({"choices": [choice], "usage": usage}))
    });
    HttpServer::start(handler).unwrap()
}

fn proxy(run: &Path, upstream: &str) -> Proxy {
    let (named, log) = (format!("{upstream}/base/v1#scripted-model"), run.join("server.log"));
    let llm = Upstream::parse(&named, &log, &Keys::default()).unwrap();
    Proxy::start("scripted", Models { llm, embedder: None, decoding: Decoding::AsAsked }, run).unwrap()
}

/// Probe rows of a system that asks a model about every session.
fn asking(run: &Path, behaviour: &str, upstream: &str) -> Vec<SearchRow> {
    let proxy = proxy(run, upstream);
    let child =
        ChildProcess::new(&format!("{} asks {behaviour}", script()), &run.join("stderr.log"), environment())
            .unwrap();
    let hello = HelloRequest { protocol: 1, llm: Some(proxy.llm()), ..HelloRequest::default() };
    let system = WireSystem::new("scripted", child, hello, patience());
    let mut system = SystemRun::start("scripted", Box::new(system), run).unwrap().watched(Some(proxy));
    let case = case("a case");
    case.probes.iter().map(|probe| system.searched(&case, probe, WANTED).unwrap()).collect()
}

fn calls(run: &Path) -> Vec<CallRow> {
    let text =
        std::fs::read_to_string(run.join(case_folder("scripted", "a case")).join("calls.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn calls_are_counted_by_operation_and_a_rerun_asks_no_model() {
    let run = tempfile::tempdir().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let model = scripted_model(&asked);
    let first = asking(run.path(), "", &model.url());
    assert!(first.iter().all(|row| row.failed.is_none()));
    let rows = calls(run.path());
    assert_eq!((rows.len(), asked.load(Ordering::Relaxed)), (6, 6));
    let about: Vec<&str> = rows.iter().map(|row| row.about.as_str()).collect();
    assert_eq!(about, (0..6).map(|at| format!("session[{at}]")).collect::<Vec<_>>());
    for row in &rows {
        assert_eq!((row.phase.as_str(), row.path.as_str()), ("ingest", "/v1/chat/completions"));
        assert_eq!(
            (row.prompt_tokens, row.cached_tokens, row.completion_tokens),
            (Some(7), Some(4), Some(5))
        );
        assert_eq!((row.finish_reason.as_deref(), row.temperature), (Some("stop"), Some(0.0)));
        // JSON was requested; the cat's reply had none.
        assert_eq!(row.json, Some(row.about != "session[1]"));
        assert!(!row.replayed);
    }
    // Without the model, and with only the responses kept.
    drop(model);
    let before = kept(run.path());
    let folder = run.path().join(case_folder("scripted", "a case"));
    for name in ["events.jsonl", "searches.jsonl", "dump.jsonl"] {
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    assert_eq!(asking(run.path(), "", "http://127.0.0.1:9"), first);
    assert_eq!(kept(run.path()), before);
    let again = calls(run.path());
    assert!(again.iter().all(|row| row.replayed) && again.len() == 6);
    assert!(again.iter().zip(&rows).all(|(again, row)| again.seconds == row.seconds));
}

#[test]
fn a_system_that_dies_pays_for_no_call_twice() {
    for saves in ["", "no-save"] {
        let run = tempfile::tempdir().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let model = scripted_model(&asked);
        let flag = run.path().join("died");
        asking(run.path(), &format!("{saves} 'dies-once={}@4'", flag.display()), &model.url());
        assert!(flag.exists());
        assert_eq!((calls(run.path()).len(), asked.load(Ordering::Relaxed)), (6, 6), "{saves}");
    }
}

#[test]
fn a_history_whose_calls_all_failed_is_not_written_although_the_system_says_so() {
    for saves in ["", "no-save"] {
        let run = tempfile::tempdir().unwrap();
        let refusing: Handler = Arc::new(|_| Response::error(401, "wrong key"));
        let refusing = HttpServer::start(refusing).unwrap();
        let rows = asking(run.path(), &format!("careless {saves}"), &refusing.url());
        for row in rows {
            let failure = row.failed.unwrap();
            let told = &failure.message;
            assert!(told.contains("all 6 of its calls to the language model failed"), "{saves}: {told}");
            assert!(told.contains("status 401"), "{saves}: {told}");
        }
        // The model is back: the same run is written anew.
        let model = scripted_model(&Arc::default());
        let rows = asking(run.path(), &format!("careless {saves}"), &model.url());
        assert!(rows.iter().all(|row| row.failed.is_none()), "{saves}: {:?}", rows[0].failed);
        assert_eq!(events(run.path()).len(), 6, "{saves}");
    }
}

#[test]
fn a_model_that_is_not_there_fails_sessions_and_is_told() {
    let run = tempfile::tempdir().unwrap();
    let rows = asking(run.path(), "", "http://127.0.0.1:9");
    assert!(rows.iter().all(|row| row.failed.is_some()));
    assert_eq!(calls(run.path())[0].status, 502);
}

fn post(proxy: &Proxy, path: &str, key: &str, body: &Value) -> (u16, String) {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let url = format!("{}/{path}", proxy.llm().base_url);
    let request = agent.post(url).header("Authorization", format!("Bearer {key}"));
    let mut response = request.send(body.to_string()).unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

#[test]
fn streams_and_embeddings_pass_and_a_stranger_does_not() {
    let run = tempfile::tempdir().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let model = scripted_model(&asked);
    let proxy = proxy(run.path(), &model.url());
    let key = proxy.llm().key;
    let message = json!([{"role": "user", "content": "tea in the morning"}]);
    let streamed = json!({"messages": message, "stream": true, "response_format": {"type": "json_object"}});
    for _ in 0..2 {
        let (status, body) = post(&proxy, "chat/completions", &key, &streamed);
        assert_eq!(status, 200);
        assert!(body.ends_with("data: [DONE]\n\n") && body.contains("morning"), "{body}");
    }
    assert_eq!(post(&proxy, "embeddings", &key, &json!({"input": "tea"})).0, 200);
    assert_eq!(post(&proxy, "chat/completions", "guess", &streamed).0, 401);
    assert_eq!(asked.load(Ordering::Relaxed), 3, "an equal request is another sample");
    let path = run.path().join("memory/scripted/calls.jsonl");
    let rows: Vec<CallRow> = std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.iter().map(|row| row.json).collect::<Vec<_>>(), [Some(true), Some(true), None]);
    assert!(rows.iter().all(|row| row.phase == "between"));
}

/// The scripted adapter's messages, answered over HTTP by a server with one memory.
#[test]
fn a_system_behind_an_address_answers_as_a_process_does() {
    let run = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let handler: Handler = Arc::new(move |request: Request| {
        let message: Value = serde_json::from_slice(&request.body).unwrap();
        heard.lock().unwrap().push(message.clone());
        let mut reply = json!({"id": message["id"], "ok": true});
        let more = match message["op"].as_str().unwrap() {
            "hello" => json!({"name": "remote", "can": []}),
            "search" => json!({"memories": [{"id": "a", "text": "tea"}]}),
            "ingest" if message["session"]["id"] == "session[3]" => {
                return Response::json(
                    500,
                    &json!({"id": message["id"], "ok": false, "error": {"kind": "input", "message": "too long"}}),
                );
            }
            _ => json!({}),
        };
        reply.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Response::json(200, &reply)
    });
    let server = HttpServer::start(handler).unwrap();
    let system =
        WireSystem::new("scripted", Address::new(&server.url()), HelloRequest::default(), patience());
    let mut system = SystemRun::start("scripted", Box::new(system), run.path()).unwrap();
    let case = case("a case");
    let row = system.searched(&case, &case.probes[0], WANTED).unwrap();
    assert_eq!((row.memories[0].text.as_str(), row.provenance), ("tea", Provenance::Unknown));
    assert_eq!(failures(run.path()), [("session[3]".to_owned(), FailureKind::Input)]);
    // Requests contain no labels, evidence or other probes.
    let sent = told.lock().unwrap().iter().map(Value::to_string).collect::<String>();
    assert!(
        !sent.contains("evidence") && !sent.contains("fact") && !sent.contains(&case.probes[1].query),
        "{sent}"
    );
    drop(server);
    let row = system.searched(&case, &case.probes[1], WANTED).unwrap();
    let failure = row.failed.unwrap();
    assert_eq!(failure.kind, FailureKind::Dead);
    assert!(failure.message.contains("is the memory system running there?"), "{}", failure.message);
}
