//! Several keys: their limits and log lines; and who reuses whose cached prompts.

use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::operated::Program;
use super::{Reply, Served, Setting, fixture, serve, serve_path, user};
use crate::cli::{command, ended};

const CHAT: &str = "/v1/chat/completions";

const KEYS: &str = r#"
    [[key]]
    name = "alice"
    key = "the-key-of-alice"
    places = 1

    [[key]]
    name = "bob"
    key = "the-key-of-bob"

    [[key]]
    name = "carol"
    key = "the-key-of-carol"
    rate = 1
"#;

fn keyed(share_prefixes: bool) -> Served {
    serve_path(
        &fixture("llama-tiny"),
        Setting { context: 8192, keys: KEYS, share_prefixes, ..Setting::default() },
    )
}

fn key(name: &str) -> String {
    format!("Bearer the-key-of-{name}")
}

fn ask(served: &Served, name: &str, path: &str, body: &Value) -> Reply {
    served.post_as(path, body, &[("authorization", &key(name))])
}

fn get(served: &Served, name: &str, path: &str) -> (u16, String) {
    let mut reply = served.agent.get(served.url(path)).header("authorization", key(name)).call().unwrap();
    (reply.status().as_u16(), reply.body_mut().read_to_string().unwrap())
}

fn chat(salt: Value) -> Value {
    let text = "The fig tree stands by the well, and the well stands by the gate. ".repeat(4);
    json!({"model": "llama-tiny", "messages": user(&text), "max_tokens": 3, "temperature": 0, "cache_salt": salt})
}

fn cached(reply: &Value) -> u64 {
    reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn a_prompt_is_reused_with_its_key_and_its_salt_only_unless_keys_share() {
    for share in [false, true] {
        let served = keyed(share);
        let reply = |name: &str, salt: Value| ask(&served, name, CHAT, &chat(salt)).ok();
        let first = reply("alice", Value::Null);
        let whole = cached(&reply("alice", Value::Null));
        assert!(cached(&first) == 0 && whole > 40, "{whole}");
        let other = if share { whole } else { 0 };
        for (name, salt, expected) in [
            ("bob", json!(null), other),
            ("bob", json!(null), whole),
            ("alice", json!("pepper"), 0),
            ("alice", json!("pepper"), whole),
            ("alice", json!("peppe"), 0),
            ("bob", json!("pepper"), other),
            ("alice", json!(null), whole),
        ] {
            let reply = reply(name, salt.clone());
            assert_eq!(cached(&reply), expected, "{name}, {salt}, shared: {share}");
            assert_eq!(reply["choices"], first["choices"], "{name}, {salt}");
        }
    }
}

#[test]
fn salts_part_prompts_of_a_server_without_keys_at_both_paths() {
    let served = serve("llama-tiny");
    let completion = |salt: Value| {
        let prompt = "The fig tree stands by the well. ".repeat(6);
        cached(&served.complete(json!({"prompt": prompt, "max_tokens": 1, "cache_salt": salt})).ok())
    };
    assert_eq!((completion(json!("a")), completion(json!("b")), completion(Value::Null)), (0, 0, 0));
    assert!(completion(json!("a")) > 40 && completion(Value::Null) > 40);
    let longest = "x".repeat(256);
    assert_eq!(
        (cached(&served.chat(chat(json!(longest))).ok()), cached(&served.chat(chat(json!("x"))).ok())),
        (0, 0)
    );
}

#[test]
fn scores_and_effects_of_a_salt_read_their_own_prompts() {
    let served = serve("llama-tiny");
    let part = |text: &str, span: &str| json!({"type": "text", "text": text, "span": span});
    let parts = json!([
        part(&"The fig tree stands by the well. ".repeat(3), "one"),
        part(&"The olive tree was felled in March, they say. ".repeat(3), "two"),
        part("Which tree is left?", "question")
    ]);
    let counters =
        || ["hit", "miss"].map(|kind| served.metric(&format!("palimpsest_cache_{kind}_tokens_total")));
    // Tokens found and read by a request, its neutral request and its causes.
    let ask = |salt: &str| {
        let before = counters();
        let body = json!({
            "messages": [{"role": "user", "content": parts}], "temperature": 0, "max_completion_tokens": 4,
            "cache_salt": salt,
            "palimpsest": {"score": true, "causes": {"spans": ["one", "two"], "controls": 1}}
        });
        let reply = served.chat(body).ok();
        assert_eq!(reply["choices"][0]["palimpsest"]["score"]["answer"].as_array().unwrap().len(), 2);
        let after = counters();
        [after[0] - before[0], after[1] - before[1]]
    };
    let first = ask("a");
    assert!(first[0] > 0.0, "documents are read once");
    let again = ask("a");
    assert!(again[1] < first[1], "{again:?} after {first:?}");
    assert_eq!(ask("b"), first, "another salt finds no more than the first one");
}

#[test]
fn a_key_has_its_places_and_its_rate_and_others_are_served() {
    let served = keyed(false);
    let bias = json!({"264": -100, "265": -100, "266": -100});
    let long = json!({
        "model": "llama-tiny", "messages": user("Go on for ever"), "max_tokens": 7000, "stream": true, "logit_bias": bias
    });
    let stream = served.send(CHAT, long.to_string().as_bytes(), &[("authorization", &key("alice"))]);
    let mut stream = stream.into_body().into_reader();
    stream.read_exact(&mut [0; 100]).unwrap();
    let full = ask(&served, "alice", CHAT, &chat(Value::Null));
    let wait = full.retry_after.clone().unwrap().parse::<u64>().unwrap();
    assert_eq!((full.refused(429)["code"].as_str(), wait >= 1), (Some("places_full"), true));
    let text = json!({"prompt": "x"});
    assert_eq!(ask(&served, "alice", "/tokenize", &text).refused(429)["code"], "places_full");
    assert_eq!(get(&served, "alice", "/v1/models").0, 200, "what is no work needs no place");
    ask(&served, "bob", CHAT, &chat(Value::Null)).ok();
    drop(stream);
    let begun = Instant::now();
    while ask(&served, "alice", "/tokenize", &text).status == 429 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the place is never given back");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A place is free as soon as its reply is there.
    (0..5).for_each(|_| drop(ask(&served, "alice", CHAT, &chat(Value::Null)).ok()));

    assert_eq!(get(&served, "carol", "/tokenize").0, 405, "what is no work does not count");
    ask(&served, "carol", "/tokenize", &text).ok();
    let limited = ask(&served, "carol", "/tokenize", &text);
    let wait = limited.retry_after.clone().unwrap().parse::<u64>().unwrap();
    assert!((1..=61).contains(&wait), "{wait}");
    let error = limited.refused(429);
    assert_eq!((&error["code"], &error["type"]), (&json!("rate_limited"), &json!("rate_limit_error")));
    ask(&served, "bob", "/tokenize", &text).ok();
    let (status, metrics) = get(&served, "carol", "/metrics");
    assert_eq!(status, 200);
    let counted =
        |name: &str| metrics.contains(&format!("palimpsest_requests_by_key_total{{key=\"{name}\"}} "));
    assert!(counted("alice") && counted("bob") && counted("carol"), "{metrics}");
}

/// A file of keys.
fn written(dir: &Path, text: &str, mode: u32) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join("keys.toml");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn post(program: &Program, key: Option<&str>, body: &Value, id: &str) -> u16 {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().new_agent();
    let mut request = agent.post(format!("{}{CHAT}", program.url)).header("x-request-id", id);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let reply = request.send(body.to_string()).unwrap();
    let status = reply.status().as_u16();
    reply.into_body().read_to_string().unwrap();
    status
}

#[test]
fn a_line_of_the_log_names_key_and_peer_of_every_request_refused_ones_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path(), KEYS, 0o644);
    let keys = ["--keys", file.to_str().unwrap()];
    let program = Program::start(&[&keys[..], &["--log", "json"]].concat());
    let secret = "marmalade";
    let body =
        json!({"model": "llama-tiny", "messages": user(secret), "max_tokens": 2, "cache_salt": secret});
    for (id, key, status) in [
        ("right", Some("the-key-of-carol"), 200),
        ("beyond", Some("the-key-of-carol"), 429),
        ("wrong", Some("the-key-of-nobody"), 401),
        ("without", None, 401),
    ] {
        assert_eq!(post(&program, key, &body, id), status, "{id}");
    }
    let told = program.end();
    assert!(!told.contains(secret) && !told.contains("the-key-of"), "{told}");
    assert!(told.contains("others than its owner can read the keys"), "{told}");
    let lines: Vec<Value> = told.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for (id, key, outcome, status) in [
        ("right", json!("carol"), "ok", 200),
        ("beyond", json!("carol"), "refused:rate_limited", 429),
        ("wrong", Value::Null, "refused:invalid_api_key", 401),
        ("without", Value::Null, "refused:invalid_api_key", 401),
    ] {
        let line = lines.iter().find(|line| line["id"] == id).unwrap_or_else(|| panic!("{id}: {told}"));
        assert_eq!(
            (&line["key"], &line["outcome"], &line["status"]),
            (&key, &json!(outcome), &json!(status))
        );
        assert!(line["peer"].as_str().unwrap().contains("127.0.0.1"), "{line}");
    }

    let program =
        Program::start(&[&keys[..1], &[written(dir.path(), KEYS, 0o600).to_str().unwrap()]].concat());
    assert_eq!(post(&program, Some("the-key-of-bob"), &body, "audit-1"), 200);
    assert_eq!(post(&program, None, &body, "audit-2"), 401);
    let told = program.end();
    let line = |id: &str| told.lines().find(|line| line.contains(id)).unwrap().to_owned();
    assert!(line(" audit-1 ").contains(" key=bob peer=127.0.0.1"), "{told}");
    assert!(line(" audit-2 ").contains("refused:invalid_api_key key=- peer=127.0.0.1"), "{told}");
    assert!(!told.contains("than its owner"), "{told}");
}

#[test]
fn wrong_keys_are_refused_by_name_before_a_model_is_opened_or_a_port_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let right = written(dir.path(), KEYS, 0o600);
    let right = right.to_str().unwrap();
    let wrong = dir.path().join("wrong.toml");
    std::fs::write(&wrong, KEYS.replace("rate = 1", "rate = \"fast\"")).unwrap();
    let wrong = wrong.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (flags, variable, code, said) in [
        (&["--keys", wrong][..], "", 1, &["wrong.toml", "`key[2].rate` is \"fast\""][..]),
        (&["--keys", "no/such/file"], "", 1, &["no/such/file"]),
        (&["--keys", right, "--api-key-file", right], "", 2, &["--keys", "--api-key-file"]),
        (&["--keys", right], "a-key", 2, &["--keys", "PALIMPSEST_API_KEY"]),
        // The port is taken, which is not what is said.
        (&["--host", "0.0.0.0", "--port", &port], "", 2, &["needs a key", "--keys FILE"]),
    ] {
        let mut serve = command(["serve", "a"]);
        serve.args(flags).env("PALIMPSEST_API_KEY", variable);
        let refused = ended(serve);
        assert_eq!(refused.code, Some(code), "{flags:?}: {}", refused.err);
        assert!(said.iter().all(|said| refused.err.contains(said)), "{flags:?}: {}", refused.err);
    }
}
