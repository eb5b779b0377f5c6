//! Memory stays within the plan: texts that cannot fit, oversized bodies and recordings, and released memory.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use palimpsest::api::{ServeOptions, Server};
use palimpsest_core::engine::memory_plan::Serving;
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions};
use palimpsest_core::model::ModelFiles;
use serde_json::{Value, json};

use super::{CHUNK, Served, fixture, serve, user};

/// A server of the tiny model limited to `mebibytes`.
fn within(mebibytes: u64) -> Served {
    let path = fixture("llama-tiny");
    let serving = Serving { parallel: Some(2), tokens: Some(4096), memory: Some(mebibytes << 20) };
    let options = LocalOptions {
        context: ContextLength::Exactly(2048),
        chunk: CHUNK,
        serving: Some(serving),
        ..LocalOptions::default()
    };
    let model = LocalModel::open(&ModelFiles::at(&path).unwrap(), &options).unwrap();
    let options = ServeOptions { queue: 8, max_thinking: 0, ..ServeOptions::default() };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (server, work) = Server::new(listener, model, options).unwrap();
    let (address, stop) = (server.address().unwrap(), Arc::new(AtomicBool::new(false)));
    let asked = Arc::clone(&stop);
    let threads = vec![thread::spawn(move || server.run(asked).unwrap()), thread::spawn(move || work.run())];
    Served::at("llama-tiny", address, stop, threads)
}

/// Bytes held by requests once none is served.
fn held(served: &Served) -> f64 {
    for _ in 0..200 {
        if served.metric("palimpsest_memory_requests_bytes") == 0.0 {
            return 0.0;
        }
        thread::sleep(std::time::Duration::from_millis(20));
    }
    served.metric("palimpsest_memory_requests_bytes")
}

#[test]
fn a_text_that_cannot_fit_is_refused_by_its_bytes_at_every_path() {
    let served = serve("llama-tiny");
    let text = "The market is on Thursday, and nobody knows why. ".repeat(100_000);
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": text, "span": "a"}]}]);
    let answered = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": text}]);
    for (path, body, field) in [
        ("/v1/chat/completions", json!({"messages": user(&text)}), "messages"),
        ("/v1/chat/completions", json!({"messages": parts, "palimpsest": {"rows": ["last"]}}), "messages"),
        ("/v1/chat/completions", json!({"messages": [{"role": "system", "content": text}]}), "messages"),
        (
            "/v1/chat/completions",
            json!({"messages": user("x"), "palimpsest": {"answer": text}}),
            "palimpsest.answer",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": answered, "palimpsest": {"answer": true}}),
            "palimpsest.answer",
        ),
        ("/v1/completions", json!({"prompt": "x", "palimpsest": {"answer": text}}), "palimpsest.answer"),
        ("/v1/completions", json!({"prompt": text}), "prompt"),
        ("/v1/completions", json!({"prompt": ["a", text]}), "prompt[1]"),
        ("/v1/embeddings", json!({"input": text}), "input"),
        ("/tokenize", json!({"prompt": text}), "prompt"),
        ("/tokenize", json!({"messages": user(&text)}), "messages"),
    ] {
        let refused = served.post(path, body);
        let error = &refused.json["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!(field)), "{path}: {error}");
        assert_eq!(error["code"], "context_length_exceeded", "{path}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("bytes") && message.contains("2048"), "{message}");
    }
    assert_eq!(held(&served), 0.0);
}

#[test]
fn a_text_of_the_longest_tokens_is_not_refused_by_its_bytes() {
    let served = serve("llama-tiny");
    // One token each, however many bytes.
    let token = served.get("/tokenizer_info").ok()["eos_token"].as_str().unwrap().to_owned();
    let text = token.repeat(1500);
    let count = served.post("/tokenize", json!({"prompt": text})).ok();
    assert_eq!(count["count"], 1500);
    served.complete(json!({"prompt": text, "max_tokens": 1})).ok();
}

#[test]
fn recordings_that_are_too_much_are_refused_with_what_would_fit() {
    let served = within(600);
    let rows = json!({"rows": ["messages[0]", "answer"], "heads": "all", "top_keys": 1024});
    let body = |n: usize| json!({"messages": user(&"word ".repeat(150)), "max_tokens": 900, "n": n, "palimpsest": rows});
    let refused = |body: Value, param: &str, remedy: &str| {
        let refused = served.chat(body);
        let error = &refused.json["error"];
        assert_eq!((refused.status, &error["code"]), (400, &json!("memory_exceeded")), "{error}");
        assert_eq!(error["param"], param);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("MiB") && message.contains(remedy), "{message}");
        assert_eq!(held(&served), 0.0);
    };
    // Not even one of them fits.
    refused(body(100), "palimpsest.top_keys", "fewer keys");
    let mut few = body(100);
    few["max_tokens"] = json!(40);
    few["palimpsest"]["rows"] = json!(["answer"]);
    refused(few, "n", "choices at most");
    served.chat(json!({"messages": user("Who?"), "max_tokens": 2, "palimpsest": rows})).ok();
    assert_eq!(held(&served), 0.0);
}

#[test]
fn a_recording_that_has_to_wait_is_told_to_come_again_and_not_to_be_smaller_than_fits() {
    let served = within(600);
    let rows = json!({"rows": ["answer"], "heads": "all", "top_keys": 1024});
    let body = |n: usize| json!({"messages": user("Who?"), "max_tokens": 40, "n": n, "palimpsest": rows});
    // As many choices as fit an idle server.
    let never = served.chat(body(100));
    let message = never.json["error"]["message"].as_str().unwrap().to_owned();
    let most = message.strip_suffix(" choices at most").and_then(|text| text.rsplit(' ').next()).unwrap();
    // Another client sends a body.
    let sent = vec![b' '; 30 << 20];
    let mut client = TcpStream::connect(served.address).unwrap();
    let length = sent.len() + 1;
    write!(client, "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n").unwrap();
    client.write_all(&sent).unwrap();
    let full = served.chat(body(most.parse().unwrap()));
    let error = &full.json["error"];
    assert_eq!((full.status, &error["code"]), (429, &json!("memory_full")), "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("try again later") && !message.contains("at most"), "{message}");
    drop(client);
    assert_eq!(held(&served), 0.0);
}

#[test]
fn bodies_that_are_being_received_are_counted_and_given_back() {
    let served = within(600);
    let room = served.metric("palimpsest_memory_requests_room_bytes");
    assert!((96.0 * 1048576.0..256.0 * 1048576.0).contains(&room), "{room}");
    // Clients that send most of a body and wait.
    let most = vec![b' '; 30 << 20];
    let mut clients = Vec::new();
    for _ in 0..(room as usize / most.len() + 1) {
        let mut client = TcpStream::connect(served.address).unwrap();
        let length = most.len() + 100;
        write!(client, "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n")
            .unwrap();
        // The last of them is rejected while it sends.
        let _ = client.write_all(&most);
        clients.push(client);
    }
    let used = served.metric("palimpsest_memory_requests_bytes");
    assert!(used > room / 2.0 && used <= room, "{used} of {room}");
    // Rejected while it sends, so the connection may be reset.
    let mut client = TcpStream::connect(served.address).unwrap();
    let length = most.len();
    write!(
        client,
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    )
    .unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
    let (mut reply, mut sent, mut buffer) = (Vec::new(), 0, [0; 4096]);
    while reply.is_empty() && sent < length {
        sent += client.write(&most[sent..length.min(sent + (1 << 20))]).unwrap_or(length);
        let read = client.read(&mut buffer).unwrap_or(0);
        reply.extend_from_slice(&buffer[..read]);
    }
    let reply = String::from_utf8_lossy(&reply).to_lowercase();
    assert!(reply.contains(" 429 ") && reply.contains("retry-after"), "{reply:?} after {sent} bytes");
    // Small requests are served meanwhile.
    served.chat(json!({"messages": user("Who?"), "max_tokens": 2})).ok();
    drop(clients);
    assert_eq!(held(&served), 0.0);
}

#[test]
fn metrics_tell_what_is_resident_planned_and_kept() {
    let served = within(600);
    served.chat(json!({"messages": user("Who?"), "max_tokens": 2})).ok();
    let value = |name: &str| served.metric(&format!("palimpsest_memory_{name}_bytes"));
    assert!(value("planned") <= 600.0 * 1048576.0 && value("planned") > 400.0 * 1048576.0);
    assert!(value("kept") > 0.0 && value("kept") < value("planned"));
    if cfg!(target_os = "linux") {
        assert!(value("resident") > 1048576.0);
    }
    let Value::String(text) = served.get("/metrics").ok() else { panic!("metrics are text") };
    assert!(text.contains("# TYPE palimpsest_memory_resident_bytes gauge") || !cfg!(target_os = "linux"));
}

#[test]
fn a_memory_that_cannot_hold_the_model_is_refused_with_remedies() {
    let path = fixture("llama-tiny");
    let serving = Serving { memory: Some(100 << 20), ..Serving::default() };
    let options = LocalOptions { serving: Some(serving), ..LocalOptions::default() };
    let Err(error) = LocalModel::open(&ModelFiles::at(&path).unwrap(), &options) else {
        panic!("it does not fit")
    };
    let message = error.to_string();
    assert!(
        message.contains("--memory 100MiB") && message.contains("What would fit: --memory "),
        "{message}"
    );
}
