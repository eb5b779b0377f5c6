//! A local judge that thinks: it is asked for JSON, its thought is separate from its verdicts, and both ways of judging coexist.

use std::path::{Path, PathBuf};

use palimpsest::runs::cost::CostRow;
use palimpsest::runs::rows::{ReplyRow, VerdictRow};
use serde::de::DeserializeOwned;

use super::model::{VERDICTS, write};
use super::templates::{LLAMA, QWEN3_5};
use crate::cli::{Ended, palimpsest};

struct Desk {
    root: tempfile::TempDir,
}

impl Desk {
    /// A run of one case, whose answers equal the judge's output.
    fn new() -> Self {
        let desk = Desk { root: tempfile::tempdir().unwrap() };
        let chain = ["\n", "Let me see:", " it was", "</think>", "\n\n", VERDICTS, "<|im_end|>"];
        write(&desk.at("judge"), QWEN3_5, &[&chain], "<|im_end|>");
        let (model, run) = (desk.at("judge"), desk.at("run"));
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
            "--no-attention",
        ];
        let paths = ["--model", model.to_str().unwrap(), "--out", run.to_str().unwrap()];
        let answered = palimpsest([&start[..], &paths].concat());
        assert_eq!(answered.code, Some(0), "{}", answered.err);
        desk
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn judge(&self, model: &Path, more: &[&str]) -> Ended {
        let name = format!("local:{}", model.display());
        palimpsest([&["judge", self.at("run").to_str().unwrap(), "--judge", &name], more].concat())
    }

    fn rows<T: DeserializeOwned>(&self, name: &str) -> Vec<T> {
        let text = std::fs::read_to_string(self.at("run").join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[test]
fn a_local_judge_that_thinks_is_asked_for_json_and_its_thought_is_no_verdict() {
    let desk = Desk::new();
    let judge = desk.at("judge");
    let done = desk.judge(&judge, &["--thinking", "on"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.out.contains("3 of 3 verdicts (0 from before, 3 new, 0 errors)"), "{}", done.out);
    let rows: Vec<VerdictRow> = desk.rows("verdicts.jsonl");
    let said: Vec<_> =
        rows.iter().map(|r| (r.probe.as_str(), r.correct, r.reason.as_deref(), r.probability)).collect();
    let expected = [
        ("SR", Some(true), Some("a"), None),
        ("PR", Some(false), Some("b"), None),
        ("IPA", Some(true), Some("c"), None),
    ];
    assert_eq!(said, expected);
    assert!(rows.iter().all(|row| row.judge == "local:judge"));
    let replies: Vec<ReplyRow> = desk.rows("replies.jsonl");
    assert_eq!(replies[0].replies, [VERDICTS], "the thought is no part of it");
    // One call: three thought tokens, the marker's line, the verdicts, and no retry cost.
    let costs: Vec<CostRow> = desk.rows("costs.jsonl");
    let costs: Vec<_> = costs.into_iter().filter(|row| row.judge.is_some()).collect();
    assert_eq!((costs.len(), costs[0].cost.tokens_generated), (1, Some(5)));
    assert_eq!(desk.judge(&judge, &["--thinking", "on"]).code, Some(0));
    assert_eq!(desk.rows::<VerdictRow>("verdicts.jsonl").len(), 3, "nothing is judged twice");
}

#[test]
fn the_report_holds_thoughts_and_says_how_the_model_was_told_to_think() {
    let desk = Desk::new();
    let reported = palimpsest(["report", desk.at("run").to_str().unwrap()]);
    assert_eq!(reported.code, Some(0), "{}", reported.err);
    let page = std::fs::read_to_string(desk.at("run").join("report.html")).unwrap();
    let fact = "<tr><th scope=\"row\">Thoughts</th><td>on, at most 4096 tokens beside the answer</td></tr>";
    assert!(page.contains(fact), "{page}");
    assert_eq!(page.matches("\"thought\":\"Let me see: it was\"").count(), 3);
}

#[test]
fn verdicts_of_the_same_judge_with_and_without_a_thought_are_not_taken_for_each_other() {
    let desk = Desk::new();
    let judge = desk.at("judge");
    let said = |more: &[&str]| {
        let done = desk.judge(&judge, &[&["--reasons", "first"], more].concat());
        assert_eq!(done.code, Some(0), "{}", done.err);
        done.out
    };
    assert!(said(&[]).contains("(0 from before, 3 new, 0 errors)"));
    assert!(said(&["--thinking", "on"]).contains("(0 from before, 3 new, 0 errors)"));
    let rows: Vec<VerdictRow> = desk.rows("verdicts.jsonl");
    assert_eq!(rows.len(), 6);
    assert!(rows[..3].iter().all(|row| row.probability.is_some() && row.rubric != rows[3].rubric));
    for flags in [&[][..], &["--thinking", "on"], &["--thinking", "on", "--max-thinking", "64"]] {
        assert!(said(flags).contains("(3 from before, 0 new, 0 errors)"), "{flags:?}");
    }
}

#[test]
fn a_thought_that_ends_the_budget_is_an_error_row_that_more_room_mends() {
    let desk = Desk::new();
    let judge = desk.at("judge");
    let cut = desk.judge(&judge, &["--thinking", "on", "--max-thinking", "2"]);
    assert_eq!(cut.code, Some(1), "{}", cut.err);
    for row in desk.rows::<VerdictRow>("verdicts.jsonl") {
        let error = row.error.unwrap();
        assert!(error.starts_with("the judge gave no verdict: the budget for thinking ended"), "{error}");
    }
    let mended = desk.judge(&judge, &["--thinking", "on"]);
    assert!(mended.out.contains("3 of 3 verdicts (0 from before, 3 new, 0 errors)"), "{}", mended.out);
}

#[test]
fn flags_of_replies_are_refused_where_there_is_none_and_thoughts_where_the_model_has_none() {
    let desk = Desk::new();
    for (flags, what) in [
        (&["--max-thinking", "64"][..], "--max-thinking is for judges that write a reply"),
        (&["--max-new-tokens", "64"], "--max-new-tokens is for judges that write a reply"),
        (&["--thinking", "off", "--max-thinking", "64"], "drop one of the two"),
        (&["--thinking", "on", "--chat-template-kwargs", "{}"], "is for endpoints"),
    ] {
        let refused = desk.judge(&desk.at("judge"), flags);
        assert!(refused.code == Some(2) && refused.err.contains(what), "{flags:?}: {}", refused.err);
    }
    write(&desk.at("llama"), LLAMA, &[&["\n\n", VERDICTS, "<|eot_id|>"]], "<|eot_id|>");
    let refused = desk.judge(&desk.at("llama"), &["--thinking", "on"]);
    assert!(refused.code == Some(1) && refused.err.contains("no thoughts to switch on"), "{}", refused.err);
    assert!(desk.rows::<VerdictRow>("verdicts.jsonl").is_empty());
}
