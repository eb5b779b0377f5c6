//! The commands as a user types them, with a tiny random model.
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use palimpsest::runs::store::{RunFolder, RunStore};

pub mod agree;
mod bad_input;
mod broken_rows;
mod causes_figures;
mod causes_named;
mod causes_rows;
mod conditions;
mod contrasts;
mod endpoints;
mod evict;
mod export;
mod foreign;
mod ground_truth;
mod heads;
mod hostile;
mod knockouts;
#[cfg(target_os = "linux")]
mod memory_ends;
mod memory_runs;
mod old_folder;
mod own;
mod parity;
mod progress;
mod removals;
mod repairs;
pub mod resume;
mod rubrics;
mod selected;
mod selftest;
mod special_tokens;
mod thought_causes;
mod tour;
mod truncation;
mod why;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny")
}

/// A command with backtraces enabled.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
    command.args(args).env("RUST_BACKTRACE", "1").env_remove("RUST_LOG").env_remove("RUST_LIB_BACKTRACE");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Exit code and output of a command.
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

pub fn ended(mut command: Command) -> Ended {
    let output = command.output().unwrap();
    Ended {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

pub fn palimpsest<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    ended(command(args))
}

/// Asserts success.
pub fn done(ended: Ended) -> Ended {
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.out, ended.err);
    ended
}

pub fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A short run of the sample into `out`.
fn run_command(out: &Path, more: &[&str]) -> Command {
    let mut command = command(["run", "--data", "sample", "--sessions", "3", "--max-new-tokens", "8"]);
    command.arg("--model").arg(model()).arg("--out").arg(out).args(more);
    command
}

fn run(out: &Path, more: &[&str]) -> Ended {
    ended(run_command(out, more))
}

/// All files of a folder except the lock, by name.
pub fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            // Costs differ from run to run.
            } else if !["run.lock", "build.lock", "costs.jsonl"]
                .map(|name| Some(OsStr::new(name)))
                .contains(&path.file_name())
            {
                found.insert(path.strip_prefix(dir).unwrap().to_owned(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Fails with the names of the differing files, not their contents.
pub fn assert_same_files(one: &Path, other: &Path) {
    let (one, other) = (files(one), files(other));
    let differ: Vec<_> =
        one.keys().chain(other.keys()).filter(|name| one.get(*name) != other.get(*name)).collect();
    assert!(differ.is_empty(), "{differ:?}");
}

#[test]
fn a_run_says_what_came_of_it_and_what_to_do_next() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let done = run(&dir, &["--only", "t1/sr", "--limit", "1"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert!(done.out.contains("1 of 1 answers") && done.out.contains("palimpsest view"), "{}", done.out);
    let (_, finding) = done.out.split_once("\n\nThe question pays ").unwrap();
    let finding = finding.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(finding.contains(", 1 case") && finding.ends_with("in 1 of 1 answer."), "{}", done.out);
    let folder = RunFolder::read(&dir).unwrap();
    assert_eq!((folder.plan.len(), folder.answers.len()), (1, 1));
    assert_eq!(folder.answers[0].probe, "SR");
    assert!(folder.attention(&folder.answers[0]).unwrap().is_some());
}

#[test]
fn stats_say_where_a_runs_time_went_and_change_no_byte_of_it() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let stats = at("stats.json");
    let stats = stats.to_str().unwrap();
    let read = || -> serde_json::Value { serde_json::from_slice(&std::fs::read(stats).unwrap()).unwrap() };
    let one = ["--only", "t1/sr", "--limit", "1"];
    let plain = run(&at("plain"), &one);
    let timed = run(&at("timed"), &[&one[..], &["--stats", stats]].concat());
    assert_eq!((plain.code, timed.code), (Some(0), Some(0)), "{}", timed.err);
    assert_eq!(plain.out.replace("plain", "timed"), timed.out);
    assert!(timed.err.contains("prefill attention") && timed.err.contains("unaccounted"), "{}", timed.err);
    assert!(!plain.err.contains("attention"), "{}", plain.err);
    assert_same_files(&at("plain"), &at("timed"));

    let json = read();
    let answer = RunFolder::read(&at("timed")).unwrap().answers.remove(0);
    assert_eq!(json["tokens"].as_u64(), answer.prompt_tokens.map(|n| n as u64));
    // Every token but the first is sampled after a decode step; the last one is not fed back.
    assert_eq!(json["calls"]["sampling"].as_u64(), json["decode_tokens"].as_u64().map(|n| n + 1));
    for part in ["load", "tokenise", "sampling", "io"] {
        assert!(json["calls"][part].as_u64().unwrap() > 0, "{part}: {json}");
    }
    assert!(json["calls"]["prefill"]["observer"].as_u64().unwrap() > 0, "{json}");
    let within = ["prefill", "decode"].map(|phase| json["seconds"][phase].as_object().unwrap());
    let alone = json["seconds"].as_object().unwrap().iter().filter(|(part, _)| *part != "wall");
    let parts: Vec<f64> =
        alone.chain(within.into_iter().flatten()).filter_map(|(_, seconds)| seconds.as_f64()).collect();
    assert!(parts.len() == 13 && parts.iter().all(|&seconds| seconds >= 0.0), "{json}");
    let wall = json["seconds"]["wall"].as_f64().unwrap();
    assert!((parts.iter().sum::<f64>() - wall).abs() < 1e-9, "{json}");

    let unobserved = run(&at("unobserved"), &[&one[..], &["--no-attention", "--stats", stats]].concat());
    assert_eq!(unobserved.code, Some(0), "{}", unobserved.err);
    assert_eq!(read()["observer_seconds"], 0.0);
    let nowhere = run(&at("nowhere"), &["--stats", "no/such/folder/stats.json"]);
    assert!(nowhere.code == Some(1) && nowhere.err.contains("no/such/folder"), "{}", nowhere.err);
    assert!(!at("nowhere").exists());
    let endpoint =
        ["run", "--data", "sample", "--model", "http://127.0.0.1:9/v1#m", "--out", "no", "--stats", stats];
    let refused = palimpsest(endpoint);
    assert!(
        refused.code == Some(2) && refused.err.contains("--stats is for local models"),
        "{}",
        refused.err
    );
}

#[test]
#[cfg(unix)]
fn what_a_run_writes_may_be_read_by_whoever_may_read_new_files() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().unwrap();
    let (dir, plain) = (root.path().join("run"), root.path().join("plain"));
    assert_eq!(run(&dir, &["--limit", "1"]).code, Some(0));
    std::fs::write(&plain, "").unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
    for name in files(&dir).keys() {
        assert_eq!(mode(&dir.join(name)), mode(&plain), "{}", name.display());
    }
}

#[test]
fn a_run_of_one_probe_after_the_other_writes_the_same_files_as_one_of_all_together() {
    let root = tempfile::tempdir().unwrap();
    let (together, alone) = (root.path().join("together"), root.path().join("alone"));
    let settings = ["--limit", "4", "--temperature", "0.9"];
    assert_eq!(run(&together, &settings).code, Some(0));
    assert_eq!(run(&alone, &[&settings[..], &["--batch-size", "1"]].concat()).code, Some(0));
    assert_same_files(&together, &alone);
    // Not part of the run's identity: a half-finished run resumes with the other setting.
    let row = std::fs::read_to_string(together.join("answers.jsonl")).unwrap();
    let rows: Vec<&str> = row.lines().collect();
    std::fs::write(together.join("answers.jsonl"), format!("{}\n", rows[..4].join("\n"))).unwrap();
    let resumed = run(&together, &[&settings[..], &["--batch-size", "2"]].concat());
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(resumed.out.contains("4 from before, 8 new"), "{}", resumed.out);
    assert_same_files(&together, &alone);
}

#[test]
fn shards_merged_equal_the_whole_run() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    assert_eq!(run(&at("whole"), &["--limit", "3"]).code, Some(0));
    assert_eq!(run(&at("a"), &["--limit", "3", "--shard", "0/2"]).code, Some(0));
    let alone = palimpsest([OsStr::new("merge"), at("m").as_os_str(), at("a").as_os_str()]);
    assert_eq!(alone.code, Some(1));
    assert!(alone.err.contains("1/2"), "{}", alone.err);
    assert_eq!(run(&at("b"), &["--limit", "3", "--shard", "1/2"]).code, Some(0));
    let merged =
        palimpsest([OsStr::new("merge"), at("m").as_os_str(), at("b").as_os_str(), at("a").as_os_str()]);
    assert_eq!(merged.code, Some(0), "{}", merged.err);
    assert_same_files(&at("whole"), &at("m"));
}

#[test]
fn answers_survive_export_and_import() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name).display().to_string();
    assert_eq!(run(&root.path().join("run"), &["--limit", "2"]).code, Some(0));
    let (dir, first, again) = (at("run"), at("first.json"), at("again.json"));
    assert_eq!(palimpsest(["export", "--stale", &dir, "--out", &first]).code, Some(0));
    let import = ["import", "--stale", &first, "--data", "sample", "--model-name", "mine", "--out"];
    let refused = palimpsest(import.iter().copied().chain([at("refused").as_str()]));
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("--partial"), "{}", refused.err);
    assert!(!root.path().join("refused").exists());
    let taken = palimpsest(import.iter().copied().chain([at("taken").as_str(), "--partial"]));
    assert_eq!(taken.code, Some(0), "{}", taken.err);
    assert_eq!(palimpsest(["export", "--stale", &at("taken"), "--partial", "--out", &again]).code, Some(0));
    let read = |path: &str| -> Vec<serde_json::Value> {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    let (first, again) = (read(&first), read(&again));
    assert_eq!(first.len(), 2);
    assert_eq!(first, again[..2]);
}

#[test]
fn every_command_explains_itself() {
    let commands: &[&[&str]] = &[
        &[],
        &["run"],
        &["judge"],
        &["trace"],
        &["serve"],
        &["agree"],
        &["agree", "draw"],
        &["agree", "score"],
        &["export"],
        &["import"],
        &["merge"],
        &["data"],
        &["data", "check"],
        &["data", "sample"],
        &["data", "stats"],
        &["model"],
    ];
    for words in commands {
        let help = palimpsest(words.iter().copied().chain(["--help"]));
        assert_eq!(help.code, Some(0), "{words:?}");
        let example = format!("palimpsest {}", words.join(" "));
        assert!(
            help.out.contains("Examples:") && help.out.contains(example.trim()),
            "{words:?}: {}",
            help.out
        );
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let fixture = model();
    let fixture = fixture.to_str().unwrap();
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("run");
    let out = out.to_str().unwrap();
    let run = [
        "run",
        "--data",
        "sample",
        "--sessions",
        "3",
        "--model",
        fixture,
        "--limit",
        "1",
        "--max-new-tokens",
        "2",
    ];
    let run: Vec<&str> = run.into_iter().chain(["--out", out]).collect();
    for args in
        [&["data", "sample"][..], &["model", "list"], &["data", "stats", "sample", "--model", fixture], &run]
    {
        let mut child = command(args).spawn().unwrap();
        // Close both pipes before anything is written.
        drop(child.stdout.take());
        drop(child.stderr.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
}

#[test]
fn an_estimate_says_tokens_time_bytes_and_memory_and_writes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let estimate = run(&dir, &["--limit", "3", "--estimate", "--estimate-seconds", "1"]);
    assert_eq!(estimate.code, Some(0), "{}", estimate.err);
    assert!(!dir.exists(), "an estimate makes no folder");
    for part in ["9 answers on 3 cases", "tokens in", "tokens out", "time ", "bytes ", "memory ", "tokens/s"]
    {
        assert!(estimate.out.contains(part), "{part}: {}", estimate.out);
    }
    // All cases are in the sample, so the token count is exact: the sum of the cost rows.
    assert_eq!(run(&dir, &["--limit", "3"]).code, Some(0));
    let costs = RunFolder::read(&dir).unwrap().costs;
    let sum =
        |of: fn(&palimpsest::runs::cost::Cost) -> usize| costs.iter().map(|row| of(&row.cost)).sum::<usize>();
    let (computed, reused) = (sum(|c| c.tokens_computed.unwrap()), sum(|c| c.tokens_reused.unwrap()));
    let digits: String =
        estimate.out.lines().find(|line| line.starts_with("tokens in")).unwrap().replace(',', "");
    assert!(
        digits.contains(&format!(" {computed} computed {reused} reused")),
        "{digits} is not {computed}, {reused}"
    );
    let stored: u64 =
        std::fs::read_dir(dir.join("attention")).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    let bytes = estimate.out.lines().find(|line| line.starts_with("bytes")).unwrap();
    let megabytes: f64 = bytes.split_whitespace().nth(1).unwrap().parse().unwrap();
    // Without the file headers.
    assert!(
        megabytes * 1e6 <= stored as f64 + 5e4 && megabytes * 1e6 > 0.3 * stored as f64,
        "{bytes}, {stored} bytes"
    );
}

#[test]
fn an_estimate_for_an_endpoint_counts_tokens_and_their_price_and_sends_nothing() {
    // A port without a listener.
    let args =
        ["run", "--data", "sample", "--limit", "2", "--model", "http://127.0.0.1:9/v1#m", "--estimate"];
    let plain = palimpsest(args);
    assert_eq!(plain.code, Some(0), "{}", plain.err);
    assert!(plain.out.contains("of o200k_base") && !plain.out.contains("price"), "{}", plain.out);
    let priced = palimpsest(args.into_iter().chain(["--price-in", "1000000", "--price-out", "0"]));
    let number =
        |line: &str| line.replace(',', "").split_whitespace().nth(2).unwrap().parse::<f64>().unwrap();
    let tokens = number(plain.out.lines().find(|line| line.starts_with("tokens in")).unwrap());
    let price = priced.out.lines().find(|line| line.starts_with("price")).unwrap();
    // At one unit per token the price equals the number of tokens.
    assert_eq!(price.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap().round(), tokens, "{price}");
    let half = palimpsest(args.into_iter().chain(["--price-in", "1"]));
    assert!(half.code == Some(2) && half.err.contains("--price-out"), "{:?} {}", half.code, half.err);
    let without = palimpsest(["run", "--data", "sample", "--price-in", "1", "--out", "x"]);
    assert_eq!(without.code, Some(2), "{}", without.err);
}
