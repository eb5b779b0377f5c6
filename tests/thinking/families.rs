//! Templates of the nine families from the command line: thinking off, on, and cut off; exact rows.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::model::{HOP, write};
use super::templates::{GEMMA3, GLM4_MOE, GPT_OSS, LLAMA, MINIMAX_M2, QWEN2, QWEN3, QWEN3_5};
use crate::cli::{Ended, palimpsest};

const THOUGHT: [&str; 3] = ["Let me see:", " it was", " Rome, or"];
const ANSWER: [&str; 2] = ["You moved", " to Oslo."];

/// A family: the end of its prompts and the model's output, with thinking on.
struct Family {
    name: &'static str,
    template: &'static str,
    /// Before the thought: the prompt's last token, and the opening of the thought.
    before: &'static [&'static str],
    /// Between thought and answer.
    between: &'static [&'static str],
    end: &'static str,
    thinks: bool,
    switches: bool,
}

impl Family {
    const fn new(name: &'static str, template: &'static str, end: &'static str) -> Self {
        Family { name, template, before: &["\n"], between: &[], end, thinks: true, switches: true }
    }

    fn write(&self, folder: &Path) {
        let answer = [&ANSWER[..], &[self.end]].concat();
        let on = [self.before, &THOUGHT, self.between, &answer].concat();
        // Without a thought: after an empty one, or after the prompt.
        let chains = if self.thinks { vec![on] } else { vec![[self.before, &answer].concat()] };
        let chains: Vec<&[&str]> = chains.iter().map(Vec::as_slice).collect();
        write(folder, self.template, &chains, self.end);
    }

    /// Tokens that the model writes before the thought.
    fn opening(&self) -> usize {
        self.before.len() - 1
    }
}

const THINK: &[&str] = &["</think>", "\n\n"];

fn families() -> [Family; 9] {
    let plain = |name, template, before, end| Family {
        before,
        thinks: false,
        switches: false,
        ..Family::new(name, template, end)
    };
    let qwen3 = |name| Family {
        before: &["\n", "<think>"],
        between: THINK,
        ..Family::new(name, QWEN3, "<|im_end|>")
    };
    [
        plain("llama", LLAMA, &["\n\n"], "<|eot_id|>"),
        plain("gemma3", GEMMA3, &["\n"], "<end_of_turn>"),
        plain("qwen2", QWEN2, &["\n"], "<|im_end|>"),
        qwen3("qwen3"),
        qwen3("qwen3_moe"),
        Family { between: THINK, ..Family::new("qwen3_5", QWEN3_5, "<|im_end|>") },
        Family {
            before: &["<|assistant|>", "\n", "<think>"],
            between: &["</think>"],
            ..Family::new("glm4_moe", GLM4_MOE, "<|user|>")
        },
        Family { between: THINK, switches: false, ..Family::new("minimax_m2", MINIMAX_M2, "[e~[") },
        Family {
            before: &["assistant", "<|channel|>", "analysis", "<|message|>"],
            between: &[HOP],
            switches: false,
            ..Family::new("gpt_oss", GPT_OSS, "<|return|>")
        },
    ]
}

fn run(model: &Path, out: &Path, more: &[&str]) -> Ended {
    let start = [
        "run",
        "--data",
        "sample",
        "--sessions",
        "2",
        "--limit",
        "1",
        "--only",
        "T1/SR",
        "--max-new-tokens",
        "8",
    ];
    let (model, out) = (model.to_str().unwrap(), out.to_str().unwrap());
    palimpsest([&start[..], &["--model", model, "--out", out], more].concat())
}

/// Rows without the sample's fields.
fn rows(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("answers.jsonl")).unwrap();
    let row = |line: &str| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        let fields = row.as_object_mut().unwrap();
        for field in ["case", "labels", "query", "prompt_tokens", "dropped_sessions"] {
            assert!(fields.remove(field).is_some(), "{field}");
        }
        // Every answer has recorded attention.
        assert_eq!(fields.remove("attention").is_some(), fields.contains_key("answer"));
        row
    };
    text.lines().map(row).collect()
}

fn identity(out: &Path) -> Value {
    let header: Value = serde_json::from_slice(&std::fs::read(out.join("run.json")).unwrap()).unwrap();
    header["identity"].clone()
}

fn answered(thought: Option<&str>, tokens: usize) -> Value {
    let mut row = json!({
        "probe": "SR", "answer": ANSWER.concat(), "stop": "end_of_turn", "completion_tokens": tokens
    });
    if let Some(thought) = thought {
        row["thought"] = thought.into();
    }
    row
}

fn cut(thought: &str, budget: usize) -> Value {
    json!({
        "probe": "SR", "thought": thought, "completion_tokens": budget, "cut": true,
        "error": format!(
            "the budget for thinking ended ({budget} tokens) before the answer; give a larger --max-thinking, or --thinking \
             off where the model can"
        )
    })
}

#[test]
fn every_familys_thought_and_answer_are_stored_exactly_off_on_and_cut_off() {
    let root = tempfile::tempdir().unwrap();
    for family in families() {
        let name = family.name;
        let at = |what: &str| -> PathBuf { root.path().join(format!("{name}-{what}")) };
        let model = at("model");
        family.write(&model);
        let whole = THOUGHT.concat();

        // 1. Off, if supported; the same as `auto`.
        let off = run(&model, &at("off"), &["--thinking", "off"]);
        if family.thinks && !family.switches {
            assert_eq!(off.code, Some(1), "{name}: {}", off.err);
            assert!(
                off.err.contains(&format!("{name}-model")) && off.err.contains("always thinks"),
                "{}",
                off.err
            );
            assert!(!at("off").exists());
        } else {
            assert_eq!(off.code, Some(0), "{name}: {}", off.err);
            assert_eq!(rows(&at("off")), [answered(None, 2)], "{name}");
            assert_eq!(
                run(&model, &at("off"), &[]).code,
                Some(0),
                "{name}: auto goes on with a run that is off"
            );
            let policy = if family.thinks { json!({ "mode": "off" }) } else { Value::Null };
            assert_eq!(identity(&at("off"))["thinking"], policy, "{name}");
        }

        // 2. On.
        let on = run(&model, &at("on"), &["--thinking", "on"]);
        if !family.thinks {
            assert_eq!(on.code, Some(1));
            assert!(
                on.err.contains(&format!("{name}-model")) && on.err.contains("no thoughts"),
                "{}",
                on.err
            );
            continue;
        }
        let thought = family.opening() + THOUGHT.len() + family.between.len();
        assert_eq!(on.code, Some(0), "{name}: {}", on.err);
        assert_eq!(rows(&at("on")), [answered(Some(&whole), thought + ANSWER.len())], "{name}");
        assert_eq!(identity(&at("on"))["thinking"], json!({ "mode": "on", "max_tokens": 4096 }), "{name}");

        // 3. With a budget that just fits the thought and its end marker, and with one token less.
        let marker = family.opening() + THOUGHT.len() + 1;
        for (budget, expected) in [
            (marker, answered(Some(&whole), thought + ANSWER.len())),
            (marker - 1, cut(&whole, marker - 1)),
            (marker - 2, cut(&THOUGHT[..2].concat(), marker - 2)),
        ] {
            let out = at(&format!("budget-{budget}"));
            let (code, flag) = (if budget == marker { 0 } else { 1 }, budget.to_string());
            let done = run(&model, &out, &["--thinking", "on", "--max-thinking", &flag]);
            assert_eq!(done.code, Some(code), "{name}, {budget}: {}", done.err);
            assert_eq!(rows(&out), [expected], "{name}, {budget}");
        }
    }
}

#[test]
fn a_cut_row_is_left_alone_until_it_is_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let (model, out) = (root.path().join("model"), root.path().join("run"));
    families()[5].write(&model);
    let all = ["--thinking", "on", "--max-thinking", "2", "--only", "T1"];
    let run = |more: &[&str]| {
        let start = ["run", "--data", "sample", "--sessions", "2", "--limit", "1", "--max-new-tokens", "8"];
        let paths = ["--model", model.to_str().unwrap(), "--out", out.to_str().unwrap()];
        palimpsest([&start[..], &paths, &all, more].concat())
    };
    let first = run(&[]);
    assert_eq!(first.code, Some(1), "{}", first.err);
    assert!(first.out.contains("0 of 3 answers (0 from before, 0 new, 3 errors)"), "{}", first.out);
    let bytes = std::fs::read(out.join("answers.jsonl")).unwrap();

    let again = run(&[]);
    assert_eq!(again.code, Some(3), "{}", again.err);
    assert!(again.err.contains("3 of 3 answers ended as errors"), "{}", again.err);
    assert!(again.out.contains("0 of 3 answers (0 from before, 0 new, 0 errors)"), "{}", again.out);
    assert!(
        again.out.contains("3 more ended inside a thought") && again.out.contains("--retry-cut"),
        "{}",
        again.out
    );
    assert_eq!(std::fs::read(out.join("answers.jsonl")).unwrap(), bytes);

    let tried = run(&["--retry-cut"]);
    assert!(tried.out.contains("0 of 3 answers (0 from before, 0 new, 3 errors)"), "{}", tried.out);
    assert_eq!(std::fs::read(out.join("answers.jsonl")).unwrap(), bytes, "the same thoughts came again");

    // Another error beside them is retried as usual.
    let text = String::from_utf8(bytes.clone()).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut row: Value = serde_json::from_str(&lines[1]).unwrap();
    row.as_object_mut().unwrap().remove("cut");
    lines[1] = row.to_string();
    std::fs::write(out.join("answers.jsonl"), lines.join("\n") + "\n").unwrap();
    let mended = run(&[]);
    assert!(mended.out.contains("0 of 3 answers (0 from before, 0 new, 1 errors)"), "{}", mended.out);
    assert!(mended.out.contains("2 more ended inside a thought"), "{}", mended.out);
    assert_eq!(std::fs::read(out.join("answers.jsonl")).unwrap(), bytes);
}

#[test]
fn thoughts_that_are_decoded_together_are_those_that_each_thinks_alone() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    families()[3].write(&at("model"));
    let files = |out: &Path| -> Vec<Vec<u8>> {
        let folder = std::fs::read_dir(out.join("attention")).unwrap();
        let mut paths: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.push(out.join("answers.jsonl"));
        paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
    };
    for (name, size) in [("together", "8"), ("alone", "1")] {
        let start = [
            "run",
            "--data",
            "sample",
            "--sessions",
            "2",
            "--limit",
            "1",
            "--thinking",
            "on",
            "--batch-size",
            size,
        ];
        let (model, out) = (at("model"), at(name));
        let done = palimpsest(
            [&start[..], &["--model", model.to_str().unwrap(), "--out", out.to_str().unwrap()]].concat(),
        );
        assert_eq!(done.code, Some(0), "{}", done.err);
    }
    let together = files(&at("together"));
    assert_eq!(together.len(), 4);
    assert!(together == files(&at("alone")));
}

#[test]
fn a_turn_that_ends_inside_the_thought_is_an_error_row_too() {
    let root = tempfile::tempdir().unwrap();
    let (model, out) = (root.path().join("model"), root.path().join("run"));
    write(&model, QWEN3_5, &[&["\n", THOUGHT[0], "<|im_end|>"]], "<|im_end|>");
    assert_eq!(run(&model, &out, &["--thinking", "on"]).code, Some(1));
    let error = "the model ended its turn inside its thought, without an answer; give --thinking off where the model can, or \
                 another temperature";
    let expected = json!({
        "probe": "SR", "thought": THOUGHT[0], "completion_tokens": 1, "cut": true, "error": error
    });
    assert_eq!(rows(&out), [expected]);
}

#[test]
fn how_much_is_thought_is_said_to_templates_that_read_it_and_refused_by_others() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let [.., oss] = families();
    oss.write(&at("oss"));
    families()[3].write(&at("qwen"));
    assert_eq!(run(&at("oss"), &at("high"), &["--reasoning-effort", "high"]).code, Some(0));
    let policy = json!({ "mode": "on", "max_tokens": 4096, "reasoning_effort": "high" });
    assert_eq!(identity(&at("high"))["thinking"], policy);
    let other = run(&at("oss"), &at("high"), &["--reasoning-effort", "low"]);
    assert!(other.code == Some(1) && other.err.contains("thinking.reasoning_effort"), "{}", other.err);
    let refused = run(&at("qwen"), &at("no"), &["--thinking", "on", "--reasoning-effort", "high"]);
    assert!(
        refused.code == Some(1) && refused.err.contains("does not read `reasoning_effort`; leave it out"),
        "{}",
        refused.err
    );
    for flags in [
        &["--thinking", "off", "--max-thinking", "7"][..],
        &["--thinking", "off", "--reasoning-effort", "low"],
        &["--chat-template-kwargs", "{\"enable_thinking\": true}"],
        &["--chat-template-kwargs", "[1]"],
    ] {
        let refused = run(&at("qwen"), &at("no"), flags);
        assert_eq!(refused.code, Some(2), "{flags:?}: {}", refused.err);
    }
    // Prompt, thought and answer must fit together.
    let tight = run(&at("qwen"), &at("no"), &["--thinking", "on", "--context", "4100"]);
    assert!(tight.code == Some(2) && tight.err.contains("--max-thinking 4096"), "{}", tight.err);
}
