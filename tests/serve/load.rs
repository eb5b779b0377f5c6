//! Many clients, disconnects, and shutdown.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Served, Setting, fixture, serve, serve_path, user};

const LONG: usize = 7000;

fn long() -> Value {
    json!({"messages": user("Go on for ever"), "max_tokens": LONG, "temperature": 0})
}

fn short(question: &str) -> Value {
    json!({"messages": user(question), "max_tokens": 6, "temperature": 0})
}

fn patient(queue: usize) -> Served {
    serve_path(&fixture("llama-tiny"), Setting { context: 8192, queue, ..Setting::default() })
}

/// Waits until no request is served.
fn idle(served: &Served) {
    let begun = Instant::now();
    while served.metric("palimpsest_requests_under_way") > 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "a place is never given back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn clients_that_ask_at_once_get_what_each_gets_alone() {
    let served = serve("llama-tiny");
    let questions = ["Who?", "Where is it?", "When was that, do you think?", "Why"];
    let alone: Vec<Value> =
        questions.iter().map(|q| serve("llama-tiny").chat(short(q)).ok()["choices"].clone()).collect();
    std::thread::scope(|scope| {
        for (question, alone) in questions.iter().zip(&alone) {
            let served = &served;
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(served.chat(short(question)).ok()["choices"], *alone);
                }
            });
        }
    });
    idle(&served);
    assert_eq!(served.metric("palimpsest_generated_tokens_total"), 72.0);
}

#[test]
fn a_client_that_goes_frees_its_place_and_the_model() {
    let served = patient(1);
    // In the middle of a stream.
    let mut frames = served.stream("/v1/chat/completions", long());
    assert!(frames.by_ref().take(3).count() == 3);
    drop(frames);
    idle(&served);
    // During a non-streamed answer.
    let body = {
        let mut body = long();
        body["model"] = "llama-tiny".into();
        body.to_string()
    };
    let mut client = TcpStream::connect(served.address).unwrap();
    under_way(&served, &mut client, &body, "");
    drop(client);
    idle(&served);
    // Half a body holds no slot, and its client may disconnect.
    let mut client = TcpStream::connect(served.address).unwrap();
    write!(
        client,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n{{\"mod"
    )
    .unwrap();
    let expected = serve("llama-tiny").chat(short("Who?")).ok();
    let after = served.chat(short("Who?")).ok();
    assert_eq!(after["choices"], expected["choices"]);
    drop(client);
    assert!(served.metric("palimpsest_requests_cancelled_total") >= 2.0);
    assert_eq!(
        served.metric("palimpsest_completion_seconds_count"),
        1.0,
        "nothing that was cancelled was finished"
    );
}

/// Sends a chat and more bytes behind it; returns once it is admitted.
fn under_way(served: &Served, client: &mut TcpStream, body: &str, more: &str) {
    let head = format!("host: localhost\r\ncontent-length: {}", body.len());
    write!(client, "POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n{body}{more}").unwrap();
    let begun = Instant::now();
    while served.metric("palimpsest_requests_under_way") < 1.0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is never admitted");
    }
}

#[test]
fn a_client_that_goes_is_noticed_although_bytes_follow_its_request() {
    let served = patient(1);
    let health = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut body = long();
    body["model"] = "llama-tiny".into();
    let body = body.to_string();
    let mut gone = 0.0;
    for (more, unread) in [("\r\n", false), (health, false), ("\r\n", true)] {
        let mut client = TcpStream::connect(served.address).unwrap();
        if unread {
            // Closing a socket that holds bytes sends RST in place of FIN.
            client.write_all(health.as_bytes()).unwrap();
            client.peek(&mut [0]).unwrap();
        }
        let begun = Instant::now();
        under_way(&served, &mut client, &body, more);
        drop(client);
        idle(&served);
        gone += 1.0;
        while served.metric("palimpsest_requests_cancelled_total") < gone {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "it was answered to the end: {more:?}, {unread}"
            );
        }
    }
    // Both of a client that stays are answered.
    let mut client = TcpStream::connect(served.address).unwrap();
    let body = json!({"model": "llama-tiny", "messages": user("Who?"), "max_tokens": 300}).to_string();
    let length = body.len();
    write!(client, "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}{health}")
        .unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut replies = String::new();
    client.read_to_string(&mut replies).unwrap();
    assert_eq!(replies.matches("HTTP/1.1 200 OK").count(), 2, "{replies}");
    assert!(replies.ends_with("{\"status\":\"ok\"}"), "{replies}");
}

#[test]
fn newcomers_are_told_of_the_end_while_answers_are_under_way() {
    let mut served = patient(2);
    let mut frames = served.stream("/v1/chat/completions", long());
    frames.next().unwrap();
    served.stop.store(true, Ordering::Relaxed);
    let ask = |request: &str, body: &str| {
        let (mut client, length) = (TcpStream::connect(served.address).unwrap(), body.len());
        let head = format!("host: localhost\r\nconnection: close\r\ncontent-length: {length}");
        let mut reply = String::new();
        // One that came before the stop may be closed.
        let _ = write!(client, "{request} HTTP/1.1\r\n{head}\r\n\r\n{body}");
        let _ = client.read_to_string(&mut reply);
        reply
    };
    let begun = Instant::now();
    while !ask("GET /ready", "").starts_with("HTTP/1.1 503 ") {
        assert!(begun.elapsed() < Duration::from_secs(60), "it stays ready");
    }
    assert!(ask("GET /health", "").starts_with("HTTP/1.1 200 "));
    let mut body = short("Who?");
    body["model"] = "llama-tiny".into();
    let refused = ask("POST /v1/chat/completions", &body.to_string());
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("shutting_down"), "{refused}");
    drop(frames);
    served.end();
    assert!(TcpStream::connect(served.address).is_err(), "nobody listens any more");
}

#[test]
fn more_than_fit_are_told_to_come_again() {
    let served = patient(1);
    let mut frames = served.stream("/v1/chat/completions", long());
    frames.next().unwrap();
    let refused = served.chat(short("Who?"));
    assert_eq!((refused.status, &refused.json["error"]["code"]), (429, &json!("queue_full")));
    assert_eq!(refused.json["error"]["type"], "rate_limit_error");
    assert!(refused.retry_after.unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(served.get("/health").status, 200);
    drop(frames);
    idle(&served);
    served.chat(short("Who?")).ok();
}

#[test]
fn at_its_end_a_server_finishes_what_is_under_way_and_admits_nobody() {
    let mut served = serve("llama-tiny");
    let body = json!({"messages": user("Go on"), "max_tokens": 300, "temperature": 0});
    let expected = served.chat(body.clone()).ok();
    let mut frames = served.stream("/v1/chat/completions", body);
    let mut said = vec![frames.next().unwrap(), frames.next().unwrap()];
    served.stop.store(true, Ordering::Relaxed);
    said.extend(frames);
    assert_eq!(
        super::joined(&said, 0, "content").0,
        expected["choices"][0]["message"]["content"].as_str().unwrap()
    );
    served.end();
    assert!(TcpStream::connect(served.address).is_err(), "nobody listens any more");
}

#[test]
fn what_is_under_way_for_too_long_at_the_end_is_told_so() {
    let mut served = patient(2);
    let mut frames = served.stream("/v1/chat/completions", long());
    frames.next().unwrap();
    // A slow reader blocks nobody.
    let mut slow = TcpStream::connect(served.address).unwrap();
    let mut body = long();
    (body["model"], body["stream"]) = ("llama-tiny".into(), true.into());
    let (text, length) = (body.to_string(), body.to_string().len());
    write!(
        slow,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{text}"
    )
    .unwrap();
    let begun = Instant::now();
    served.end();
    assert!(begun.elapsed() < Duration::from_secs(60));
    let last = frames.last().unwrap();
    // It either finished in time or reports the shutdown.
    assert!(last == "[DONE]" || last["error"]["code"] == "shutting_down", "{last}");
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
}

#[test]
fn a_short_answer_does_not_wait_for_a_long_one_and_both_are_what_they_are_alone() {
    let alone = serve("llama-tiny").chat(short("Who?")).ok();
    let served = patient(4);
    let mut frames = served.stream("/v1/chat/completions", long());
    let mut said = vec![frames.next().unwrap(), frames.next().unwrap()];
    assert_eq!(served.chat(short("Who?")).ok()["choices"], alone["choices"]);
    assert_eq!(served.metric("palimpsest_sequences_running"), 1.0, "the long one goes on");
    said.extend(frames.by_ref().take(200));
    drop(frames);
    idle(&served);
    let text = |frames: &[Value]| -> String {
        let pieces = frames.iter().map(|f| f["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        pieces.collect()
    };
    let again = serve_path(&fixture("llama-tiny"), Setting { context: 8192, ..Setting::default() });
    let expected: Vec<Value> = again.stream("/v1/chat/completions", long()).take(said.len()).collect();
    assert_eq!(text(&said), text(&expected));
}

#[test]
fn choices_and_questions_about_one_text_read_it_once() {
    let served = serve("llama-tiny");
    let notes = "The fig tree stands by the well, and the well stands by the gate. ".repeat(12);
    let ask = |question: &str, n: usize| {
        let body = json!({
            "messages": user(&format!("{notes}{question}")), "max_tokens": 4, "temperature": 1, "n": n
        });
        served.chat(body).ok()
    };
    let first = ask("Where is the tree?", 5);
    let tokens = first["usage"]["prompt_tokens"].as_f64().unwrap();
    assert_eq!(first["choices"].as_array().unwrap().len(), 5);
    assert_eq!(served.metric("palimpsest_cache_miss_tokens_total"), tokens);
    let second = ask("And the gate?", 1);
    let found = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_f64().unwrap();
    assert!(found > 0.8 * tokens, "{found} of {tokens}");
    assert_eq!(served.metric("palimpsest_cache_hit_tokens_total"), found);
    assert!(served.metric("palimpsest_cache_tokens") > 0.8 * tokens);
    for gauge in ["sequences_running", "sequences_waiting", "requests_under_way"] {
        assert_eq!(served.metric(&format!("palimpsest_{gauge}")), 0.0, "{gauge}");
    }
}

#[test]
fn prompts_of_one_request_are_answered_together_and_told_in_order() {
    let served = serve("llama-tiny");
    let prompts: Vec<String> = (0..40).map(|i| format!("Number {i} comes")).collect();
    let ask = |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0});
        served.complete(body).ok()["choices"].clone()
    };
    let together = ask(json!(prompts));
    for (i, prompt) in prompts.iter().enumerate() {
        assert_eq!(together[i]["index"], i);
        assert_eq!(together[i]["text"], ask(json!(prompt))[0]["text"], "prompt {i}");
    }
}
