//! Time limits of memory systems, and their flag.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palimpsest::memory::system::http_server::{Handler, HttpServer, Request, Response};
use palimpsest::memory::system::protocol::{
    FailureKind, HelloRequest, MemorySystem, SessionInput, SystemError,
};
use palimpsest::memory::system::transport::{Address, ChildProcess, Transport};
use palimpsest::memory::system::wire::{Patience, WireSystem};
use serde_json::{Value, json};

use super::{environment, post, proxy, script};

const LIMITS: &str = "start=1.5,session=0.75,search=0.25";

/// The error of an unanswered operation.
fn late(transport: impl Transport, op: &str) -> SystemError {
    let patience = Patience::parse(LIMITS).unwrap();
    let mut system = WireSystem::new("slow", transport, HelloRequest::default(), patience);
    let begun = system.hello().and_then(|_| system.reset("a"));
    let session = SessionInput { id: "session[0]".to_owned(), time: None, turns: Vec::new() };
    let done = begun.and_then(|()| match op {
        "ingest" => system.ingest("a", &session).map(drop),
        "finish" => system.finish("a").map(drop),
        "search" => system.search("a", "?", 1, None).map(drop),
        "dump" => system.dump("a").map(drop),
        "readback" => system.readback("a", &[]).map(drop),
        "fingerprint" => system.fingerprint("a").map(drop),
        "save" => system.save("a", &std::env::temp_dir()),
        _ => system.answer("a", "?", None).map(drop),
    });
    done.unwrap_err()
}

#[test]
fn e16_an_error_of_time_names_the_limit_of_its_operation() {
    let folder = tempfile::tempdir().unwrap();
    for (op, limit, remedy) in [
        ("hello", "1.5 s", "--memory-timeout start=3 "),
        ("reset", "0.75 s", "--memory-timeout session=1.5 "),
        ("ingest", "0.75 s", "--memory-timeout session=1.5 "),
        ("finish", "0.75 s", "--memory-timeout session=1.5 "),
        ("save", "0.75 s", "--memory-timeout session=1.5 "),
        ("answer", "0.75 s", "--memory-timeout session=1.5 "),
        ("search", "0.25 s", "--memory-timeout search=0.5 "),
        ("dump", "0.25 s", "--memory-timeout search=0.5 "),
        ("readback", "0.25 s", "--memory-timeout search=0.5 "),
        ("fingerprint", "0.25 s", "--memory-timeout search=0.5 "),
    ] {
        let mute = op.to_owned();
        let handler: Handler = std::sync::Arc::new(move |request: Request| {
            let message: Value = serde_json::from_slice(&request.body).unwrap();
            if message["op"] == json!(mute) {
                std::thread::sleep(Duration::from_secs(2));
            }
            Response::json(200, &json!({"id": message["id"], "ok": true, "name": "slow", "can": []}))
        });
        let server = HttpServer::start(handler).unwrap();
        let error = late(Address::new(&server.url()), op);
        assert_eq!((error.kind, error.op), (FailureKind::TimedOut, op), "{error}");
        assert!(error.message.contains(limit) && error.message.contains(remedy), "{error}");
    }
    let command = format!("{} hangs=search", script());
    let child = ChildProcess::new(&command, &folder.path().join("log"), environment()).unwrap();
    let mut system = WireSystem::new(
        "slow",
        child,
        HelloRequest { protocol: 1, ..HelloRequest::default() },
        Patience::parse("search=0.25").unwrap(),
    );
    system.hello().and_then(|_| system.reset("a")).unwrap();
    let error = system.search("a", "?", 1, None).unwrap_err();
    assert_eq!(
        error.message,
        "no reply within 0.25 s; the process is ended; --memory-timeout search=0.5 allows it twice the time"
    );
}
#[test]
fn limits_are_read_by_name_and_a_number_alone_lowers_those_of_searches_only() {
    let seconds = |text: &str| {
        let read = Patience::parse(text)?;
        Ok::<_, String>([read.start, read.session, read.search].map(|limit| limit.as_secs_f64()))
    };
    for (text, limits) in [
        ("90", [120.0, 600.0, 90.0]),
        ("1", [120.0, 600.0, 1.0]),
        ("300", [300.0, 600.0, 300.0]),
        ("3600", [3600.0, 3600.0, 3600.0]),
        ("0.5", [120.0, 600.0, 0.5]),
        ("search=62,session=5", [120.0, 5.0, 62.0]),
        ("start=600", [600.0, 600.0, 60.0]),
        ("session = 30, 900", [900.0, 30.0, 900.0]),
    ] {
        assert_eq!(seconds(text), Ok(limits), "{text}");
    }
    for (text, part) in [
        ("", "``"),
        ("0", "`0`"),
        ("-3", "`-3`"),
        ("NaN", "`NaN`"),
        ("inf", "`inf`"),
        ("1e300", "at most"),
        ("a minute", "number of seconds"),
        ("search", "`search`"),
        ("search=", "`search=`"),
        ("ingest=5", "start, session and search"),
    ] {
        let refused = seconds(text).unwrap_err();
        assert!(refused.contains(part), "{text}: {refused}");
    }
}

#[test]
fn a_reply_of_another_id_without_an_error_or_of_no_json_is_none_and_quoted_in_part() {
    for (reply, part) in [
        (r#"{"id": 4, "ok": true}"#.to_owned(), "has id 4"),
        (r#"{"id": 1, "ok": false}"#.to_owned(), "no `error`"),
        ("Loading model ...".to_owned(), "no reply of the protocol"),
        ("\u{e9}".repeat(10_000), " ...` is no reply of the protocol"),
    ] {
        let body = reply.clone().into_bytes();
        let handler: Handler = std::sync::Arc::new(move |_| Response {
            status: 200,
            content_type: "application/json".to_owned(),
            body: body.clone(),
        });
        let server = HttpServer::start(handler).unwrap();
        let patience = Patience::default();
        let mut system =
            WireSystem::new("odd", Address::new(&server.url()), HelloRequest::default(), patience);
        let error = system.hello().unwrap_err();
        assert_eq!(error.kind, FailureKind::Nonsense);
        assert!(error.message.contains(part) && error.message.len() < 1000, "{error}");
    }
}

/// Writes lines until nobody reads them for a second, or 16 MiB are read; its argument is the folder where a file then says which.
const FLOOD: &str = r#"
import os, select, sys, time
for _ in range(4096):
    if not select.select([], [1], [], 1)[1]:
        open(sys.argv[1] + "/waits", "w")
        break
    os.write(1, b"x" * 4095 + b"\n")
else:
    open(sys.argv[1] + "/all", "w")
time.sleep(3600)
"#;

#[test]
fn a_system_that_writes_without_end_is_read_as_far_as_it_was_asked() {
    let folder = tempfile::tempdir().unwrap();
    let command = format!("python3 -c '{FLOOD}' '{}'", folder.path().display());
    let mut child = ChildProcess::new(&command, &folder.path().join("log"), environment()).unwrap();
    child.start().unwrap();
    let said = |name: &str| Path::new(folder.path()).join(name).exists();
    while !said("waits") && !said("all") {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(said("waits"), "all was read");
    let line = child.exchange(b"{}", Duration::from_secs(60)).unwrap();
    assert_eq!(line.len(), 4096);
}

#[test]
fn a_system_reaches_no_path_of_the_endpoint_but_those_of_its_models() {
    let run = tempfile::tempdir().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let handler: Handler = Arc::new(move |request: Request| {
        seen.lock().unwrap().push(request.path);
        Response::json(200, &json!({}))
    });
    let model = HttpServer::start(handler).unwrap();
    let proxy = proxy(run.path(), &model.url());
    let key = proxy.llm().key;
    let get = |path: &str| {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().new_agent();
        let request = agent.get(format!("{}/{path}", proxy.llm().base_url));
        request.header("Authorization", format!("Bearer {key}")).call().unwrap().status().as_u16()
    };
    for path in
        ["files", "../../admin/keys", "models/../files", "models/%2e%2e/files", "models/m", "embeddings"]
    {
        assert_eq!(get(path), 404, "{path}");
    }
    for path in ["fine_tuning/jobs", "embeddings/../files", "%2e%2e/files", "models"] {
        let (status, said) = post(&proxy, path, &key, &json!({}));
        assert_eq!(status, 404, "{path}: {said}");
    }
    assert!(asked.lock().unwrap().is_empty());
    assert_eq!(get("models"), 200);
    for path in ["chat/completions", "completions", "embeddings", "responses"] {
        assert_eq!(post(&proxy, path, &key, &json!({})).0, 200, "{path}");
    }
    assert_eq!(asked.lock().unwrap().len(), 5);
}
