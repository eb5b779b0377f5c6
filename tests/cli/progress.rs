//! Lines of progress without a terminal, and the cost that is told before work.
use regex::Regex;

use super::knockouts::{causes, fixture, run_of};
use super::*;

const SECONDS: &str = "PALIMPSEST_PROGRESS_SECONDS";

/// Lines of the form `WHAT 3/6 (50%, about 41 s left): ...`.
fn estimates(what: &str, err: &str) -> Vec<(usize, usize)> {
    let line = Regex::new(&format!(r"(?m)^{what} (\d+)/(\d+) \(\d+%, about \d+ s left\): \S")).unwrap();
    let number = |text: &str| text.parse().unwrap();
    line.captures_iter(err).map(|found| (number(&found[1]), number(&found[2]))).collect()
}

fn every(seconds: &str, mut command: Command) -> Ended {
    command.env(SECONDS, seconds);
    done(ended(command))
}

#[test]
fn causes_tell_done_total_and_time_left_and_nothing_more_on_standard_output() {
    let root = tempfile::tempdir().unwrap();
    for more in [&[][..], &["--total"], &["--carriers", "--least", "0"], &["--contextcite", "3"]] {
        let [often, never] = ["0", "3600"].map(|seconds| {
            let dir = root.path().join("run");
            let _ = std::fs::remove_dir_all(&dir);
            done(ended(run_of("llama-tiny", &dir, &["--sessions", "4"])));
            every(seconds, causes("llama-tiny", &dir, more))
        });
        let unit = match more.first() {
            None => "answers",
            Some(&"--total") => "removals",
            Some(&"--carriers") => "carriers",
            _ => "subsets",
        };
        let told = estimates(unit, &often.err);
        let (last, total) = *told.last().unwrap();
        assert!(
            told.len() > 2 && told.is_sorted() && total > 1 && last + 1 >= total,
            "{told:?}\n{}",
            often.err
        );
        assert_eq!(estimates(unit, &never.err), [], "{}", never.err);
        assert_eq!(often.out, never.out);
    }
}

/// The time left follows from these counts, so that they must be those of the work.
#[test]
fn causes_are_announced_as_the_tokens_that_they_take() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    done(ended(run_of("llama-tiny", &dir, &["--sessions", "4"])));
    let err = done(ended(causes("llama-tiny", &dir, &["--controls", "5"]))).err;
    let sum = |pattern: &str| -> usize {
        let numbers = Regex::new(pattern).unwrap();
        let found =
            numbers.captures_iter(&err).map(|found| found[1].replace(',', "").parse::<usize>().unwrap());
        found.sum()
    };
    let announced =
        sum(r"([\d,]+) tokens of histories") + sum(r"and ([\d,]+) tokens of questions and answers");
    assert!(announced > 0, "{err}");
    assert_eq!(announced, sum(r"(?m)^[a-z ]+: (\d+) tokens in [\d.]+ s$"), "{err}");
    let again = done(ended(causes("llama-tiny", &dir, &["--controls", "5"]))).err;
    assert!(!again.contains("tokens of histories"), "nothing is left to take: {again}");
}

#[test]
fn needles_are_announced_and_counted() {
    let root = tempfile::tempdir().unwrap();
    let mut heads =
        command(["heads", "--max-new-tokens", "2", "--context", "1500", "--needles", "3", "--json"]);
    heads.arg(fixture("llama-tiny")).arg("--out").arg(root.path().join("heads.json"));
    let told = every("0", heads);
    let says = "3 needles: 9 forward passes, up to 4,494 tokens of prompts and 6 of answers";
    assert!(told.err.contains(says), "{}", told.err);
    let steps = estimates("needles", &told.err);
    assert!(steps.contains(&(1, 3)) && steps.contains(&(2, 3)), "{}", told.err);
    assert!(serde_json::from_str::<serde_json::Value>(&told.out).is_ok());
}

#[test]
fn labels_tell_the_answers_and_forward_passes_that_are_done() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    done(ended(super::contrasts::run_of("llama-tiny", &dir, &[])));
    done(palimpsest(["judge", shown(&dir)]));
    let mut why = command(["why", shown(&dir), "--readings", "6", "--controls", "3", "--model"]);
    why.arg(fixture("llama-tiny"));
    let told = every("0", why);
    let steps = estimates("answers", &told.err);
    assert!(steps.contains(&(0, 8)) && steps.contains(&(7, 8)), "{}", told.err);
    assert!(told.err.contains(": forward pass "), "{}", told.err);
}

#[test]
fn commands_that_read_runs_count_them() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    done(ended(run_of("llama-tiny", &dir, &["--sessions", "4"])));
    for (name, line) in [
        ("table", "reading runs 1/1 (100%, "),
        ("lens", "reading attention 1/"),
        ("figures", "writing figures 1/"),
    ] {
        let told = every("0", command([name, shown(&dir)]));
        assert!(told.err.lines().any(|told| told.starts_with(line)), "{name}: {}", told.err);
    }
}
