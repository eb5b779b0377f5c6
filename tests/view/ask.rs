//! Answers asked again on the page: trials are what `causes` measure, and a server answers as a model here does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use palimpsest::chat::endpoint::Keys;
use palimpsest::models::{self, Opened};
use palimpsest::view::ask::{Asker, Worker};
use palimpsest::view::table::Table;
use palimpsest_core::engine::{ContextLength, LocalOptions};
use serde_json::Value;

use super::{Served, ask, column, get, model, near, runs, served};
use crate::cli::palimpsest;

/// Answers a case of four sessions with the tiny model.
fn answered(dir: &Path) {
    let (model, out) = (model(), dir.to_str().unwrap());
    let model = model.to_str().unwrap();
    let run = "run --data sample --sessions 4 --limit 1 --limit-probes 1 --max-new-tokens 8 --dtype f32";
    let done = palimpsest(run.split(' ').chain(["--model", model, "--out", out]));
    assert_eq!(done.code, Some(0), "{}", done.err);
}

/// The tiny model to ask again.
fn asker() -> (Asker, Worker) {
    let options = LocalOptions {
        context: ContextLength::Exactly(4096),
        allow_longer: true,
        hides_keys: true,
        ..LocalOptions::default()
    };
    let Opened { model, digest, .. } = models::open(model().to_str().unwrap(), &options).unwrap();
    Asker::new(model, digest)
}

fn with_model(dir: &Path, (asker, worker): (Asker, Worker)) -> Served {
    let served = served(dir, Some(asker));
    let stop = Arc::clone(&served.stop);
    std::thread::spawn(move || worker.run(&stop));
    served
}

/// A trial, or its state if it failed.
fn trial(served: &Served, body: &Value) -> Value {
    let own = served.address.to_string();
    let (status, _, reply) = ask(served, "POST /api/ask", &own, &body.to_string());
    assert_eq!(status, 202, "{reply}");
    let reply: Value = serde_json::from_str(&reply).unwrap();
    let path = format!("GET /api/ask?id={}", reply["id"].as_str().unwrap());
    loop {
        let reply: Value = serde_json::from_str(&ask(served, &path, &own, "").2).unwrap();
        match reply["state"].as_str().unwrap() {
            "done" => return reply["trial"].clone(),
            "waiting" | "running" => std::thread::sleep(Duration::from_millis(20)),
            _ => return reply,
        }
    }
}

#[test]
fn a_trial_is_what_causes_measure_and_is_kept_in_the_folder() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    answered(&dir);
    let (name, model) = (dir.to_str().unwrap(), model());
    let model = model.to_str().unwrap();
    for way in [&["--controls", "2"][..], &["--total", "--sessions", "all"], &["--replace"]] {
        let done = palimpsest(["causes", name, "--model", model].iter().chain(way));
        assert_eq!(done.code, Some(0), "{way:?}: {}", done.err);
    }
    let case = get(&runs(&dir), "/api/case", "row=0");
    let served = with_model(&dir, asker());
    let trial = |body: Value| trial(&served, &body);
    // Values of `causes`, by each method.
    let mut compared = 0;
    for (way, effect, field) in
        [("direct", "effect", "block"), ("total", "total", "remove"), ("replaced", "replaced", "replace")]
    {
        for row in case["causes"][way].as_array().unwrap() {
            let span = row["span"].as_str().unwrap();
            let what = match field {
                "block" => serde_json::json!([{"sessions": [span]}]),
                _ => serde_json::json!([span]),
            };
            let found = trial(serde_json::json!({"row": 0, field: what, "note": way}));
            let drop = found["after"]["drop"].as_f64().unwrap_or_else(|| panic!("{found}"));
            let expected = row[effect]["log_p_drop"].as_f64().unwrap();
            assert!((drop - expected).abs() < 1e-5, "{way} {span}: {drop}, not {expected}");
            assert!(near(found["before"]["log_p"].as_f64().unwrap(), row["log_p"].as_f64().unwrap()));
            assert_eq!(
                (found["model"]["same"].as_bool(), found["before"]["answer"].as_str()),
                (Some(true), case["answer"].as_str())
            );
            compared += 1;
        }
    }
    assert!(compared >= 8, "{compared}");
    // Blocking the question's path gives the direct effect; blocking a single layer gives another.
    let session = case["causes"]["direct"][0]["span"].as_str().unwrap();
    let path = serde_json::json!([{"from": "question", "to": session}]);
    let by_path = trial(serde_json::json!({"row": 0, "paths": path}));
    let direct = case["causes"]["direct"][0]["effect"]["log_p_drop"].as_f64().unwrap();
    assert!((by_path["after"]["drop"].as_f64().unwrap() - direct).abs() < 1e-5);
    let window = serde_json::json!([{"sessions": [session], "layers": [[0, 1]]}]);
    assert_ne!(
        trial(serde_json::json!({"row": 0, "block": window}))["after"]["drop"],
        by_path["after"]["drop"]
    );
    for wrong in [
        serde_json::json!({"row": 0}),
        serde_json::json!({"row": 0, "remove": ["session[99]"]}),
        serde_json::json!({"row": 0, "block": [{"sessions": [session], "layers": [[1, 99]]}]}),
    ] {
        let failed = trial(wrong.clone());
        assert_eq!(failed["state"], "failed", "{wrong}: {failed}");
    }
    // Each token view uses the store's masses.
    let look = trial(serde_json::json!({"row": 0, "look": {"from": "question"}}));
    let tokens = look["look"]["tokens"].as_array().unwrap();
    let strip = case["strip"].as_array().unwrap().iter().find(|one| one["key"] == "mass.query").unwrap();
    for (nth, expected) in
        strip["values"].as_array().unwrap().iter().enumerate().filter(|(_, value)| !value.is_null())
    {
        let own = tokens.iter().filter(|token| token["session"] == nth);
        let sum: f64 = own.map(|token| token["mass"].as_f64().unwrap()).sum();
        assert!((sum - expected.as_f64().unwrap()).abs() < 1e-4, "session {nth}: {sum}, not {expected}");
    }
    // The trial is stored in the folder, shown in the case, and listed in the tables.
    let kept = std::fs::read_to_string(dir.join("trials.jsonl")).unwrap();
    assert_eq!(kept.lines().count(), compared + 2, "looks and failures are not kept");
    let runs = runs(&dir);
    for (path, query) in [("/api/case", "row=0"), ("/api/trials", "row=0")] {
        assert_eq!(get(&runs, path, query)["trials"].as_array().unwrap().len(), compared + 2);
    }
    assert_eq!(column(&Table::of(&runs), "trials")[0], (compared + 2).to_string());
    let own = served.address.to_string();
    let (status, _, reply) = ask(&served, "POST /api/cancel", &own, "{\"id\": \"nothing\"}");
    assert_eq!(status, 404, "{reply}");
}

#[test]
fn a_server_answers_anew_what_a_model_here_answers_with_the_same_sessions_hidden() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    answered(&dir);
    // A server of the same model that stops when its stdin closes.
    let mut serve = std::process::Command::new(env!("CARGO_BIN_EXE_palimpsest"));
    serve.arg("serve").arg(model());
    serve.args("--port 0 --dtype f32 --context 4096 --allow-longer --while-input".split(' '));
    serve
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null());
    let mut server = serve.spawn().unwrap();
    let mut said = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().unwrap()), &mut said)
        .unwrap();
    let address = said.split(" at ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let served_name = said.split(" is served").next().unwrap().to_owned();

    let case = get(&runs(&dir), "/api/case", "row=0");
    let sessions = case["sessions"].as_array().unwrap();
    let shown: Vec<&str> = sessions
        .iter()
        .filter(|one| one["shown"] == true)
        .map(|one| one["label"].as_str().unwrap())
        .collect();
    let asked = [
        serde_json::json!({"row": 0, "remove": [shown[0]]}),
        serde_json::json!({"row": 0, "block": [{"sessions": shown}]}),
        serde_json::json!({"row": 0, "block": [{"sessions": [shown[1]], "layers": [[1, 2]]}], "paths": [{"from": shown[2], "to": shown[0]}]}),
        serde_json::json!({"row": 0, "replace": [shown[1]]}),
    ];
    let answers = |asker: (Asker, Worker)| -> Vec<Value> {
        let served = with_model(&dir, asker);
        asked.iter().map(|body| trial(&served, body)).collect()
    };
    let here = answers(asker());
    let there = answers(Asker::of_server(&format!("{address}#{served_name}"), &Keys::default()).unwrap());
    drop(server.stdin.take());
    server.wait().unwrap();
    for ((here, there), asked) in here.iter().zip(&there).zip(&asked) {
        assert_eq!(here["after"]["answer"], there["after"]["answer"], "{asked}");
        assert!(there["after"].get("log_p").is_none() && here["after"]["log_p"].is_number());
        assert!(there["model"]["address"].as_str().unwrap().starts_with("http://127.0.0.1"));
    }
    let changed = here.iter().filter(|trial| trial["after"]["answer"] != trial["before"]["answer"]);
    assert!(changed.count() > 0, "something that is changed changes an answer");
}
