//! Spans of requests reach a collector, and a collector that does not answer holds nobody up.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Served, Setting, fixture, serve_path, user};

/// Far more than a batch waits for further spans.
const SOON: Duration = Duration::from_secs(20);

struct Sent {
    head: String,
    body: Value,
}

/// A request's head and body; `None` where the connection has ended.
fn read(reader: &mut BufReader<TcpStream>) -> Option<Sent> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap()];
    reader.read_exact(&mut body).ok()?;
    Some(Sent { head, body: serde_json::from_slice(&body).unwrap() })
}

/// A collector that takes whatever is sent.
fn collector() -> (String, Receiver<Sent>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (told, heard) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            while let Some(sent) = read(&mut reader) {
                reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
                if told.send(sent).is_err() {
                    return;
                }
            }
        }
    });
    (address, heard)
}

fn served(otlp: &str) -> Served {
    serve_path(&fixture("llama-tiny"), Setting { otlp: Some(otlp.to_owned()), ..Setting::default() })
}

/// The next span, and what its request said beside it.
fn span(heard: &Receiver<Sent>) -> (Sent, Value) {
    let sent = heard.recv_timeout(SOON).unwrap();
    let span = sent.body["resourceSpans"][0]["scopeSpans"][0]["spans"][0].clone();
    (sent, span)
}

fn attribute(span: &Value, key: &str) -> Value {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("{key} of {span}"));
    found["value"].as_object().unwrap().values().next().unwrap().clone()
}

fn listed(span: &Value, key: &str) -> Vec<Value> {
    let values = attribute(span, key)["values"].clone();
    values
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one.as_object().unwrap().values().next().unwrap().clone())
        .collect()
}

#[test]
fn a_request_is_a_span_of_the_genai_conventions_with_its_influence() {
    let (address, heard) = collector();
    let served = served(&address);
    let body = json!({
        "model": "llama-tiny", "messages": user("Which tree is left?"), "temperature": 0, "max_completion_tokens": 5,
        "documents": [
            {"title": "one", "text": "The fig tree stands by the well."},
            {"title": "two", "text": "The olive tree was felled in March."}
        ],
        "palimpsest": {"cite": true, "causes": true}
    });
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let given = format!("00-{trace}-{parent}-01");
    let headers = [("traceparent", given.as_str()), ("x-request-id", "ours")];
    let reply = served.post_as("/v1/chat/completions", &body, &headers).ok();
    let (sent, found) = span(&heard);
    assert!(sent.head.starts_with("POST /v1/traces "), "{}", sent.head);
    let resource = json!({"attributes": sent.body["resourceSpans"][0]["resource"]["attributes"]});
    assert_eq!(attribute(&resource, "service.name"), "palimpsest");
    assert_eq!((&found["name"], &found["kind"]), (&json!("chat llama-tiny"), &json!(2)));
    assert_eq!((&found["traceId"], &found["parentSpanId"]), (&json!(trace), &json!(parent)));
    let time = |key: &str| found[key].as_str().unwrap().parse::<u128>().unwrap();
    assert!(time("startTimeUnixNano") < time("endTimeUnixNano"));
    let usage = &reply["usage"];
    for (key, expected) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.provider.name", json!("palimpsest")),
        ("gen_ai.request.model", json!("llama-tiny")),
        ("gen_ai.request.temperature", json!(0.0)),
        ("gen_ai.response.id", reply["id"].clone()),
        ("gen_ai.usage.input_tokens", usage["prompt_tokens"].to_string().into()),
        ("gen_ai.usage.output_tokens", usage["completion_tokens"].to_string().into()),
        ("palimpsest.request.id", json!("ours")),
    ] {
        assert_eq!(attribute(&found, key), expected, "{key}");
    }
    assert_eq!(listed(&found, "gen_ai.response.finish_reasons"), [json!("length")]);
    // Influence: the numbers of the reply.
    let causes = reply["choices"][0]["palimpsest"]["causes"]["spans"].as_array().unwrap();
    let drops: Vec<Value> = causes.iter().map(|one| one["log_p_drop"].clone()).collect();
    assert_eq!(listed(&found, "palimpsest.causes.log_p_drop"), drops);
    let largest = causes
        .iter()
        .max_by(|a, b| a["log_p_drop"].as_f64().unwrap().total_cmp(&b["log_p_drop"].as_f64().unwrap()));
    assert_eq!(attribute(&found, "palimpsest.causes.largest.span"), largest.unwrap()["label"]);
    assert_eq!(listed(&found, "palimpsest.mass.spans"), [json!("one"), json!("two")]);
    assert!(listed(&found, "palimpsest.mass.answer").iter().all(|mass| mass.as_f64().unwrap() > 0.0));
    let text = found.to_string();
    assert!(!text.contains("fig") && !text.contains("Which tree"), "no texts: {text}");

    // One that is refused has an error, one of a stream the same attributes, and one whose caller records nothing is not told.
    let ignored = [("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")];
    served.post_as("/v1/chat/completions", &body, &ignored).ok();
    served.chat(json!({"messages": []})).refused(400);
    let (_, refused) = span(&heard);
    assert_eq!(attribute(&refused, "http.response.status_code"), "400");
    assert!(attribute(&refused, "error.type").as_str().unwrap().starts_with("refused"), "{refused}");
    assert_eq!(refused.get("status"), None, "it is the client's");
    assert!(served.stream("/v1/chat/completions", body).count() > 3);
    let (_, streamed) = span(&heard);
    assert_eq!(listed(&streamed, "palimpsest.causes.log_p_drop"), drops);
}

#[test]
fn a_collector_that_is_down_or_slow_holds_no_request_up() {
    // Nobody listens here, and here somebody listens who never answers.
    let down = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [down, silent.local_addr().unwrap()] {
        let mut served = served(&format!("http://{address}"));
        let before = Instant::now();
        for _ in 0..20 {
            served.complete(json!({"prompt": "The fig", "max_tokens": 1})).ok();
        }
        // One of them would wait five seconds, where the collector is waited for.
        assert!(before.elapsed() < Duration::from_secs(5), "{address}: {:?}", before.elapsed());
        let before = Instant::now();
        served.end();
        assert!(before.elapsed() < Duration::from_secs(10), "{address}: {:?}", before.elapsed());
    }
}
