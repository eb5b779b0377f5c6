//! An endpoint that errs by design: each row's prompt names what its attempts get, so that replies depend on requests alone.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::endpoint::read_request;

pub struct Erring {
    port: u16,
    /// Nothing is refused any more.
    pub healed: Arc<AtomicBool>,
    pub asked: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Shared {
    healed: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    busy: Arc<Mutex<BTreeSet<String>>>,
}

impl Erring {
    /// Answers after a delay, until the test's process ends.
    pub fn start(delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (healed, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let shared = Shared { healed: healed.clone(), asked: asked.clone(), busy: Arc::default() };
        std::thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                let shared = shared.clone();
                std::thread::spawn(move || answer(stream, delay, &shared));
            }
        });
        Erring { port, healed, asked }
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/v1#scripted", self.port)
    }
}

fn answer(mut stream: TcpStream, delay: Duration, shared: &Shared) {
    let request = read_request(&mut stream);
    let Some((_, body)) = request.split_once("\r\n\r\n") else { return };
    let Ok(body) = serde_json::from_str::<Value>(body) else {
        // The question whether anybody is there.
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    };
    std::thread::sleep(delay);
    shared.asked.fetch_add(1, Ordering::Relaxed);
    let prompt = body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
    let (status, body) = reply(prompt, &body, shared);
    let text =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    // A killed build reads nothing.
    let _ = stream.write_all(text.as_bytes());
}

fn said(content: &str, finish: &str) -> (&'static str, String) {
    let message = json!({"role": "assistant", "content": content});
    let choices = json!([{"index": 0, "message": message, "finish_reason": finish}]);
    (
        "200 OK",
        json!({"choices": choices, "usage": {"prompt_tokens": 10, "completion_tokens": 5}}).to_string(),
    )
}

const REFUSAL: (&str, &str) = ("400 Bad Request", r#"{"error": {"message": "this server refuses"}}"#);

fn refusal() -> (&'static str, String) {
    (REFUSAL.0, REFUSAL.1.to_owned())
}

/// `Judge NAME: FACT`, `Line of NAME`, or `Row NAME: WORD WORD ... / ATTEMPT`.
fn reply(prompt: &str, request: &Value, shared: &Shared) -> (&'static str, String) {
    if let Some(rest) = prompt.strip_prefix("Judge ") {
        let (judge, fact) = rest.split_once(": ").unwrap();
        return match (judge, fact) {
            (_, fact) if fact.contains("late") && !shared.healed.load(Ordering::Relaxed) => refusal(),
            ("plausible", fact) if fact.contains("undecided") => said("Hard to say.", "stop"),
            ("implicit", fact) if fact.contains("contradict") => said(r#"{"verdict": "no"}"#, "stop"),
            (_, fact) if fact.contains("odd") => said(r#"{"verdict": "no"}"#, "stop"),
            _ => said(r#"{"verdict": "yes"}"#, "stop"),
        };
    }
    if let Some(name) = prompt.strip_prefix("Line of ") {
        return said(&format!("{name} says {}", request["seed"]), "stop");
    }
    let (name, rest) = prompt.strip_prefix("Row ").unwrap().split_once(": ").unwrap();
    let (words, attempt) = rest.split_once(" / ").unwrap();
    let words: Vec<&str> = words.split(' ').collect();
    let word = words.get(attempt.parse::<usize>().unwrap()).or(words.last()).copied().unwrap();
    let fact = format!("{name} {word}");
    let fine = json!({"fact": fact, "value": "tea"}).to_string();
    match word {
        "refuse" if !shared.healed.load(Ordering::Relaxed) => refusal(),
        "busy" if shared.busy.lock().unwrap().insert(prompt.to_owned()) => {
            ("503 Service Unavailable", "{}".to_owned())
        }
        "prose" => said(&format!("Of course!\n```json\n{fine}\n```\nAnything {{else}}?"), "stop"),
        "broken" => said(&fine[..12], "stop"),
        "wrong" => said(r#"{"fact": 7, "value": "tea"}"#, "stop"),
        "twice" => said(&format!("{fine} or {{\"fact\": \"other\", \"value\": \"milk\"}}"), "stop"),
        "repeat" => said(r#"{"fact": "tea", "value": "Tea"}"#, "stop"),
        "filter" => said("", "content_filter"),
        "cut" => said(&fine[..12], "length"),
        "empty" => said("", "stop"),
        _ => said(&fine, "stop"),
    }
}
