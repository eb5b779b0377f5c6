//! The endpoint client against a scripted local HTTP server.
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palimpsest::benchmarks::stale::STALE;
use palimpsest::case::{Case, Probe};
use palimpsest::chat::endpoint::{Endpoint, Key, Patience};
use palimpsest::chat::{ChatError, ChatModel, Message, MessageRole, Reply, Sampling, StopReason};
use palimpsest::memory::Memory;
use palimpsest::runs::context_budget::Dropped;
use palimpsest::runs::plan::Selection;
use palimpsest::runs::rows::NoAnswer;
use palimpsest::runs::runner::run;
use palimpsest::runs::store::RunStore;
use palimpsest::runs::subject::{ChatPrompt, ChatSubject};

use crate::eval::{cases, header};
use crate::judge::said;

mod at_once;
mod keys;
mod replies;
mod schemas;
mod thoughts;

/// A server that gives each connection the next scripted reply and keeps the requests.
pub struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

pub enum Scripted {
    /// Status line, extra headers, body.
    Reply(&'static str, &'static str, String),
    /// Half of this body, with or without Content-Length, then the connection breaks.
    Half(String, bool),
    /// Accepts the request and never answers.
    Silence,
    /// Closes at once.
    Hangup,
}

pub fn ok(content: &str, finish: &str) -> Scripted {
    let body = serde_json::json!({
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
        "service_tier": "a tier of this provider's own"
    });
    Scripted::Reply("200 OK", "", body.to_string())
}

pub fn status(line: &'static str, body: &str) -> Scripted {
    Scripted::Reply(line, "", body.to_owned())
}

pub fn serve(script: Vec<Scripted>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for scripted in script {
            let Ok((mut stream, _)) = listener.accept() else { return };
            if matches!(scripted, Scripted::Hangup) {
                seen.lock().unwrap().push(String::new());
                continue;
            }
            let request = read_request(&mut stream);
            seen.lock().unwrap().push(request);
            match scripted {
                Scripted::Reply(line, headers, body) => {
                    let length = body.len();
                    let text = format!(
                        "HTTP/1.1 {line}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
                    );
                    let _ = stream.write_all(text.as_bytes());
                }
                Scripted::Half(body, with_length) => {
                    let length = match with_length {
                        true => format!("Content-Length: {}\r\n", body.len()),
                        false => String::new(),
                    };
                    let half = &body[..body.len() / 2];
                    let text = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{length}\r\n{half}");
                    let _ = stream.write_all(text.as_bytes());
                }
                _ => open.push(stream),
            }
        }
        // Keeps the client waiting.
        loop {
            std::thread::park();
        }
    });
    Server { port, requests }
}

pub fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        match stream.read(&mut chunk) {
            Ok(n) if n > 0 => bytes.extend_from_slice(&chunk[..n]),
            _ => return text,
        }
    }
}

impl Server {
    pub fn endpoint(&self, retries: usize) -> Endpoint {
        keyed(&self.address(), KEY, patience(retries)).unwrap()
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/v1#some/model", self.port)
    }

    pub fn seen(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

const KEY: &str = "sk-very-secret";
const SAMPLING: Sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 3, max_new_tokens: 32 };

fn patience(retries: usize) -> Patience {
    Patience {
        timeout: Duration::from_secs(20),
        retries,
        first_delay: Duration::from_millis(1),
        longest_delay: Duration::from_millis(20),
    }
}

fn hello() -> Vec<Message> {
    vec![
        Message { role: MessageRole::System, content: "be brief".to_owned() },
        Message { role: MessageRole::User, content: "hello".to_owned() },
    ]
}

/// The error of one call; it must never contain the key.
fn refusal(server: &Server, retries: usize) -> String {
    let error = server.endpoint(retries).reply(&hello(), &SAMPLING).unwrap_err().to_string();
    assert!(!error.contains(KEY), "{error}");
    assert!(!error.contains('\n'), "{error}");
    assert!(error.contains(&format!("http://127.0.0.1:{}/v1/chat/completions", server.port)), "{error}");
    error
}

#[test]
fn a_reply_is_read_and_the_request_is_what_servers_expect() {
    let server = serve(vec![ok("hi there", "stop")]);
    let mut endpoint = server.endpoint(0);
    let reply = endpoint.reply(&hello(), &SAMPLING).unwrap();
    assert_eq!((reply.text.as_str(), reply.stop), ("hi there", StopReason::EndOfTurn));
    assert_eq!((reply.prompt_tokens, reply.completion_tokens), (Some(11), Some(3)));
    assert_eq!(endpoint.name(), format!("http://127.0.0.1:{}/v1#some/model", server.port));
    let seen = server.seen();
    let (head, body) = seen[0].split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1"), "{head}");
    assert!(head.to_lowercase().contains(&format!("authorization: bearer {KEY}")), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({
            "model": "some/model",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
            "temperature": 0.0, "top_p": 1.0, "seed": 3, "max_tokens": 32
        })
    );
}

#[test]
fn a_reply_cut_at_the_limit_says_so() {
    let server = serve(vec![ok("hi th", "length")]);
    assert_eq!(server.endpoint(0).reply(&hello(), &SAMPLING).unwrap().stop, StopReason::MaxNewTokens);
}

#[test]
fn rate_limits_server_errors_and_broken_connections_are_tried_again() {
    let server = serve(vec![
        Scripted::Reply("429 Too Many Requests", "Retry-After: 1\r\n", "<html>slow down</html>".to_owned()),
        status("500 Internal Server Error", "oops"),
        status("503 Service Unavailable", "{\"error\": {\"message\": \"loading\"}}"),
        Scripted::Hangup,
        ok("at last", "stop"),
    ]);
    assert_eq!(server.endpoint(4).reply(&hello(), &SAMPLING).unwrap().text, "at last");
    assert_eq!(server.seen().len(), 5);
}

#[test]
fn a_reply_that_breaks_in_the_middle_is_asked_for_again() {
    let Scripted::Reply(_, _, body) = ok("whole", "stop") else { unreachable!() };
    let halves = || [Scripted::Half(body.clone(), true), Scripted::Half(body.clone(), false)];
    let server = serve(halves().into_iter().chain([ok("whole", "stop")]).collect());
    assert_eq!(server.endpoint(2).reply(&hello(), &SAMPLING).unwrap().text, "whole");
    assert_eq!(server.seen().len(), 3);
    for half in halves() {
        let error = refusal(&serve(vec![half]), 0);
        assert!(error.contains("the connection broke"), "{error}");
    }
}

#[test]
fn a_refusal_is_the_reply_and_marked_as_one() {
    let message =
        serde_json::json!({"role": "assistant", "content": null, "refusal": "I cannot help with that."});
    let body = serde_json::json!({"choices": [{"message": message, "finish_reason": "stop"}]}).to_string();
    let reply = serve(vec![status("200 OK", &body)]).endpoint(0).reply(&hello(), &SAMPLING).unwrap();
    assert_eq!((reply.text.as_str(), reply.stop), ("I cannot help with that.", StopReason::Refused));
}

#[test]
fn an_answer_that_the_servers_filter_withheld_is_a_refusal() {
    for content in [serde_json::Value::Null, "".into()] {
        let message = serde_json::json!({"role": "assistant", "content": content});
        let body = serde_json::json!({"choices": [{"message": message, "finish_reason": "content_filter"}]});
        let reply = serve(vec![status("200 OK", &body.to_string())]).endpoint(0).reply(&hello(), &SAMPLING);
        let reply = reply.unwrap();
        assert_eq!(reply.stop, StopReason::Refused);
        assert!(reply.text.contains("content filter withheld"), "{}", reply.text);
    }
    // Text that the filter let through is an answer.
    let reply =
        serve(vec![ok("half of it", "content_filter")]).endpoint(0).reply(&hello(), &SAMPLING).unwrap();
    assert_eq!((reply.text.as_str(), reply.stop), ("half of it", StopReason::EndOfTurn));
}

#[test]
fn content_in_parts_is_one_text_and_thoughts_among_them_are_kept_apart() {
    let text = |text: &str| serde_json::json!({"type": "text", "text": text});
    for (thinking, thought) in [
        (serde_json::json!([text("Rome? "), text("No.")]), Some("Rome? No.")),
        (serde_json::json!("Rome?"), Some("Rome?")),
        (serde_json::json!([]), None),
    ] {
        let parts =
            [serde_json::json!({"type": "thinking", "thinking": thinking}), text("In "), text("Oslo.")];
        let message = serde_json::json!({"role": "assistant", "content": parts});
        let body = serde_json::json!({"choices": [{"message": message, "finish_reason": "stop"}]});
        let reply = serve(vec![status("200 OK", &body.to_string())]).endpoint(0).reply(&hello(), &SAMPLING);
        let reply = reply.unwrap();
        assert_eq!((reply.text.as_str(), reply.thought.as_deref()), ("In Oslo.", thought));
    }
}

#[test]
fn patience_ends_and_the_last_error_is_told() {
    let server = serve((0..9).map(|_| status("502 Bad Gateway", "<html>no upstream</html>")).collect());
    let error = refusal(&server, 2);
    assert!(error.contains("502") && error.contains("no upstream"), "{error}");
    assert_eq!(server.seen().len(), 3);
}

#[test]
fn refusals_are_not_tried_again_and_name_the_remedy() {
    for (line, body, remedy) in [
        ("401 Unauthorized", format!("bad key {KEY}"), "--key 127.0.0.1=VARIABLE"),
        ("404 Not Found", "no such model".to_owned(), "/v1"),
        ("400 Bad Request", "{\"error\":{\"message\":\"too long\"}}".to_owned(), "too long"),
        ("307 Temporary Redirect", String::new(), "redirect"),
    ] {
        let server =
            serve(vec![Scripted::Reply(line, "Location: http://elsewhere/\r\n", body), ok("never", "stop")]);
        let error = refusal(&server, 5);
        assert!(error.contains(&line[..3]) && error.contains(remedy), "{error}");
        assert_eq!(server.seen().len(), 1, "{line}");
    }
}

#[test]
fn garbage_is_an_error_and_not_an_answer() {
    for body in [
        "<html>welcome</html>",
        "{\"choices\": []}",
        "{\"choices\": [{\"message\": {\"content\": null}}]}",
        "",
    ] {
        let server = serve(vec![status("200 OK", body)]);
        let error = refusal(&server, 3);
        assert!(error.contains("cannot be used"), "{error}");
    }
}

#[test]
fn a_model_that_wants_the_newer_limit_gets_it() {
    let server = serve(vec![
        status(
            "400 Bad Request",
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        ),
        ok("fine", "stop"),
    ]);
    assert_eq!(server.endpoint(0).reply(&hello(), &SAMPLING).unwrap().text, "fine");
    assert!(server.seen()[1].contains("\"max_completion_tokens\":32"));
    assert!(!server.seen()[1].contains("\"max_tokens\""));
}

#[test]
fn a_silent_server_times_out() {
    let server = serve(vec![Scripted::Silence, Scripted::Silence]);
    let patience = Patience { timeout: Duration::from_millis(200), ..patience(1) };
    let mut endpoint = keyed(&server.address(), KEY, patience).unwrap();
    let error = endpoint.reply(&hello(), &SAMPLING).unwrap_err().to_string();
    assert!(error.contains("no reply within"), "{error}");
    assert_eq!(server.seen().len(), 2);
}

#[test]
fn a_port_that_refuses_is_one_clear_line() {
    // Bound and released: a port without a listener.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("http://127.0.0.1:{port}/v1#m");
    let mut endpoint = keyed(&address, KEY, patience(1)).unwrap();
    for error in [endpoint.reply(&hello(), &SAMPLING).map(|_| ()), endpoint.check_reachable()] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no connection") && error.contains("refused"), "{error}");
        assert!(error.contains("is the server running") && !error.contains('\n'), "{error}");
    }
    // Any HTTP reply means that the server is reachable.
    let server = serve(vec![status("404 Not Found", "nothing here")]);
    assert!(server.endpoint(0).check_reachable().is_ok());
}

#[test]
fn addresses_that_name_no_model_or_hold_a_password_are_refused() {
    for (address, said) in [
        ("http://127.0.0.1:8000/v1", "names no model"),
        ("http://127.0.0.1:8000/v1#", "names no model"),
        ("ftp://host/v1#m", "no http or https"),
        ("host:8000/v1#m", "no http or https"),
        ("http://#m", "does not parse"),
        ("http://me:hunter2@host/v1#m", "password"),
        ("http://host/v1?key=hunter2#m", "query"),
    ] {
        let error = keyed(address, KEY, patience(0)).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("#model"), "{address}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_key_that_no_header_can_carry_is_refused_without_being_shown() {
    let error = keyed("http://host/v1#m", "two\nlines", patience(0)).unwrap_err().to_string();
    assert!(error.contains("characters") && !error.contains("lines"), "{error}");
    let endpoint = keyed("http://host/v1#m", KEY, patience(0)).unwrap();
    assert!(!format!("{endpoint:?}").contains(KEY));
}

fn keyed(address: &str, key: &str, patience: Patience) -> Result<Endpoint, ChatError> {
    Endpoint::new(address, Some(Key::new("the key", key)?), patience)
}

fn shown((): &(), _: &Case, probe: &Probe) -> Result<ChatPrompt, NoAnswer> {
    let messages = vec![Message { role: MessageRole::User, content: probe.query.clone() }];
    Ok(ChatPrompt { messages, dropped: Dropped { segments: vec![0], ..Dropped::default() } })
}

#[test]
fn an_endpoint_under_test_fills_a_run_and_stops_it_when_it_is_gone() {
    let all = cases(2);
    let root = tempfile::tempdir().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let plan = Selection::of_all(&STALE).plan(&all).unwrap();
    let mut store = RunStore::open_or_create(root.path(), &header(None), plan).unwrap();
    let gone = serve((0..3).map(|_| status("401 Unauthorized", "no")).collect());
    let mut endpoint = gone.endpoint(0);
    let mut subject = ChatSubject::new(vec![&mut endpoint], SAMPLING, |_| Ok(()), shown);
    let error =
        run(&mut store, all.iter().cloned().map(Ok), &mut Memory::new(&STALE, 0), &mut subject, &stop, false)
            .unwrap_err()
            .to_string();
    assert!(error.contains("401") && error.contains("resumes"), "{error}");
    assert_eq!(store.answers().len(), 3);

    let back = serve((0..6).map(|i| ok(&format!("answer {i}"), "stop")).collect());
    let mut endpoint = back.endpoint(0);
    let mut subject = ChatSubject::new(vec![&mut endpoint], SAMPLING, |_| Ok(()), shown);
    let summary =
        run(&mut store, all.iter().cloned().map(Ok), &mut Memory::new(&STALE, 0), &mut subject, &stop, false)
            .unwrap();
    assert_eq!((summary.done, summary.errors), (6, 0));
    let rows = store.answers();
    assert_eq!(rows[5].answer.as_deref(), Some("answer 5"));
    assert_eq!((rows[5].attention.as_ref(), rows[5].prompt_tokens), (None, Some(11)));
    // The key is in no file.
    for entry in std::fs::read_dir(root.path()).unwrap().flatten().filter(|e| e.path().is_file()) {
        assert!(!String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).contains(KEY));
    }
}

/// One of three connections to a model; none replies before all three are used.
struct Line(Arc<std::sync::Barrier>);

impl ChatModel for Line {
    fn name(&self) -> String {
        "lines".to_owned()
    }

    fn reply(&mut self, messages: &[Message], _: &Sampling) -> Result<Reply, ChatError> {
        self.0.wait();
        let text = format!("to {}", messages[0].content);
        Ok(said(text))
    }
}

#[test]
fn questions_of_a_case_are_asked_at_once_and_their_rows_are_in_order() {
    let all = cases(2);
    let root = tempfile::tempdir().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let plan = Selection::of_all(&STALE).plan(&all).unwrap();
    let mut store = RunStore::open_or_create(root.path(), &header(None), plan).unwrap();
    let barrier = Arc::new(std::sync::Barrier::new(3));
    let mut lines = [0; 3].map(|_| Line(Arc::clone(&barrier)));
    let lines = lines.iter_mut().map(|line| line as &mut (dyn ChatModel + Send)).collect();
    let mut subject = ChatSubject::new(lines, SAMPLING, |_| Ok(()), shown);
    let summary =
        run(&mut store, all.iter().cloned().map(Ok), &mut Memory::new(&STALE, 0), &mut subject, &stop, false)
            .unwrap();
    assert_eq!((summary.done, summary.errors), (6, 0));
    let got: Vec<(String, Option<String>)> =
        store.answers().into_iter().map(|row| (row.probe, row.answer)).collect();
    let probes = all.iter().flat_map(|case| &case.probes);
    let expected: Vec<_> =
        probes.map(|probe| (probe.id.clone(), Some(format!("to {}", probe.query)))).collect();
    assert_eq!(got, expected);
}

/// An over-long prompt fails its own row; the rest of the run continues.
#[test]
fn prompts_that_are_too_long_for_a_server_do_not_stop_a_run() {
    let all = cases(2);
    let root = tempfile::tempdir().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let plan = Selection::of_all(&STALE).plan(&all).unwrap();
    let mut store = RunStore::open_or_create(root.path(), &header(None), plan).unwrap();
    let body = r#"{"error": {"message": "too long", "code": "context_length_exceeded"}}"#;
    let mut script: Vec<Scripted> = (0..5).map(|_| status("400 Bad Request", body)).collect();
    script.push(ok("fine", "stop"));
    let server = serve(script);
    let mut endpoint = server.endpoint(0);
    let mut subject = ChatSubject::new(vec![&mut endpoint], SAMPLING, |_| Ok(()), shown);
    let summary =
        run(&mut store, all.iter().cloned().map(Ok), &mut Memory::new(&STALE, 0), &mut subject, &stop, false)
            .unwrap();
    assert_eq!((summary.done, summary.errors), (1, 5));
    let fits: Vec<bool> = store.answers().iter().map(|row| row.fits()).collect();
    assert_eq!(fits, [false, false, false, false, false, true]);
}
