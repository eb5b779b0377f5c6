//! Commands on the sample under all four settings: data, run, table, figures, report. A scripted judge replaces a capable one, since the
//! waterfall needs right and wrong answers.

use std::sync::atomic::AtomicBool;

use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::chat::{ChatError, ChatModel, Message, Reply, Sampling};
use palimpsest::ground::jsonl::RowLog;
use palimpsest::judge::{self, Judge, Reasons, check_labels, label_instructions};
use palimpsest::runs::labels::LABELS;
use palimpsest::runs::store::{RunFolder, RunStore};

use crate::cli::{done, palimpsest, shown};
use crate::judge::said;
use crate::parity::fixture;

const SAMPLING: Sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 64 };

/// Judges by call order: 5 questions under each setting in turn, the first `right` of them correct.
struct Planned {
    calls: usize,
    right: [usize; 4],
}

impl ChatModel for Planned {
    fn name(&self) -> String {
        "scripted".to_owned()
    }

    fn reply(&mut self, messages: &[Message], _: &Sampling) -> Result<Reply, ChatError> {
        let asked = &messages[0].content;
        let text = if asked.contains("Decide how they relate") {
            let id = asked.split("Its key is \"").nth(1).unwrap().split('"').next().unwrap();
            format!("{{\"{id}\": {{\"choice\": \"nuanced\"}}}}")
        } else {
            let (setting, place) = (self.calls / 5, self.calls % 5);
            self.calls += 1;
            let label = if place < self.right[setting] { "CORRECT" } else { "WRONG" };
            format!("{{\"label\": \"{label}\", \"reason\": \"planned\"}}")
        };
        Ok(said(text))
    }
}

#[test]
fn the_sample_goes_through_all_settings_to_the_waterfall_and_the_report() {
    let root = tempfile::tempdir().unwrap();
    let (data, out) = (root.path().join("sample"), root.path().join("run"));
    let wrote = done(palimpsest(["data", "sample", "--benchmark", "subtlememory", "--out", shown(&data)]));
    assert!(wrote.out.contains(": 1 case, ") && wrote.out.contains("15 questions"), "{}", wrote.out);
    let checked = done(palimpsest(["data", "check", shown(&data)]));
    assert!(checked.out.contains("contradictory 3"), "{}", checked.out);

    let model = fixture("llama-tiny");
    let fixed = ["run", "--data", shown(&data), "--model", shown(&model), "--out", shown(&out)];
    let more = ["--max-new-tokens", "3", "--context", "16384", "--allow-longer", "--limit-probes", "5"];
    let conditions = ["--conditions", "oracle,perfect,default,full"];
    palimpsest([&fixed[..], &more[..], &conditions[..]].concat());
    let folder = RunFolder::read(&out).unwrap();
    assert_eq!(folder.header.identity.condition_names(), ["oracle", "perfect", "default", "full"]);
    assert_eq!(folder.answers.len(), 20);
    let errors: Vec<_> = folder.answers.iter().filter_map(|row| row.error.as_ref()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    // For BM25, perfect retrieval of the target sessions returns the sessions themselves.
    let prompts = |condition: &str| -> Vec<Option<usize>> {
        folder.answers.iter().filter(|row| row.condition == condition).map(|row| row.prompt_tokens).collect()
    };
    assert_eq!(prompts("oracle"), prompts("perfect"));
    let longest = |condition: &str| prompts(condition).into_iter().flatten().max().unwrap();
    assert!(longest("oracle") < longest("default") && longest("default") < longest("full"));

    let mut store = RunStore::open(&out).unwrap();
    let mut scripted = Planned { calls: 0, right: [4, 3, 2, 1] };
    let mut by_reply = Judge::Reply { models: vec![&mut scripted], sampling: SAMPLING };
    let stop = AtomicBool::new(false);
    let judged = judge::run(&mut store, &mut by_reply, &SUBTLEMEMORY.rubric(), &stop, false).unwrap();
    assert_eq!((judged.done, judged.errors), (20, 0));
    let check = SUBTLEMEMORY.label_check.unwrap();
    let instructions = label_instructions(&check, Reasons::Last);
    let plan = store.plan().to_vec();
    let mut log = RowLog::open(&out, LABELS).unwrap();
    let labels = check_labels(&mut log, &plan, &check, &mut by_reply, &instructions, &stop, false).unwrap();
    assert_eq!((labels.done, labels.errors), (4, 0));
    drop((store, log));

    let table = done(palimpsest(["table", shown(&out)]));
    for part in [
        "accuracy by relation and subtype (table 1)",
        "95% intervals of the accuracies (table 11)",
        "oracle against the best memory system of each answer model (table 12)",
        "accuracy under perfect retrieval (table 13)",
        "the waterfall of diagnosis (figure 3)",
        "BM25 stores the sessions themselves",
        "Cohen's kappa",
        "scripted: kappa 0.000, 1 of 4 agree",
    ] {
        assert!(table.out.contains(part), "{part}\n{}", table.out);
    }
    // 4 correct under oracle, 3 of them preserved, 2 of these retrieved, none outside; BM25's memory loss is judge noise.
    let row =
        table.out.lines().find(|line| line.contains("default") && line.contains(" all ")).unwrap_or_default();
    let numbers: Vec<&str> = row.split_whitespace().rev().take(14).collect();
    assert_eq!(numbers[..6], ["0", "0", "1", "0", "1", "1"], "{row}");
    assert_eq!(numbers[6..], ["0", "2", "66.67", "75.00", "2", "3", "4", "5"], "{row}");

    let pictures = root.path().join("figures");
    done(palimpsest(["figures", shown(&out), "--out", shown(&pictures)]));
    let csv = std::fs::read_to_string(pictures.join("waterfall.csv")).unwrap();
    assert!(csv.contains("all,lost in retrieval,1") && csv.contains("all,kept,2"), "{csv}");
    let drawn = std::fs::read_dir(&pictures).unwrap().map(|entry| entry.unwrap().file_name());
    let drawn: Vec<String> = drawn.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(drawn.iter().any(|name| name.contains("measures-relation")), "{drawn:?}");
    done(palimpsest(["report", shown(&out)]));
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Labels checked") && page.contains("kappa 0.000, 1 of 4 agree"));
    assert!(page.contains("The waterfall of diagnosis"));
}
