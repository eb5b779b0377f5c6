//! The conformance test of memory systems, and its command.

use std::path::Path;

use palimpsest::memory::system::check::{Models as CheckModels, Outcome, check};
use palimpsest::memory::system::open;
use palimpsest::memory::system::protocol::HelloRequest;
use palimpsest::memory::system::scripted_model::ScriptedModel;
use serde_json::{Value, json};

use super::{environment, patience, script};

/// Failed checks of the conformance test for a behaviour.
fn breaches(behaviour: &str) -> Vec<(&'static str, String)> {
    breaches_of(&format!("{} {behaviour}", script()))
}

fn breaches_of(command: &str) -> Vec<(&'static str, String)> {
    let folder = tempfile::tempdir().unwrap();
    let (usual, broken) = (ScriptedModel::start(false).unwrap(), ScriptedModel::start(true).unwrap());
    let make = |models: CheckModels, own: &Path| {
        let model = if models == CheckModels::Broken { &broken } else { &usual };
        let hello = HelloRequest {
            protocol: 1,
            llm: Some(model.llm()),
            embedder: Some(model.embedder()),
            folder: own.display().to_string(),
            ..HelloRequest::default()
        };
        open("check", command, hello, (&folder.path().join("log"), &environment()), patience())
    };
    let report = check(&make, folder.path(), &|| broken.chats()).unwrap();
    let no = report.findings.into_iter().filter(|finding| finding.outcome == Outcome::No);
    no.map(|finding| (finding.check, finding.detail)).collect()
}

#[test]
fn the_conformance_test_finds_what_is_broken_and_nothing_else() {
    let names = |behaviour: &str| breaches(behaviour).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    const ASSISTANT: &str = "assistant turns are seen";
    const DATES: &str = "dates of sessions are kept";
    assert_eq!(names("times"), [ASSISTANT], "{:?}", breaches("times"));
    assert_eq!(names(""), [DATES, ASSISTANT]);
    assert_eq!(names("no-sources no-save"), ["with the session that it came from", DATES, ASSISTANT]);
    assert_eq!(names("ignores-k"), ["k is kept", DATES, ASSISTANT]);
    assert!(names("restless").contains(&"probing leaves the store as it is"));
    assert!(names("keep-first=1").contains(&"a planted sentence comes back as text"));
    let asks = breaches("asks");
    let swallowed = asks.iter().find(|(name, _)| name.contains("invalid JSON")).unwrap();
    assert!(swallowed.1.contains("JSON that ends in the middle, no operation said so"), "{}", swallowed.1);
    let strict = breaches("asks strict");
    assert!(!strict.iter().any(|(name, _)| name.contains("invalid JSON")), "{strict:?}");
    let dead = breaches("dies=hello");
    assert_eq!(dead.len(), 1);
    assert!(dead[0].1.contains("out of luck"), "{}", dead[0].1);
    let hangs = breaches("hangs=dump");
    assert!(
        hangs.iter().any(|(name, detail)| name.contains("dump") && detail.contains("no reply within 2 s")),
        "{hangs:?}"
    );
}

/// A mapping of a server that reports empty results and write failures as prose.
#[test]
fn e03_words_of_an_mcp_server_that_are_no_memories_are_found() {
    let (empty, stored) = ("an empty store finds nothing", "written sessions are stored");
    let locked = "Error: database is locked";
    for (add, failed, search, none, broken) in [
        // A server with empty results and no message has no finding.
        (None, None, None, None, &[][..]),
        (None, None, Some("No memories found."), None, &[empty, stored][..]),
        (None, None, Some("No memories found."), Some("No memories"), &[stored]),
        (Some(locked), None, Some(""), None, &[stored]),
        (Some(locked), Some("^Error"), None, None, &[stored]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut script = json!({});
        let mut mapping = json!({
            "name": "odd", "command": ["{python}", root.join("tests/adapters/odd_mcp.py"), "script.json"], "unit": "turn",
            "add": {"tool": "add", "arguments": {"text": "{content}"}},
            "search": {"tool": "search", "arguments": {"query": "{query}"}, "split": "\n\n"},
        });
        for (tool, said, key, pattern) in [("add", add, "failed", failed), ("search", search, "none", none)] {
            said.iter().for_each(|said| script[tool] = json!(said));
            pattern.iter().for_each(|pattern| mapping[tool][key] = json!(pattern));
        }
        std::fs::write(folder.path().join("script.json"), script.to_string()).unwrap();
        let file = folder.path().join("mapping.json");
        std::fs::write(&file, mapping.to_string()).unwrap();
        let command = format!("python3 '{}' '{}'", root.join("adapters/mcp.py").display(), file.display());
        let found = breaches_of(&command);
        let detail =
            |name: &str| found.iter().find(|(check, _)| *check == name).map(|(_, detail)| detail.as_str());
        for name in [empty, stored] {
            assert_eq!(
                detail(name).is_some(),
                broken.contains(&name),
                "{name}: {script} {mapping} {found:?}"
            );
        }
        if none.is_none() && broken.contains(&empty) {
            let said = detail(empty).unwrap();
            assert!(said.contains("`No memories found.`") && said.contains("by `none`"), "{said}");
        }
        if let Some(said) = detail(stored) {
            // A failure described by the mapping fails the write itself.
            let part = if failed.is_some() { locked } else { "by `failed`" };
            assert!(said.contains(part), "{said}");
        }
    }
}

#[test]
fn the_command_says_yes_or_no_and_exits_so() {
    let run = |behaviour: &str, format: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_palimpsest"));
        command.args(["memory", "check", &format!("{} {behaviour}", script())]).args(format);
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, said, _) = run("", &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("It keeps the protocol.") && said.contains("not offered   answers by itself"),
        "{said}"
    );
    assert!(said.contains("no (allowed)  assistant turns are seen"), "{said}");
    let (code, said, error) = run("ignores-k", &["--format", "json"]);
    assert_eq!(code, Some(1), "{error}");
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&report["passes"], &report["hello"]["name"]), (&json!(false), &json!("scripted")));
    assert!(error.contains("its log and files are kept in"), "{error}");
    let kept = error.split("kept in ").nth(1).unwrap().split(';').next().unwrap();
    std::fs::remove_dir_all(kept).unwrap();
}

/// The scripted model's reply.
fn asked(model: &ScriptedModel, path: &str, body: &Value) -> Value {
    let url = format!("{}/{path}", model.llm().base_url);
    let mut response = ureq::post(url).send(body.to_string()).unwrap();
    serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap()
}

#[test]
fn the_scripted_model_repeats_the_last_list_or_the_lines_and_fills_a_schema() {
    let model = ScriptedModel::start(false).unwrap();
    let said = |content: &str, format: Value| {
        let body = json!({ "messages": [{ "role": "user", "content": content }], "response_format": format });
        let reply = asked(&model, "chat/completions", &body);
        reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    for (content, statements) in [
        (
            "Input:\nuser: I keep bees at home.\nassistant: Good for you!",
            "I keep bees at home.\nGood for you!",
        ),
        ("old [] and new ```[\"I keep bees\"]```", "I keep bees"),
        ("old [\"a\"], new ['It\\'s \\n \\\\', \"x's\"] end [{}]", "It's \n \\\nx's"),
        (
            "## Existing Memories\nold things are here\n## New Messages\nuser: bees\n## Date\nuser: none\n",
            "bees",
        ),
        ("# Text\nBees live in hives.\n{\"a\": 1 2 3}", "Bees live in hives."),
    ] {
        assert_eq!(said(content, Value::Null), statements, "{content}");
    }
    let schema = json!({
        "type": "object",
        "properties": {
            "facts": { "type": "array", "items": { "$ref": "#/$defs/fact" } },
            "kind": { "enum": ["first", "second"] },
        },
        "$defs": { "fact": { "type": "object", "properties": { "text": { "type": "string" }, "sure": { "type": "boolean" } } } },
    });
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    let expected = json!({ "facts": [{ "text": "I keep bees at home.", "sure": false }], "kind": "first" });
    let instance = said("user: I keep bees at home.", format);
    assert_eq!(serde_json::from_str::<Value>(&instance).unwrap(), expected);
}

#[test]
fn texts_that_share_words_have_vectors_that_are_near() {
    let model = ScriptedModel::start(false).unwrap();
    let texts = ["bees at home", "Bees, at home!", "my bees", "a red car"];
    let reply = asked(&model, "embeddings", &json!({ "input": texts }));
    let vectors: Vec<Vec<f64>> = reply["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| serde_json::from_value(one["embedding"].clone()).unwrap())
        .collect();
    let cosine = |other: usize| vectors[0].iter().zip(&vectors[other]).map(|(x, y)| x * y).sum::<f64>();
    assert!((cosine(1) - 1.0).abs() < 1e-6);
    assert!(cosine(2) > cosine(3));
}
