//! `palimpsest trace` over a text, a conversation and a file of jobs.

use std::path::{Path, PathBuf};

use palimpsest_core::Model;
use palimpsest_core::span::Span;
use palimpsest_core::text::{Message, MessageRole};
use serde_json::{Value as Json, json};

use super::trace::{shown, trace};
use super::{TINY, fixture};

pub const OLD: &str = "The market is on Thursday. ";
pub const NEW: &str = "From May on the market is on Sunday. ";
pub const QUERY: &str = "When is the market in June?";

/// Files of one test.
pub struct Files(tempfile::TempDir);

impl Files {
    pub fn new() -> Self {
        Files(tempfile::tempdir().unwrap())
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.at(name), text).unwrap();
        self.at(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.at(name)).unwrap()
    }
}

pub fn traced(model: &Path, out: &Path, args: &[&str]) -> (i32, String, String) {
    trace(&[&["--model", shown(model), "--out", shown(out)], args].concat())
}

pub fn text() -> String {
    format!("{OLD}{NEW}{QUERY}")
}

/// Traces token ids with these spans and additional fields.
pub fn by_ids(
    files: &Files,
    model: &Path,
    tokens: &[u32],
    spans: &[Span],
    more: &Json,
    args: &[&str],
) -> Vec<u8> {
    let mut file = more.clone();
    file["tokens"] = json!(tokens);
    file["spans"] =
        Json::Object(spans.iter().map(|span| (span.label.clone(), json!([span.start, span.end]))).collect());
    let tokens = files.write("tokens.json", &file.to_string());
    let out = files.at("ids.safetensors");
    let (code, _, err) = traced(model, &out, &[&["--tokens", shown(&tokens)], args].concat());
    assert_eq!(code, 0, "{err}");
    files.read("ids.safetensors")
}

#[test]
fn a_text_with_named_spans_gives_the_file_of_its_token_ids_and_tells_the_masses() {
    let files = Files::new();
    for name in [TINY[0], "gpt-oss-tiny", "qwen35-text-tiny"] {
        let model = fixture(name);
        // A file's trailing newline is not read.
        let file = files.write("text.txt", &(text() + "\n"));
        let prompt = Model::open(&model).unwrap();
        let named = [("old", OLD), ("new", NEW), ("query", QUERY)];
        let prompt = prompt.text(&text(), &named).unwrap();
        let new = format!("new={}..{}", OLD.len(), OLD.len() + NEW.len());
        let spans = files.write("spans.json", &json!({"old": OLD}).to_string());
        let named =
            ["--spans", shown(&spans), "--spans", "query=When is the market in June?", "--spans", &new];
        let args = [&["--text", shown(&file), "--rows", "query,last,answer", "--logits", "2"], &named[..]];
        let args = [&args.concat()[..], &["--top-keys", "3", "--generate", "4"]].concat();
        let (code, said, err) = traced(&model, &files.at("out.safetensors"), &args);
        assert_eq!(code, 0, "{err}");
        // The file's spans first, then those of the command line.
        let spans: Vec<Span> = [0, 2, 1].map(|i| prompt.overlays[i].clone()).to_vec();
        assert_eq!(spans[1].end, prompt.tokens.len());
        let more = json!({"rows": ["query", "last", "answer"], "logits": 2, "top_keys": 3});
        let ids = by_ids(&files, &model, &prompt.tokens, &spans, &more, &["--generate", "4"]);
        assert!(ids == files.read("out.safetensors"), "{name}");
        for told in ["attention of `query`", "attention of `answer`", "(elsewhere)", "next token:", "answer:"]
        {
            assert!(said.contains(told), "{said}");
        }
    }
}

#[test]
fn a_conversation_has_the_spans_of_its_parts_and_knock_outs_reach_from_their_first_row_on() {
    let files = Files::new();
    let model = fixture(TINY[0]);
    let part = |label: &str, text: &str| json!({"type": "text", "text": text, "span": label});
    let parts = json!([part("old", OLD), part("new", NEW), part("query", QUERY)]);
    let chat = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]);
    let chat = files.write("chat.json", &chat.to_string());
    let message = |role, content: &str| Message { role, content: content.to_owned() };
    let messages = [message(MessageRole::System, "Be brief."), message(MessageRole::User, &text())];
    let named = [("old", OLD), ("new", NEW), ("query", QUERY)];
    let prompt = Model::open(&model).unwrap().chat(&messages, &named).unwrap();
    let n = prompt.tokens.len();
    let mut spans: Vec<Span> = prompt.overlays[2..].to_vec();
    let run = |out: &str, more: &[&str]| {
        let args = [&["--messages", shown(&chat), "--rows", "query,last"], more].concat();
        let (code, said, err) = traced(&model, &files.at(out), &args);
        assert_eq!(code, 0, "{err}");
        said
    };
    run("plain.safetensors", &[]);
    let rows = json!({"rows": ["query", "last"]});
    assert!(by_ids(&files, &model, &prompt.tokens, &spans, &rows, &[]) == files.read("plain.safetensors"));
    // Blocked: equal to a pass with all rows from the query on blocked.
    let said = run("blocked.safetensors", &["--knockout", "query->old@1..3", "--top-keys", "2"]);
    assert!(said.contains("the largest keys of each head"), "{said}");
    spans.push(Span::new("behind", spans[2].start..n));
    let blocked = json!({"rows": "behind", "keys": "old", "layers": [1, 3]});
    let more = json!({"rows": ["query", "last"], "knockouts": [blocked], "top_keys": 2});
    let ids = by_ids(&files, &model, &prompt.tokens, &spans, &more, &[]);
    let load =
        |bytes: &[u8]| candle_core::safetensors::load_buffer(bytes, &candle_core::Device::Cpu).unwrap();
    let (ids, ours) = (load(&ids), load(&files.read("blocked.safetensors")));
    let of_spans = ids["mass"].narrow(3, 0, 3).unwrap();
    let values = |x: &candle_core::Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(values(&ours["mass"]), values(&of_spans));
    assert_eq!(values(&ours["top_weights"]), values(&ids["top_weights"]));
    // By default messages are the spans.
    let plain = json!([{"role": "user", "content": text()}]);
    let plain = files.write("plain.json", &plain.to_string());
    let (code, said, err) = traced(&model, &files.at("m.safetensors"), &["--messages", shown(&plain)]);
    assert!(code == 0 && said.contains("messages[0]"), "{said} {err}");
}

#[test]
fn a_logit_is_taken_apart_by_the_text_of_its_token() {
    let files = Files::new();
    let model = fixture(TINY[0]);
    let file = files.write("text.txt", &text());
    let args = ["--text", shown(&file), "--spans", "old=on Thursday", "--target", "a", "--against", "b"];
    let (code, said, err) = traced(&model, &files.at("out.safetensors"), &args);
    assert_eq!(code, 0, "{err}");
    assert!(said.contains("logit of \"a\" minus logit of \"b\""), "{said}");
    let tensors = candle_core::safetensors::load(files.at("out.safetensors"), &candle_core::Device::Cpu);
    assert!(tensors.unwrap().contains_key("attribution"));
}

#[test]
fn spans_that_are_not_what_they_name_are_refused_with_the_count_and_a_remedy() {
    let files = Files::new();
    let model = fixture(TINY[0]);
    let file = files.write("text.txt", &text());
    let chat = json!([{"role": "user", "content": "on"}, {"role": "assistant", "content": "and on"}]);
    let chat = files.write("chat.json", &chat.to_string());
    for (source, spans, said) in [
        ("--text", "a=the fair", "span `a`: its text \"the fair\" occurs 0 times"),
        ("--text", "a=market is on", "occurs 2 times, at 4..16, 43..55; give more of the text around"),
        ("--text", "a=", "span `a` names no text"),
        ("--text", "a=5..5", "span `a` is characters 5..5, and the text has 91"),
        ("--text", "a=5..500", "span `a` is characters 5..500, and the text has 91"),
        ("--text", "a=1:0..2", "span `a` lies in message 1, and there are 1"),
        ("--text", "last=0..2", "names a row"),
        ("--text", "nowhere.json", "nowhere.json is neither LABEL=TEXT"),
        ("--messages", "a=on", "occurs 2 times, at 0:0..2, 1:4..6"),
        ("--messages", "a=0..2", "say of which one, as a=MESSAGE:0..2"),
        ("--messages", "messages[0]=0:0..2", "two spans are called `messages[0]`"),
    ] {
        let from = if source == "--text" { &file } else { &chat };
        let (code, _, err) = traced(&model, &files.at("out"), &[source, shown(from), "--spans", spans]);
        assert_eq!(code, 1, "{err}");
        assert!(err.contains(said) && err.trim_end().lines().count() == 1, "{err:?} does not say {said:?}");
        assert!(!files.at("out").exists());
    }
    let (code, _, err) = traced(&model, &files.at("out"), &["--text", shown(&file)]);
    assert!(code == 1 && err.contains("no span is named"), "{err}");
    let (code, _, err) = traced(&model, &files.at("out"), &[]);
    assert!(code == 2 && err.contains("--text"), "{err}");
    let (code, _, err) = traced(&model, &files.at("out"), &["--jobs", shown(&file), "--rows", "last"]);
    assert!(code == 2 && err.contains("cannot be used with"), "{err}");
    for (messages, said) in [
        ("{}", "no JSON list"),
        ("[]", "there is no message"),
        (r#"[{"role": "user"}]"#, "messages[0] is no message"),
        (r#"[{"role": "tool", "content": "x"}]"#, "messages[0].role is `tool`"),
    ] {
        let chat = files.write("wrong.json", messages);
        let (code, _, err) = traced(&model, &files.at("out"), &["--messages", shown(&chat)]);
        assert!(code == 1 && err.contains(said), "{err}");
    }
}

#[test]
fn jobs_share_one_model_and_their_beginnings_and_give_the_files_of_single_calls() {
    let files = Files::new();
    // Long enough to share a prefix.
    let long = "It rained all day, and nobody came. ".repeat(12);
    for name in [TINY[0], "gemma3-tiny"] {
        let model = fixture(name);
        let job = |n: usize, end: &str, more: Json| {
            let mut job = json!({
                "id": format!("job {n}"), "text": format!("{long}{OLD}{end}"),
                "spans": {"old": OLD, "long": [0, long.len()]}, "out": files.at(&format!("{n}.safetensors")),
            });
            job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            job
        };
        let jobs = [
            job(1, "When?", json!({})),
            job(2, "Is it so?", json!({"knockouts": ["last->old"], "generate": 2})),
            json!({"text": "short", "spans": {"x": "long"}}),
            job(3, "When?", json!({"knockouts": ["last->old@0..1"], "rows": ["last"], "top_keys": 2})),
        ];
        let mut lines: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        lines.push("{\"text\": 3}".to_owned());
        let file = files.write("jobs.jsonl", &lines.join("\n"));
        let (code, said, err) = traced(&model, &files.at("rows.jsonl"), &["--jobs", shown(&file)]);
        assert_eq!(code, 3, "{err}");
        assert!(said.contains("3 of 5 jobs") && err.contains("2 of 5 jobs ended as errors"), "{said} {err}");
        let rows: Vec<Json> = String::from_utf8(files.read("rows.jsonl"))
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        // The file and the table are in the order of the jobs, which ran in another one; a job's error is in its line.
        let order: Vec<u64> = rows.iter().map(|row| row["job"].as_u64().unwrap()).collect();
        assert_eq!(order, [1, 2, 3, 4, 5]);
        let table: Vec<&str> =
            said.lines().skip_while(|line| !line.contains("knocked out")).skip(1).take(5).collect();
        for (line, (number, told)) in table.iter().zip([
            (1, "1.safetensors"),
            (2, "last->old"),
            (3, "error: "),
            (4, "last->old@0..1"),
            (5, "line 5 is no job"),
        ]) {
            assert!(line.trim_start().starts_with(&format!("{number} ")) && line.contains(told), "{said}");
        }
        assert!(
            table[2].contains("its text \"long\" occurs 0 times") && !err.contains("next token"),
            "{said}"
        );
        let of = |n: u64| rows.iter().find(|row| row["job"] == n).unwrap();
        assert!(of(3)["error"].as_str().unwrap().contains("span `x`: its text \"long\" occurs 0 times"));
        assert!(of(5)["error"].as_str().unwrap().contains("line 5 is no job"));
        assert!(rows.iter().filter(|row| row["reused"].as_u64() > Some(0)).count() == 2, "{rows:?}");
        assert!(of(1)["mass"]["last"]["old"].as_f64().unwrap() > 0.0);
        assert_eq!(of(2)["mass"]["last"]["old"], 0.0);
        assert_eq!(of(4)["id"], "job 3");
        // The same one by one.
        for (n, end, more) in [
            (1, "When?", &[][..]),
            (2, "Is it so?", &["--knockout", "last->old", "--generate", "2"]),
            (3, "When?", &["--knockout", "last->old@0..1", "--rows", "last", "--top-keys", "2"]),
        ] {
            let text = files.write("text.txt", &format!("{long}{OLD}{end}"));
            let old = format!("old={OLD}");
            let all = format!("long=0..{}", long.len());
            let args = ["--text", shown(&text), "--spans", &old, "--spans", &all];
            let (code, _, err) = traced(&model, &files.at("one.safetensors"), &[&args[..], more].concat());
            assert_eq!(code, 0, "{err}");
            let same = files.read("one.safetensors") == files.read(&format!("{n}.safetensors"));
            assert!(same, "{name}: job {n}");
        }
    }
    let empty = files.write("empty.jsonl", "\n");
    let (code, _, err) = traced(&fixture(TINY[0]), &files.at("rows.jsonl"), &["--jobs", shown(&empty)]);
    assert!(code == 1 && err.contains("has no job"), "{err}");
}
