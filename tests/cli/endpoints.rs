//! Answers and verdicts from an endpoint.
use std::sync::{Arc, Mutex};

use super::*;

/// A local server with one fixed reply. Its thread ends with the test process.
pub(super) fn server(content: &str) -> String {
    listening_server(content).0
}

/// Same, and records the request bodies.
fn listening_server(content: &str) -> (String, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (seen, content) = (Arc::clone(&requests), content.to_owned());
    let address = answering_server(move |request| {
        seen.lock().unwrap().push(request);
        content.clone()
    });
    (address, requests)
}

/// A server whose reply is a function of the request body.
pub(super) fn answering_server(content: impl Fn(String) -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1#stub", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let content = content(read_request(&mut stream));
            let reply = serde_json::json!({
                "choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]
            })
            .to_string();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{reply}",
                reply.len()
            );
        }
    });
    address
}

/// Reads a whole request (closing earlier would reset the connection) and returns its body.
fn read_request(stream: &mut impl Read) -> String {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(n) if n > 0 => request.extend_from_slice(&piece[..n]),
            _ => return String::new(),
        }
        let Some(head) = request.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
        let length =
            text.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if request.len() >= head + 4 + length.unwrap_or(0) {
            return String::from_utf8_lossy(&request[head + 4..]).into_owned();
        }
    }
}

#[test]
fn an_endpoint_answers_and_another_one_judges() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let mut answering =
        command(["run", "--data", "sample", "--sessions", "3", "--limit", "2", "--model", &server("fine")]);
    answering.arg("--out").arg(&dir);
    let answered = ended(answering);
    assert_eq!(answered.code, Some(0), "{}", answered.err);
    let verdicts = r#"{"SR": {"correct": true, "reason": "it is"}, "PR": {"correct": false, "reason": "no"},
        "IPA": {"correct": true, "reason": "yes"}}"#;
    let mut judging = command(["judge", "--judge", &server(verdicts)]);
    judging.arg(&dir).env("PALIMPSEST_API_KEY", "sk-secret-of-this-test");
    let judged = ended(judging);
    assert_eq!(judged.code, Some(0), "{}", judged.err);
    let folder = RunFolder::read(&dir).unwrap();
    assert!(
        folder.answers.iter().all(|row| row.answer.as_deref() == Some("fine") && row.attention.is_none())
    );
    let correct: Vec<_> = folder.verdicts.iter().map(|row| row.correct).collect();
    assert_eq!(correct, [Some(true), Some(false), Some(true), Some(true), Some(false), Some(true)]);
    for (name, bytes) in files(&dir) {
        let secret = b"sk-secret";
        assert!(!bytes.windows(secret.len()).any(|w| w == secret), "{}", name.display());
    }
}

/// A run of one question against a server that answers with the key `shown`; the requests, and what the command said.
fn keyed_run(flags: &[&str], set: &[(&str, &str)], shown: &str) -> (Vec<String>, Ended, tempfile::TempDir) {
    let server = crate::endpoint::serve((0..9).map(|_| crate::endpoint::ok(shown, "stop")).collect());
    let root = tempfile::tempdir().unwrap();
    let mut running =
        command(["run", "--data", "sample", "--sessions", "3", "--only", "T1/SR", "--limit", "1"]);
    running.args(["--no-attention", "--model", &server.address()]).args(flags);
    running.arg("--out").arg(root.path().join("run"));
    running.env_remove("PALIMPSEST_API_KEY").env_remove("OPENAI_API_KEY").envs(set.iter().copied());
    let ended = ended(running);
    (server.seen(), ended, root)
}

#[test]
fn a_key_goes_where_its_flag_says_and_what_repeats_it_is_kept_without_it() {
    let key = "sk-secret-of-this-test";
    let (requests, ended, root) = keyed_run(
        &["--key", "127.0.0.1=MY_KEY"],
        &[("MY_KEY", key), ("PALIMPSEST_API_KEY", "another-key")],
        key,
    );
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let bearer = format!("authorization: bearer {key}");
    assert!(requests.len() > 1 && requests.iter().all(|request| request.to_lowercase().contains(&bearer)));
    let folder = RunFolder::read(&root.path().join("run")).unwrap();
    assert_eq!(folder.answers[0].answer.as_deref(), Some("[key]"));
    for (name, bytes) in files(root.path()) {
        assert!(!bytes.windows(key.len()).any(|window| window == key.as_bytes()), "{}", name.display());
    }

    // On this machine PALIMPSEST_API_KEY needs no flag, and OPENAI_API_KEY does.
    let (requests, ended, _root) = keyed_run(&[], &[("PALIMPSEST_API_KEY", key)], "fine");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(requests.iter().all(|request| request.to_lowercase().contains(&bearer)));
    let (requests, ended, _root) = keyed_run(&[], &[("OPENAI_API_KEY", key)], "fine");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(
        requests.len() > 1
            && requests.iter().all(|request| !request.to_lowercase().contains("authorization"))
    );
}

#[test]
fn a_key_that_is_not_set_or_has_no_server_ends_the_command_before_any_request() {
    for (flags, part) in [
        (
            &["--key", "127.0.0.1=NO_SUCH_KEY"][..],
            "--key 127.0.0.1=...: this environment variable is not set",
        ),
        (&["--key", "127.0.0.1=sk12345678"], "not the key itself"),
        (&["--key", "127.0.0.1=HOME", "--key", "127.0.0.1=PATH"], "--key names 127.0.0.1 twice"),
        (&["--key", "127.0.0.1:9=HOME"], "calls no endpoint there"),
        (&["--key", "sk-12345678"], "HOST=VARIABLE"),
        (&["--memory", "x=true", "--memory-model", "http://far.invalid/v1#m"], "--key-over-http"),
        (
            &[
                "--memory",
                "x=true",
                "--memory-model",
                "https://far.invalid/v1#m",
                "--memory-embedder",
                "https://b.invalid/v1#m",
            ],
            "--key b.invalid=PALIMPSEST_API_KEY",
        ),
    ] {
        let (requests, ended, _root) = keyed_run(flags, &[("PALIMPSEST_API_KEY", "a-long-key")], "fine");
        assert!(ended.code == Some(1) && ended.err.contains(part), "{part}: {}", ended.err);
        assert!(requests.is_empty() && !ended.err.contains("12345678"), "{}", ended.err);
    }
    let mut judging =
        command(["judge", "--judge", "https://far.invalid/v1#m", "--key", "far.invalid=NO_SUCH_KEY", "."]);
    judging.env_remove("NO_SUCH_KEY");
    assert!(ended(judging).err.contains("this environment variable is not set"));
}

#[test]
fn an_address_with_a_password_is_refused_without_it_however_its_scheme_is_written() {
    let root = tempfile::tempdir().unwrap();
    for scheme in ["http", "HTTP", "Https"] {
        let mut running = command(["run", "--data", "sample", "--limit", "1", "--model"]);
        running
            .arg(format!("{scheme}://me:hunter2@far.invalid/v1#m"))
            .arg("--out")
            .arg(root.path().join("run"));
        let refused = ended(running);
        assert_eq!(refused.code, Some(1), "{}", refused.err);
        assert!(refused.err.contains("a user, a password"), "{}", refused.err);
        assert!(!refused.err.contains("hunter2") && !refused.out.contains("hunter2"), "{}", refused.err);
    }
}

#[test]
fn repeated_calls_of_an_endpoint_need_no_temperature_and_differ_in_their_seed_alone() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let (address, requests) = listening_server("fine");
    let repeated = |more: &[&str]| {
        let mut command =
            command(["run", "--data", "sample", "--sessions", "3", "--only", "SR", "--repeat", "3"]);
        command.args(["--sample", "2", "--model", &address]).arg("--out").arg(&dir).args(more);
        ended(command)
    };
    let done = repeated(&[]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let folder = RunFolder::read(&dir).unwrap();
    let ids: Vec<&str> = folder.plan.iter().map(|case| case.case.as_str()).collect();
    let of = |kind: &str| folder.plan.iter().filter(|case| case.labels["type"] == kind).count();
    assert_eq!((ids.len(), of("T1"), of("T2"), folder.answers.len()), (4, 2, 2, 12));
    let stored: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("run.json")).unwrap()).unwrap();
    assert_eq!(stored["identity"]["sample"], serde_json::json!({"cases": 2, "seed": 0}));

    // The bodies of its three calls, by case.
    let bodies: Vec<serde_json::Value> = (requests.lock().unwrap().iter())
        .filter(|body| !body.is_empty())
        .map(|body| serde_json::from_str(body).unwrap())
        .collect();
    assert_eq!(bodies.len(), 12);
    for calls in bodies.chunks(3) {
        let seeds: Vec<u64> = calls.iter().map(|body| body["seed"].as_u64().unwrap()).collect();
        assert_eq!(seeds, [0, 1, 2]);
        let without: Vec<serde_json::Value> = calls
            .iter()
            .map(|body| {
                let mut body = body.clone();
                body.as_object_mut().unwrap().remove("seed");
                body
            })
            .collect();
        assert!(without[1..].iter().all(|body| *body == without[0]), "the context is held fixed");
    }

    // The case sample is part of the run's identity; the sampling seed does not change it.
    let refused = repeated(&["--sample-seed", "1"]);
    assert!(
        refused.code == Some(1) && refused.err.contains("sample.seed: 0 in the folder"),
        "{}",
        refused.err
    );
    let other = root.path().join("other");
    let mut seeded = command(["run", "--data", "sample", "--sessions", "3", "--only", "SR", "--sample", "2"]);
    seeded.args(["--model", &address, "--temperature", "0.7", "--seed", "5"]).arg("--out").arg(&other);
    assert_eq!(ended(seeded).code, Some(0));
    let again: Vec<String> =
        RunFolder::read(&other).unwrap().plan.into_iter().map(|case| case.case).collect();
    assert_eq!(again, ids);
    let too_many = palimpsest([
        "run",
        "--data",
        "sample",
        "--sample",
        "11",
        "--model",
        &address,
        "--out",
        root.path().join("no").to_str().unwrap(),
    ]);
    assert!(too_many.code == Some(1) && too_many.err.contains("give at most 10"), "{}", too_many.err);
    // Rejected without sampling: a greedy local model repeats itself.
    let alone = palimpsest(["run", "--data", "sample", "--sample-seed", "1", "--out", "no"]);
    assert!(alone.code == Some(2) && alone.err.contains("--sample"), "{}", alone.err);
    let greedy = run(&root.path().join("greedy"), &["--repeat", "2"]);
    assert!(greedy.code == Some(2) && greedy.err.contains("--temperature 0"), "{}", greedy.err);
}

#[test]
fn a_port_that_refuses_is_said_at_once_and_leaves_no_folder() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    // Bound and released: a port without a listener.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("http://127.0.0.1:{port}/v1#m");
    let mut answering = command(["run", "--data", "sample", "--model", &address, "--out"]);
    answering.arg(&dir);
    let refused = ended(answering);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("is the server running"), "{}", refused.err);
    assert_eq!(refused.err.lines().count(), 1, "{}", refused.err);
    assert!(!dir.exists());
}

/// A run of one case answered by a server.
fn answered(dir: &Path) {
    let mut answering = command(["run", "--data", "sample", "--sessions", "3", "--limit", "1"]);
    answering.arg("--model").arg(server("fine")).arg("--out").arg(dir);
    assert_eq!(ended(answering).code, Some(0));
}

#[test]
fn a_judges_own_template_and_the_place_of_its_reasons_are_used_and_identify_its_verdicts() {
    let root = tempfile::tempdir().unwrap();
    let (dir, prompts) = (root.path().join("run"), root.path().join("prompts"));
    answered(&dir);
    std::fs::create_dir(&prompts).unwrap();
    let judge = server(r#"{"SR": true, "PR": false, "IPA": true}"#);
    let judged = |flags: &[&OsStr]| {
        let mut judging = command(["judge", "--judge", &judge]);
        judging.arg(&dir).args(flags);
        ended(judging)
    };
    let digests = || -> Vec<String> {
        let rows = RunFolder::read(&dir).unwrap().verdicts;
        let mut digests: Vec<String> = rows.into_iter().map(|row| row.rubric.unwrap()).collect();
        digests.dedup();
        digests
    };
    let with_prompts = [OsStr::new("--prompts"), prompts.as_os_str()];
    let missing = judged(&with_prompts);
    assert_eq!(missing.code, Some(1));
    assert!(missing.err.contains("judge.j2"), "{}", missing.err);
    std::fs::write(prompts.join("judge.j2"), "Judge {{ odl }}.").unwrap();
    let unknown = judged(&with_prompts);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.err.contains("odl") && unknown.err.contains("explanation"), "{}", unknown.err);
    assert!(digests().is_empty());
    std::fs::write(prompts.join("judge.j2"), "Judge {{ old }}.").unwrap();
    // The template defines the key order, and this one does not.
    let without_effect =
        judged(&[&with_prompts[..], &[OsStr::new("--reasons"), OsStr::new("none")]].concat());
    assert_eq!(without_effect.code, Some(2));
    assert!(without_effect.err.contains("--reasons has no effect"), "{}", without_effect.err);
    for flags in [&with_prompts[..], &[], &[OsStr::new("--reasons"), OsStr::new("last")]] {
        let done = judged(flags);
        assert_eq!(done.code, Some(0), "{}", done.err);
        assert!(done.out.contains("3 of 3 verdicts (0 from before, 3 new, 0 errors)"), "{}", done.out);
    }
    let three = digests();
    assert_eq!(three.len(), 3, "{three:?}");
    assert!(judged(&[OsStr::new("--reasons"), OsStr::new("first")]).out.contains("(3 from before"));

    // A run only prints where the file is used.
    let mut running = command(["run", "--data", "sample", "--sessions", "3", "--limit", "1", "--prompts"]);
    running.arg(&prompts).arg("--model").arg(server("fine")).arg("--out").arg(root.path().join("again"));
    let again = ended(running);
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.err.contains("judge --prompts"), "{}", again.err);
    let identity = |dir: &Path| RunFolder::read(dir).unwrap().header.identity.prompts;
    assert_eq!(identity(&dir), identity(&root.path().join("again")));
}

#[test]
fn errors_among_rows_have_an_exit_code_of_their_own_and_a_judge_nobody_can_read_is_left() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    answered(&dir);
    let judged = |content: &str, flags: &[&str]| {
        let mut judging = command(["judge", "--judge", &server(content)]);
        judging.arg(&dir).args(flags);
        ended(judging)
    };
    let partly = judged(r#"{"SR": true, "PR": false}"#, &[]);
    assert_eq!(partly.code, Some(3), "{}{}", partly.out, partly.err);
    assert!(partly.out.contains("2 of 3 verdicts (0 from before, 2 new, 1 errors)"), "{}", partly.out);
    let last = partly.err.lines().last().unwrap();
    assert!(
        last.starts_with("error: 1 of 3 verdicts ended as errors") && last.contains("verdicts.jsonl"),
        "{last}"
    );
    // No progress line per verdict by default.
    assert!(!partly.err.contains("verdicts 1/3"), "{}", partly.err);
    let verbose = judged(r#"{"SR": true, "PR": false, "IPA": true}"#, &["--verbose", "--parallel", "1"]);
    assert_eq!(verbose.code, Some(0), "{}", verbose.err);
    assert!(verbose.err.contains("verdicts 1/3"), "{}", verbose.err);

    let mute = judged("I had rather talk about tea.", &["--give-up-after", "1"]);
    assert_eq!(mute.code, Some(1), "{}", mute.err);
    assert!(mute.err.contains("talk about tea") && mute.err.contains("--give-up-after 0"), "{}", mute.err);
    let local = judged_locally(&dir);
    assert_eq!(local.code, Some(2), "{}", local.err);
    assert!(local.err.contains("--parallel 2 is for endpoints"), "{}", local.err);
}

fn judged_locally(dir: &Path) -> Ended {
    let mut judging = command(["judge", "--parallel", "2", "--judge"]);
    judging.arg(format!("local:{}", model().display())).arg(dir);
    ended(judging)
}

#[test]
fn an_endpoint_is_sent_what_ends_an_answer() {
    let root = tempfile::tempdir().unwrap();
    let (address, requests) = listening_server("fine");
    let asked = |name: &str, flags: &[&str]| {
        let mut running = command(["run", "--data", "sample", "--sessions", "3", "--limit", "1"]);
        running.args(["--model", &address]).arg("--out").arg(root.path().join(name)).args(flags);
        let done = ended(running);
        (done.code, done.err, RunFolder::read(&root.path().join(name)).map(|run| run.header.identity.stop))
    };
    let (code, err, stop) = asked("with", &["--stop", "### User", "--stop", "\n\n"]);
    assert_eq!((code, stop.unwrap()), (Some(0), vec!["### User".to_owned(), "\n\n".to_owned()]), "{err}");
    let sent = |nth: usize| -> serde_json::Value {
        let bodies = requests.lock().unwrap();
        let bodies: Vec<&String> = bodies.iter().filter(|body| body.contains("messages")).collect();
        serde_json::from_str(bodies[nth]).unwrap()
    };
    assert_eq!(sent(0)["stop"], serde_json::json!(["### User", "\n\n"]));
    let (code, err, stop) = asked("without", &[]);
    assert_eq!((code, stop.unwrap()), (Some(0), Vec::new()), "{err}");
    assert!(sent(3).get("stop").is_none());
    let (code, err, _) = asked("both", &["--stop", "", "--stop", "x"]);
    assert_eq!(code, Some(2), "{err}");
}

/// Tokens of a request's messages, by transformers' tokeniser file.
fn tokens_sent(body: &str) -> usize {
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let tokenizer = palimpsest_core::text::Tokenizer::from_file(&model().join("tokenizer.json")).unwrap();
    let contents = body["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap());
    contents.map(|content| tokenizer.count(content).unwrap()).sum()
}

#[test]
fn an_endpoints_histories_are_cut_by_a_tokeniser_or_a_stated_bound_and_numbered_without_gaps() {
    let root = tempfile::tempdir().unwrap();
    let (address, requests) = listening_server("fine");
    let tokenizer = model().join("tokenizer.json");
    let run = |dir: &Path, flags: &[&str]| {
        requests.lock().unwrap().clear();
        let mut answering = command(["run", "--data", "sample", "--sessions", "14", "--limit", "1"]);
        answering.args(["--max-new-tokens", "64", "--model", &address, "--out"]).arg(dir).args(flags);
        let done = ended(answering);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let bodies = requests.lock().unwrap().iter().filter(|body| !body.is_empty()).cloned().collect();
        (RunFolder::read(dir).unwrap(), bodies)
    };
    let (whole, sent): (_, Vec<String>) = run(&root.path().join("whole"), &[]);
    let longest = sent.iter().map(|body| tokens_sent(body)).max().unwrap();
    assert!(whole.answers.iter().all(|row| row.dropped_sessions.is_empty()));

    let context = 64 + 256 + longest * 2 / 3;
    let flags = ["--context", &context.to_string(), "--tokenizer", tokenizer.to_str().unwrap()];
    let (folder, sent): (_, Vec<String>) = run(&root.path().join("cut"), &flags);
    let policy = &folder.header.identity.context;
    assert_eq!((policy.tokens, policy.reserved), (Some(context), Some(256)));
    let named = policy.tokenizer.as_ref().unwrap();
    let digest = palimpsest_core::digest::sha256(std::fs::read(&tokenizer).unwrap());
    assert_eq!((named.name.as_str(), named.digest.as_str()), ("tokenizer.json", digest.as_str()));
    assert_eq!(sent.len(), 3);
    for body in &sent {
        // Most of the budget is used: no dropped session would have fitted.
        let tokens = tokens_sent(body);
        assert!(tokens <= longest * 2 / 3 && tokens > longest / 3, "{tokens} of {longest}");
    }
    let dropped = &folder.answers[0].dropped_sessions;
    assert!(!dropped.is_empty() && folder.answers.iter().all(|row| row.dropped_sessions == *dropped));
    for n in 1..=14 {
        let shown = sent[0].contains(&format!("Session {n} ("));
        assert_eq!(shown, n <= 14 - dropped.len(), "session {n} of {dropped:?}");
    }
    let case = folder.shown(&folder.plan[0].case).unwrap().unwrap();
    for (place, segment) in case.segments.iter().enumerate() {
        assert_eq!(segment.number.unwrap_or(segment.index + 1), place + 1);
    }

    let (original, sent): (_, Vec<String>) =
        run(&root.path().join("original"), &[&flags[..], &["--session-numbers", "original"]].concat());
    assert_ne!(original.header.identity_sha256, folder.header.identity_sha256);
    for n in 0..14 {
        let shown = sent[0].contains(&format!("Session {} (", n + 1));
        assert_eq!(shown, !original.answers[0].dropped_sessions.contains(&n), "session {}", n + 1);
    }

    // The bound: message characters divided by X, plus the reserve, fit.
    let bound = ["--context", "4000", "--chars-per-token", "2.5"];
    let (folder, sent): (_, Vec<String>) = run(&root.path().join("bound"), &bound);
    assert_eq!(folder.header.identity.context.chars_per_token, Some(2.5));
    assert!(!folder.answers[0].dropped_sessions.is_empty());
    for body in &sent {
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let contents = body["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap());
        let tokens: f64 = contents.map(|content| (content.chars().count() as f64 / 2.5).ceil()).sum();
        assert!(tokens <= (4000 - 64 - 256) as f64, "{tokens}");
    }
}

#[test]
fn a_proxy_of_the_environment_is_named_where_it_is_used() {
    let root = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let asked = |host: &str, variables: &[(&str, &str)]| {
        let mut running = command(["run", "--data", "sample", "--sessions", "3", "--limit", "1"]);
        for name in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"] {
            running.env_remove(name).env_remove(name.to_lowercase());
        }
        running.args(["--model", &format!("http://{host}:9/v1#m"), "--out"]).arg(root.path().join("run"));
        running.envs(variables.iter().copied());
        let refused = ended(running);
        assert_eq!((refused.code, refused.err.lines().count()), (Some(1), 1), "{}", refused.err);
        assert!(!refused.err.contains("hunter2"), "{}", refused.err);
        refused.err
    };
    // An unroutable address.
    let nowhere = "255.255.255.255";
    let proxy = format!("http://me:hunter2@127.0.0.1:{closed}");
    for name in ["HTTP_PROXY", "https_proxy", "ALL_PROXY"] {
        let error = asked("model.invalid", &[(name, &proxy)]);
        assert!(error.contains(&format!("through the proxy 127.0.0.1:{closed} of {name}")), "{error}");
        assert!(error.contains("NO_PROXY=model.invalid"), "{error}");
    }
    assert!(!asked(nowhere, &[]).contains("proxy"));
    assert!(!asked(nowhere, &[("HTTP_PROXY", &proxy), ("NO_PROXY", nowhere)]).contains("proxy"));
    // Local addresses bypass the proxy.
    assert!(!asked("127.0.0.2", &[("HTTP_PROXY", &proxy)]).contains("proxy"));
    for scheme in ["socks5", "socks5h"] {
        let error = asked(nowhere, &[("ALL_PROXY", &format!("{scheme}://127.0.0.1:{closed}"))]);
        assert!(error.contains("without the SOCKS proxy") && error.contains("of ALL_PROXY"), "{error}");
    }
}
