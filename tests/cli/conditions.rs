//! Every benchmark's sample: export, check, run under conditions, kill and resume.
use super::resume::{interrupt, signal};
use super::*;

const BENCHMARKS: [&str; 4] = ["stale", "subtlememory", "knowme", "memrewardbench"];

/// A short run of a benchmark's sample into `out`.
fn sample_command(benchmark: &str, out: &Path, more: &[&str]) -> Command {
    let mut command = command(["run", "--max-new-tokens", "4", "--context", "8192", "--allow-longer"]);
    command.arg("--data").arg(format!("sample:{benchmark}")).arg("--model").arg(model());
    command.arg("--out").arg(out).args(more);
    command
}

#[test]
fn every_benchmarks_sample_is_written_recognised_and_sound() {
    let root = tempfile::tempdir().unwrap();
    for benchmark in BENCHMARKS {
        let out = root.path().join(benchmark);
        let at = out.to_str().unwrap();
        let written = palimpsest(["data", "sample", "--benchmark", benchmark, "--out", at]);
        assert_eq!(written.code, Some(0), "{benchmark}: {}", written.err);
        let checked = palimpsest(["data", "check", at]);
        assert_eq!(checked.code, Some(0), "{benchmark}: {}{}", checked.out, checked.err);
        assert!(checked.out.contains("no problems"), "{benchmark}: {}", checked.out);
        // The exported file equals `sample:NAME`, except for the sessions of the first case.
        let dir = root.path().join(format!("run-{benchmark}"));
        let run = ended(sample_command(benchmark, &dir, &["--limit-probes", "1", "--no-attention"]));
        assert_eq!(run.code, Some(0), "{benchmark}: {}", run.err);
        let header = RunFolder::read(&dir).unwrap().header;
        assert_eq!(header.identity.benchmark, benchmark);
        let digest = &header.identity.dataset.digest;
        assert_eq!(checked.out.contains(digest), benchmark != "stale", "{benchmark}: {}", checked.out);
        if out.is_dir() {
            let again = palimpsest(["data", "sample", "--benchmark", benchmark, "--out", at]);
            assert_eq!(again.code, Some(1), "a folder that holds something is not written into");
            assert!(again.err.contains("not an empty folder"), "{}", again.err);
        }
    }
    let unknown = palimpsest(["data", "sample", "--benchmark", "none", "--out", "nowhere"]);
    assert_eq!(unknown.code, Some(2));
    assert!(BENCHMARKS.iter().all(|name| unknown.err.contains(name)), "{}", unknown.err);
}

#[test]
fn wrong_conditions_are_refused_with_those_that_there_are() {
    let root = tempfile::tempdir().unwrap();
    let refused = |benchmark: &str, conditions: &str, part: &str| {
        let out = root.path().join("refused");
        let run = ended(sample_command(benchmark, &out, &["--conditions", conditions]));
        assert_eq!(run.code, Some(2), "{benchmark} {conditions}: {}", run.err);
        assert!(run.err.contains(part), "{benchmark} {conditions}: {}", run.err);
        assert!(!out.exists(), "nothing was begun");
    };
    refused("subtlememory", "oracle,nothing", "\n  oracle: ");
    refused("memrewardbench", "chosen-first,chosen-first", "twice");
    refused("stale", "whole", "\n  none: the question alone");
    // Its answers are read by the order of the two, which generic conditions do not give.
    refused("memrewardbench", "full", "which MemoryRewardBench does not have");
}

#[test]
fn every_benchmark_can_be_asked_without_a_history() {
    let root = tempfile::tempdir().unwrap();
    for benchmark in ["stale", "knowme", "subtlememory"] {
        let out = root.path().join(benchmark);
        let more = ["--conditions", "none,rag", "--limit-probes", "2", "--limit", "1"];
        let run = ended(sample_command(benchmark, &out, &more));
        assert_eq!(run.code, Some(0), "{benchmark}: {}", run.err);
        let rows = palimpsest::runs::store::RunFolder::read(&out).unwrap().answers;
        let context = |condition: &str| {
            let row = rows.iter().find(|row| row.condition == condition).unwrap();
            row.context.as_ref().map(Vec::len)
        };
        assert_eq!(context("none"), Some(0), "{benchmark}");
        assert!(context("rag").unwrap() > 0, "{benchmark}");
    }
}

#[test]
#[cfg(unix)]
fn a_run_under_conditions_killed_and_started_again_ends_with_the_same_files() {
    let root = tempfile::tempdir().unwrap();
    let cases: [(&str, &[&str], usize); 3] = [
        ("subtlememory", &["--conditions", "oracle,default", "--limit-probes", "3"], 6),
        ("knowme", &["--conditions", "rag", "--limit-probes", "4"], 4),
        ("memrewardbench", &["--limit", "3"], 6),
    ];
    for (benchmark, more, rows) in cases {
        let at = |name: &str| root.path().join(format!("{benchmark}-{name}"));
        let (whole, dir) = (at("whole"), at("killed"));
        let done = ended(sample_command(benchmark, &whole, more));
        assert_eq!(done.code, Some(0), "{benchmark}: {}", done.err);
        let answers = dir.join("answers.jsonl");
        let lines = || {
            let bytes = std::fs::read(&answers).unwrap_or_default();
            bytes.iter().filter(|byte| **byte == b'\n').count()
        };
        // Several answers are decoded as one batch, so their rows are written almost at once.
        for reached in [1, 2] {
            let killed =
                interrupt(sample_command(benchmark, &dir, more), || lines() >= reached, signal("-KILL"));
            assert!(killed.code.is_none() || lines() == rows, "{benchmark}: {}", killed.err);
        }
        let resumed = ended(sample_command(benchmark, &dir, more));
        assert_eq!(resumed.code, Some(0), "{benchmark}: {}", resumed.err);
        assert_eq!(lines(), rows);
        assert_same_files(&whole, &dir);
    }
}

#[test]
fn answers_that_say_what_they_choose_are_judged_without_a_judge() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pairs");
    assert_eq!(ended(sample_command("memrewardbench", &dir, &["--limit", "2"])).code, Some(0));
    let judged = palimpsest(["judge", dir.to_str().unwrap()]);
    assert_eq!(judged.code, Some(0), "unparsed answers are no failure: {}", judged.err);
    let folder = RunFolder::read(&dir).unwrap();
    let judges: Vec<&str> = folder.verdicts.iter().map(|row| row.judge.as_str()).collect();
    for judge in ["lenient", "strict"] {
        assert_eq!(judges.iter().filter(|name| **name == judge).count(), 4, "{judges:?}");
    }
    let table = palimpsest(["table", dir.to_str().unwrap()]);
    assert_eq!(table.code, Some(0), "{}", table.err);
    let sample = root.path().join("stale");
    assert_eq!(ended(sample_command("stale", &sample, &["--limit", "1", "--sessions", "3"])).code, Some(0));
    let without = palimpsest(["judge", sample.to_str().unwrap()]);
    assert_eq!(without.code, Some(2), "another benchmark needs a judge");
    assert!(without.err.contains("--judge"), "{}", without.err);
}
