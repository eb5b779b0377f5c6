//! A long-running server: log, counters, answer limits, idle streams, pages of other origins.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Served, Setting, fixture, joined, serve, serve_path, user};

/// The program with flags.
pub struct Program {
    child: Child,
    pub url: String,
}

/// A failed test leaves no server behind.
impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    pub fn start(flags: &[&str]) -> Self {
        Self::of(&fixture("llama-tiny"), flags)
    }

    fn of(model: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
        command.args(["serve", model.to_str().unwrap(), "--port", "0"]).args(flags);
        Self::spawn(command)
    }

    pub fn spawn(mut command: Command) -> Self {
        command.env("PALIMPSEST_API_KEY", "").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        let url = said.split(" is served at ").nth(1).and_then(|rest| rest.split(", ").next()).unwrap();
        let url = url.trim_end_matches("/v1").to_owned();
        Program { child, url }
    }

    pub fn interrupt(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    }

    /// Exit code and stderr, once it has ended.
    pub fn ended(mut self) -> (Option<i32>, String) {
        let mut told = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        (self.child.wait().unwrap().code(), told)
    }

    /// Stops it and returns its stderr.
    pub fn end(self) -> String {
        self.interrupt();
        self.ended().1
    }

    pub fn post(&self, path: &str, body: &Value, id: &str) -> ureq::http::Response<ureq::Body> {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().new_agent();
        let request = agent.post(format!("{}{path}", self.url)).header("x-request-id", id);
        request.send(body.to_string()).unwrap()
    }
}

const SECRET: &str = "marmalade";

#[test]
fn a_request_is_a_line_of_the_log_without_its_texts() {
    let program = Program::start(&["--log", "json", "--slow", "0"]);
    let chat = "/v1/chat/completions";
    let model = json!("llama-tiny");
    let body = json!({"model": model, "messages": user(SECRET), "max_tokens": 5, "temperature": 0});
    let mut whole = program.post(chat, &body, "of-mine.1");
    assert_eq!(whole.headers()["x-request-id"], "of-mine.1");
    let reply: Value = serde_json::from_str(&whole.body_mut().read_to_string().unwrap()).unwrap();
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let stream = program.post(chat, &streamed, "two words");
    let own = stream.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert!(own.starts_with("req-"), "what is no name is replaced: {own}");
    stream.into_body().read_to_string().unwrap();
    let refused = program.post(chat, &json!({"model": SECRET, "messages": user("x")}), "third");
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["x-request-id"]),
        (404, &"third".parse().unwrap())
    );
    // One client disconnects in the middle.
    let mut long = streamed.clone();
    long["max_tokens"] = 1900.into();
    long["logit_bias"] = json!({"264": -100, "265": -100, "266": -100});
    let mut gone = program.post(chat, &long, "gone").into_body().into_reader();
    // The first frame has no token.
    gone.read_exact(&mut [0; 1500]).unwrap();
    drop(gone);
    std::thread::sleep(Duration::from_secs(1));
    let nowhere = program.post(&format!("/{SECRET}"), &json!({}), &"x".repeat(200));
    assert!(nowhere.headers()["x-request-id"].to_str().unwrap().starts_with("req-"));
    let told = program.end();
    assert!(!told.contains(SECRET), "{told}");
    let lines: Vec<Value> = told.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |id: &str| lines.iter().find(|line| line["id"] == id).unwrap_or_else(|| panic!("{id}: {told}"));
    assert_eq!(lines.len(), 5, "{told}");
    let first = of("of-mine.1");
    assert_eq!((&first["path"], &first["model"], &first["outcome"]), (&json!(chat), &model, &json!("ok")));
    assert_eq!(first["prompt_tokens"], reply["usage"]["prompt_tokens"]);
    assert_eq!(first["generated_tokens"], reply["usage"]["completion_tokens"]);
    assert_eq!(
        (&first["cached_tokens"], &first["slow"], &first["status"]),
        (&json!(0), &json!(true), &json!(200))
    );
    let seconds = ["queue_seconds", "first_token_seconds", "seconds"].map(|key| first[key].as_f64().unwrap());
    assert!(seconds.is_sorted() && seconds[0] >= 0.0, "{first}");
    let second = of(&own);
    assert_eq!(second["outcome"], "ok");
    assert!(
        second["cached_tokens"].as_u64().unwrap() > 0
            && second["generated_tokens"] == first["generated_tokens"]
    );
    assert_eq!(of("third")["outcome"], "refused:model_not_found");
    assert_eq!(of("gone")["outcome"], "cancelled", "{told}");
    assert!(of("gone")["generated_tokens"].as_u64().unwrap() > 0);
    assert_eq!(lines.last().unwrap()["path"], "other");
}

#[test]
fn the_log_is_text_unless_told_otherwise_and_may_be_off() {
    for (flags, lines) in [(&[][..], 1), (&["--log", "off"], 0)] {
        let program = Program::start(flags);
        let body = json!({"model": "llama-tiny", "prompt": SECRET, "max_tokens": 2});
        program.post("/v1/completions", &body, "this-one").into_body().read_to_string().unwrap();
        let told = program.end();
        assert_eq!(
            told.matches("this-one /v1/completions ok model=llama-tiny prompt=").count(),
            lines,
            "{told}"
        );
        assert!(!told.contains(SECRET) && !told.contains(" slow"), "{told}");
    }
}

#[test]
fn flags_that_cannot_be_are_refused_by_name() {
    for (flags, said) in [
        (&["--allow-origin", "localhost:3000"][..], "no origin"),
        (&["--allow-origin", "*"], "no origin"),
        (&["--allow-host", "http://a"], "no name of a host"),
        (&["--slow", "-1"], "number of seconds"),
        (&["--max-answer", "0"], "max-answer"),
        (&["--stop", "", "--stop", "x"], "an empty text alone"),
    ] {
        let flags: Vec<String> = match flags {
            ["--slow", value] => vec![format!("--slow={value}")],
            flags => flags.iter().map(|&flag| flag.to_owned()).collect(),
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
        let output = command.args(["serve", "llama-tiny"]).args(&flags).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && told.contains(said), "{flags:?}: {told}");
    }
}

#[test]
fn counters_agree_with_each_other_and_with_what_was_asked() {
    let served = serve("llama-tiny");
    let text = "The fig tree stands by the well, and the well stands by the gate. ".repeat(5);
    let body = json!({"messages": user(&text), "max_tokens": 6, "temperature": 0});
    let (mut prompts, mut generated) = (0.0, 0.0);
    for _ in 0..2 {
        let usage = served.chat(body.clone()).ok()["usage"].clone();
        prompts += usage["prompt_tokens"].as_f64().unwrap();
        generated += usage["completion_tokens"].as_f64().unwrap();
    }
    served.post("/v1/embeddings", json!({"input": ["a", "b"]})).ok();
    let metric = |name: &str| served.metric(&format!("palimpsest_{name}"));
    assert_eq!(metric("prompt_tokens_total"), prompts);
    assert_eq!(metric("cache_hit_tokens_total") + metric("cache_miss_tokens_total"), prompts);
    assert_eq!(metric("generated_tokens_total"), generated);
    assert_eq!(metric("embeddings_total"), 2.0);
    assert!(metric("embedding_tokens_total") >= 2.0);
    assert_eq!(metric("queue_seconds_count"), 2.0);
    assert_eq!(metric("time_to_first_token_seconds_count"), 2.0);
    assert_eq!(metric("time_between_tokens_seconds_count"), generated - 2.0);
    let Value::String(all) = served.get("/metrics").ok() else { panic!("metrics are text") };
    let version = env!("CARGO_PKG_VERSION");
    assert!(all.contains(&format!("palimpsest_build_info{{version=\"{version}\",model=\"llama-tiny\"}} 1")));
    assert!(!all.contains("reused"));
    // A disconnect is counted, and the read token counts still agree.
    assert_eq!(metric("requests_cancelled_total"), 0.0);
    let bias = json!({"264": -100, "265": -100, "266": -100});
    let long = json!({"messages": user("Go on and on."), "max_tokens": 1900, "logit_bias": bias});
    drop(served.stream("/v1/chat/completions", long).take(3).collect::<Vec<_>>());
    let begun = Instant::now();
    while metric("requests_cancelled_total") < 1.0 || metric("sequences_running") > 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
    let both = metric("cache_hit_tokens_total") + metric("cache_miss_tokens_total");
    assert_eq!(metric("prompt_tokens_total"), both);
}

fn raw(served: &Served, body: &Value) -> String {
    let response = served.send("/v1/chat/completions", body.to_string().as_bytes(), &[]);
    response.into_body().read_to_string().unwrap()
}

#[test]
fn a_stream_tells_how_far_its_prompt_is_where_it_was_asked_to() {
    let served = serve("llama-tiny");
    let text = "The fig tree stands by the well. ".repeat(10);
    let body = |palimpsest: Value| {
        json!({
            "messages": user(&text), "max_tokens": 3, "temperature": 0, "palimpsest": palimpsest,
            "stream_options": {"include_usage": true}
        })
    };
    let path = "/v1/chat/completions";
    let frames: Vec<Value> = served.stream(path, body(json!({"progress": true}))).collect();
    let told: Vec<&Value> = frames.iter().filter(|frame| frame["palimpsest"].is_object()).collect();
    let of = frames[frames.len() - 2]["usage"]["prompt_tokens"].clone();
    let read: Vec<u64> =
        told.iter().map(|frame| frame["palimpsest"]["progress"]["read"].as_u64().unwrap()).collect();
    assert!(read.len() > 2 && read.is_sorted() && json!(read[read.len() - 1]) == of, "{read:?}");
    for frame in &told {
        assert_eq!((&frame["choices"], &frame["palimpsest"]["progress"]["of"]), (&json!([]), &of));
        assert!(frame["id"].is_string() && frame["object"] == "chat.completion.chunk");
    }
    assert!(
        frames.iter().all(|frame| frame["choices"][0].get("palimpsest").is_none()),
        "no rows were asked for"
    );
    // With rows, and for completions.
    let both = json!({"progress": true, "rows": ["last"]});
    let frames: Vec<Value> = served.stream(path, body(both)).collect();
    assert!(frames.iter().any(|frame| frame["choices"][0]["palimpsest"]["mass"].is_array()));
    assert!(frames.iter().any(|frame| frame["palimpsest"]["progress"].is_object()));
    let completion = json!({"prompt": text, "max_tokens": 2, "palimpsest": {"progress": true}});
    let frames: Vec<Value> = served.stream("/v1/completions", completion).collect();
    assert!(frames.iter().any(|frame| frame["palimpsest"]["progress"].is_object()));
    let silent: Vec<Value> = served.stream(path, body(json!({"progress": false}))).collect();
    assert!(silent.iter().all(|frame| frame.get("palimpsest").is_none()));
    served.chat(json!({"messages": user("x"), "max_tokens": 2, "palimpsest": {"progress": true}})).ok();
}

#[test]
fn a_stream_that_waits_says_that_it_lives() {
    let setting = Setting { keep_alive: Duration::from_millis(1), ..Setting::default() };
    let served = serve_path(&fixture("llama-tiny"), setting);
    let long = "The fig tree stands by the well. ".repeat(60);
    let body = json!({"model": "llama-tiny", "messages": user(&long), "max_tokens": 2, "stream": true, "temperature": 0});
    let text = raw(&served, &body);
    assert!(text.contains("\n\n: "), "{text}");
    assert!(
        text.split("\n\n")
            .all(|event| event.is_empty() || event.starts_with("data: ") || event.starts_with(": "))
    );
    // The client sees the same stream.
    let frames: Vec<Value> = served.stream("/v1/chat/completions", body.clone()).collect();
    let mut whole = body;
    whole["stream"] = false.into();
    let reply = served.chat(whole).ok();
    assert_eq!(joined(&frames, 0, "content").0, reply["choices"][0]["message"]["content"].as_str().unwrap());
    assert!(
        !raw(
            &serve("llama-tiny"),
            &json!({
                "model": "llama-tiny", "messages": user("x"), "max_tokens": 2, "stream": true
            })
        )
        .contains("\n\n: ")
    );
}

#[test]
fn an_answer_without_a_limit_ends_and_one_with_a_limit_gets_it() {
    let setting = Setting { max_answer: 20, ..Setting::default() };
    let served = serve_path(&fixture("llama-tiny"), setting);
    // Nothing ends it.
    let bias = json!({"264": -100, "265": -100, "266": -100});
    let ask = |most: Value| {
        let body = json!({
            "messages": user("Go on."), "temperature": 0, "logit_bias": bias, "max_completion_tokens": most,
            "palimpsest": {"rows": ["each"]}
        });
        let reply = served.chat(body).ok();
        (reply["usage"]["completion_tokens"].clone(), reply["choices"][0]["finish_reason"].clone())
    };
    assert_eq!(ask(Value::Null), (json!(20), json!("length")));
    assert_eq!(ask(json!(45)), (json!(45), json!("length")));
    let completion = served.complete(json!({"prompt": "x", "logit_bias": bias, "temperature": 0})).ok();
    assert_eq!(completion["usage"]["completion_tokens"], 16);
}

#[test]
fn strings_of_the_operator_end_chats_and_a_base_model_has_some_and_is_told_of() {
    let root = tempfile::tempdir().unwrap();
    let base = root.path().join("base");
    std::fs::create_dir(&base).unwrap();
    for file in ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(fixture("llama-tiny").join(file), base.join(file)).unwrap();
    }
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(fixture("llama-tiny").join("tokenizer_config.json")).unwrap())
            .unwrap();
    config.as_object_mut().unwrap().remove("chat_template");
    std::fs::write(base.join("tokenizer_config.json"), config.to_string()).unwrap();
    let body = json!({"model": "base", "messages": user("Hello"), "max_tokens": 30, "temperature": 0});
    let ask = |flags: &[&str], body: &Value| {
        let program = Program::of(&base, &[flags, &["--log", "off"]].concat());
        let text = program.post("/v1/chat/completions", body, "a").into_body().read_to_string().unwrap();
        let reply: Value = serde_json::from_str(&text).unwrap();
        let choice = &reply["choices"][0];
        let content = choice["message"]["content"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned();
        (content, choice["finish_reason"].clone(), program.end())
    };
    let (whole, _, told) = ask(&[], &body);
    assert!(told.contains("base has no chat template") && told.contains("--stop"), "{told}");
    // Two stop strings, of which one occurs.
    let half = whole.char_indices().nth(whole.chars().count() / 2).unwrap().0;
    let stop: String = whole[half..].chars().take(3).collect();
    let (cut, reason, _) = ask(&["--stop", "never to come", "--stop", &stop], &body);
    assert_eq!((cut.as_str(), &reason), (whole[..whole.find(&stop).unwrap()].trim(), &json!("stop")));
    // The request's own are added.
    let early: String = whole.chars().take(2).collect();
    let mut both = body.clone();
    both["stop"] = early.into();
    assert_eq!(ask(&["--stop", &stop], &both).0, "");
}
