//! `why` labels of a run's answers: rows, resume, rejected input, and where labels appear.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use palimpsest::runs::why_rows::{Label, WHY, WhyRow, read_why};
use palimpsest::why::labels::Labels;
use serde_json::Value;

use super::contrasts::run_of;
use super::endpoints::answering_server;
use super::knockouts::fixture;
use super::*;

fn why(name: &str, dir: &Path, more: &[&str]) -> Command {
    let mut command = command(["why"]);
    command.arg(dir).arg("--model").arg(fixture(name)).args(more);
    command
}

/// A run of dose's sample, judged by its rules.
fn judged(dir: &Path) {
    assert_eq!(ended(run_of_tiny(dir)).code, Some(0));
    let judged = palimpsest(["judge", dir.to_str().unwrap()]);
    assert_eq!(judged.code, Some(0), "{}", judged.err);
}

fn run_of_tiny(dir: &Path) -> Command {
    run_of("llama-tiny", dir, &[])
}

#[test]
#[cfg(unix)]
fn labels_are_gone_on_with_and_shown_by_tables_the_report_and_exports() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    judged(&dir);
    let done = ended(why("llama-tiny", &dir, &["--readings", "6"]));
    assert_eq!(done.code, Some(0), "{}", done.err);
    let rows = read_why(&dir).unwrap();
    assert_eq!(rows.len(), 8);
    for row in &rows {
        // A reading without changes equals the run's.
        let folder = RunFolder::read(&dir).unwrap();
        let answer = folder.answers.iter().find(|answer| answer.key() == row.key()).unwrap();
        let (plain, contrast) = (row.plain.unwrap(), answer.contrast.as_ref().unwrap());
        assert!((plain.value - contrast.value).abs() < 1e-4, "{row:?}");
        let search = row.search.unwrap();
        assert!(search.sessions + search.layers <= 6, "{row:?}");
        if let Some(certificate) = &row.certificate {
            assert!((certificate.before > 0.0) != (certificate.after > 0.0), "{row:?}");
        }
        let evidence =
            row.newer.iter().chain(&row.older).map(|side| 1 + side.blocked.controls).sum::<usize>();
        assert!(row.readings >= 1 + evidence + search.sessions + search.layers, "{row:?}");
    }

    // A missing row and a truncated line: missing labels are made again, identically.
    let file = dir.join(WHY);
    let text = std::fs::read_to_string(&file).unwrap();
    let half: String = text.lines().take(3).map(|line| format!("{line}\n")).collect();
    std::fs::write(&file, half + "{\"case\": \"torn").unwrap();
    let again = ended(why("llama-tiny", &dir, &["--readings", "6"]));
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.err.contains("5 rows added") && again.err.contains("3 were there"), "{}", again.err);
    assert_eq!(again.out, done.out);
    let key = |row: &WhyRow| {
        (row.case.clone(), row.label, row.certificate.as_ref().map(|one| one.sessions.clone()))
    };
    let keys = |rows: &[WhyRow]| rows.iter().map(key).collect::<Vec<_>>();
    assert_eq!(keys(&read_why(&dir).unwrap()), keys(&rows));

    // Other settings and another judge add rows; the last one counts.
    let exact = ended(why("llama-tiny", &dir, &["--readings", "6", "--controls", "3", "--judge", "exact"]));
    assert_eq!(exact.code, Some(0), "{}", exact.err);
    let all = read_why(&dir).unwrap();
    assert_eq!(all.len(), 16);
    // Three controls cannot rule out random text.
    assert!(
        all[8..].iter().all(|row| ![Label::NoEffect, Label::Overridden, Label::Carried].contains(&row.label))
    );

    let name = dir.to_str().unwrap();
    let table = palimpsest(["table", name]);
    assert!(table.out.contains("by verdicts of exact"), "{}", table.out);
    let report = palimpsest(["report", name]);
    assert_eq!(report.code, Some(0), "{}", report.err);
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    let section = page.split("<h2 id=\"why\">Why answers are as they are</h2>").nth(1);
    assert!(section.is_some_and(|section| section.contains("undecided answer")), "no section of labels");
    let exported = palimpsest(["export", "--format", "inspect", name]);
    let log: Value = serde_json::from_str(&exported.out).unwrap();
    let labels: Vec<&str> = log["samples"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["metadata"]["why"]["label"].as_str())
        .collect();
    assert_eq!(labels.len(), 8);

    // Sentences count every answer once: first the right ones, then one label each.
    let folder = RunFolder::read(&dir).unwrap();
    let labels = Labels::open(&folder).unwrap().unwrap();
    let first_number = |said: &String| said.split(' ').next().unwrap().parse::<usize>().unwrap();
    let counts = labels.counts_in_words();
    let right = labels.answers.iter().filter(|(_, row)| row.label == Label::Right).count();
    assert_eq!((first_number(&counts[0]), counts.iter().map(first_number).sum::<usize>()), (right, 8));
    // Labels by verdicts of a judge that cannot judge are withheld: no table, no count.
    let text = std::fs::read_to_string(&file).unwrap();
    let by_small = |judge: &str| format!("\"judge\":\"{judge}\"");
    let text = ["exact", "choice"]
        .iter()
        .fold(text, |text, judge| text.replace(&by_small(judge), &by_small("local:m-135m")));
    std::fs::write(&file, text).unwrap();
    let folder = RunFolder::read(&dir).unwrap();
    let labels = Labels::open(&folder).unwrap().unwrap();
    assert!(labels.answers.is_empty() && labels.table(name).is_none() && labels.withheld.is_some());
    assert_eq!(labels.in_words().len(), 1);
    assert_eq!(palimpsest(["report", name]).code, Some(0));
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    // Once in the wide layout, once in that for phones.
    assert_eq!(page.matches("Labels are withheld: local:m-135m has about 135 million").count(), 2);
    assert!(!page.contains("undecided answer"));
}

#[test]
fn the_label_without_effect_keeps_its_name_in_files() {
    assert_eq!(serde_json::to_value(Label::NoEffect).unwrap(), "not read");
    for name in ["not read", "no effect"] {
        assert_eq!(serde_json::from_value::<Label>(name.into()).unwrap(), Label::NoEffect);
    }
}

#[test]
fn labels_need_verdicts_two_sides_attention_and_the_runs_model() {
    let root = tempfile::tempdir().unwrap();
    let refused = |command: Command, code: i32, part: &str| {
        let done = ended(command);
        assert!(done.code == Some(code) && done.err.contains(part), "{:?}: {}", done.code, done.err);
    };
    let (dir, bare, other) = (root.path().join("run"), root.path().join("bare"), root.path().join("other"));
    assert_eq!(ended(run_of_tiny(&dir)).code, Some(0));
    refused(why("llama-tiny", &dir, &[]), 1, "palimpsest judge");
    assert_eq!(palimpsest(["judge", dir.to_str().unwrap()]).code, Some(0));
    refused(why("llama-tiny", &dir, &["--judge", "nobody"]), 1, "it has verdicts of");
    refused(why("llama-tiny", &dir, &["--readings", "0"]), 2, "--readings");
    // Verdicts that are no result are not explained: no forward pass is made.
    let file = dir.join("verdicts.jsonl");
    let verdicts = std::fs::read_to_string(&file).unwrap();
    let by_small = verdicts.replace("\"judge\":\"exact\"", "\"judge\":\"local:m-135m\"");
    assert_ne!(by_small, verdicts);
    std::fs::write(&file, by_small).unwrap();
    refused(why("llama-tiny", &dir, &["--judge", "local:m-135m"]), 1, "cannot judge");
    assert!(!dir.join(WHY).exists());
    std::fs::write(&file, verdicts).unwrap();
    refused(why("gemma3-tiny", &dir, &[]), 1, "digest");
    assert_eq!(ended(run_of("llama-tiny", &bare, &["--no-attention"])).code, Some(0));
    refused(why("llama-tiny", &bare, &[]), 1, "--no-attention");
    let mut knowme = command(["run", "--data", "sample:knowme", "--limit", "1", "--limit-probes", "1"]);
    knowme.args(["--context", "4096", "--max-new-tokens", "2", "--allow-longer", "--model"]);
    knowme.arg(fixture("llama-tiny")).arg("--out").arg(&other);
    let done = ended(knowme);
    assert_eq!(done.code, Some(0), "{}", done.err);
    refused(why("llama-tiny", &other, &[]), 1, "has no such sides");
}

/// Correct if the response has an even number of characters: some knock-outs flip it.
fn by_letters(request: &str) -> String {
    let request: Value = serde_json::from_str(request).unwrap_or_default();
    let text = request["messages"][0]["content"].as_str().unwrap_or_default().to_owned();
    let verdict = |probe: &str| {
        let said = text.split(&format!("<exchange id=\"{probe}\">")).nth(1).unwrap_or_default();
        let said = said.split("Assistant: ").nth(1).and_then(|said| said.split("</exchange>").next());
        let even = said.unwrap_or_default().chars().count() % 2 == 0;
        (probe.to_owned(), serde_json::json!({"reason": "letters", "correct": even}))
    };
    Value::Object(["SR", "PR", "IPA"].into_iter().map(verdict).collect()).to_string()
}

#[test]
fn answers_generated_anew_are_put_to_the_endpoint_that_judged_them() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let mute = Arc::new(AtomicBool::new(false));
    let (muted, calls) = (Arc::clone(&mute), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let judge = answering_server(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        if muted.load(Ordering::SeqCst) { "I cannot tell.".to_owned() } else { by_letters(&request) }
    });
    let mut run =
        command(["run", "--data", "sample", "--sessions", "5", "--limit", "1", "--max-new-tokens", "8"]);
    run.args(["--context", "4096", "--allow-longer", "--model"])
        .arg(fixture("llama-tiny"))
        .arg("--out")
        .arg(&dir);
    let done = ended(run);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let judged = palimpsest(["judge", dir.to_str().unwrap(), "--judge", &judge]);
    assert_eq!(judged.code, Some(0), "{}", judged.err);

    // An address that the run folder alone names is sent nothing.
    let before = calls.load(Ordering::SeqCst);
    for more in [&["--anew"][..], &["--anew", "--judge", "stub"]] {
        let mut command = why("llama-tiny", &dir, more);
        let refused = ended({
            command.env("PALIMPSEST_API_KEY", "sk-secret-of-this-test");
            command
        });
        assert_eq!(refused.code, Some(1), "{}", refused.err);
        assert!(refused.err.contains(&format!("--judge {judge}")), "{}", refused.err);
    }
    assert_eq!(calls.load(Ordering::SeqCst), before);

    // A judge without a verdict leaves no label; a rerun asks again.
    mute.store(true, Ordering::SeqCst);
    let silent = ended(why("llama-tiny", &dir, &["--anew", "--judge", &judge]));
    assert!(silent.err.contains("3 answers have no label"), "{}", silent.err);
    assert_eq!(silent.code, Some(3));
    assert_eq!(read_why(&dir).unwrap().len(), 0);
    mute.store(false, Ordering::SeqCst);
    let before = calls.load(Ordering::SeqCst);
    let mut by_host = why("llama-tiny", &dir, &["--anew", "--key", "127.0.0.1=KEY_OF_THIS_TEST"]);
    by_host.env("KEY_OF_THIS_TEST", "sk-secret-of-this-test");
    let done = ended(by_host);
    assert_eq!(done.code, Some(0), "{}", done.err);
    let rows = read_why(&dir).unwrap();
    assert_eq!(rows.len(), 3);
    let searched: usize = rows.iter().filter_map(|row| row.search).map(|search| search.sessions).sum();
    assert!(searched > 0 && calls.load(Ordering::SeqCst) - before >= searched, "{rows:?}");
    let certificates: Vec<_> = rows.iter().filter_map(|row| row.certificate.as_ref()).collect();
    assert!(!certificates.is_empty(), "{rows:?}");
    assert!(certificates.iter().all(|one| one.answer.is_some()), "{certificates:?}");
}
