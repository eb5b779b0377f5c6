//! Time limits of memory systems, and the flag that sets them.

use std::time::Duration;

use palimpsest::memory::system::child::ChildProcess;
use palimpsest::memory::system::http::Address;
use palimpsest::memory::system::http_server::{Handler, HttpServer, Request, Response};
use palimpsest::memory::system::protocol::{
    FailureKind, HelloRequest, MemorySystem, SessionInput, SystemError,
};
use palimpsest::memory::system::wire::{Patience, Transport, WireSystem};
use serde_json::{Value, json};

use super::script;

const LIMITS: &str = "start=1.5,session=0.75,search=0.25";

/// The error of an operation that is not answered.
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
    let child = ChildProcess::new(&format!("{} hangs=search", script()), &folder.path().join("log")).unwrap();
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
