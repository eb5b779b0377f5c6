//! Killed, stopped, truncated, locked or changed: a run folder resumes or says why not.
use super::*;

/// Lines of a file; 0 if it does not exist.
fn lines(path: &Path) -> usize {
    std::fs::read(path).map_or(0, |bytes| bytes.iter().filter(|b| **b == b'\n').count())
}

fn entries(path: &Path) -> usize {
    std::fs::read_dir(path).map_or(0, |dir| dir.filter_map(Result::ok).filter(is_whole).count())
}

/// Not the temporary file of a write in progress.
fn is_whole(entry: &std::fs::DirEntry) -> bool {
    !entry.file_name().to_string_lossy().starts_with('.')
}

/// Starts a command and applies `end` once `reached` holds. True if it was still running.
pub fn interrupt(
    mut command: Command,
    reached: impl Fn() -> bool,
    end: impl FnOnce(&std::process::Child),
) -> Ended {
    let mut child = command.spawn().unwrap();
    while child.try_wait().unwrap().is_none() && !reached() {
        std::thread::yield_now();
    }
    end(&child);
    let output = child.wait_with_output().unwrap();
    Ended {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Sends a signal with `kill`.
pub fn signal(name: &'static str) -> impl FnOnce(&std::process::Child) {
    move |child| {
        Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    }
}

#[test]
#[cfg(unix)]
fn a_run_killed_at_any_point_and_started_again_ends_with_the_same_files() {
    let root = tempfile::tempdir().unwrap();
    let (whole, dir) = (root.path().join("whole"), root.path().join("run"));
    assert_eq!(run(&whole, &["--limit", "3"]).code, Some(0));
    let answers = dir.join("answers.jsonl");
    let stores = dir.join("attention");
    let points: [(&str, &dyn Fn() -> bool); 6] = [
        ("before the first row", &|| dir.join("run.json").exists()),
        ("between the first attention file and its row", &|| entries(&stores) >= 1),
        ("after a row", &|| lines(&answers) >= 1),
        ("after the first case", &|| lines(&answers) >= 3),
        ("during the second case", &|| lines(&answers) >= 4),
        ("between an attention file and its row in the second case", &|| entries(&stores) >= 5),
    ];
    for (point, reached) in points {
        let _ = std::fs::remove_dir_all(&dir);
        let killed = interrupt(run_command(&dir, &["--limit", "3"]), reached, signal("-KILL"));
        assert_eq!(killed.code, None, "{point}: ended before it was killed");
        assert!(lines(&answers) < 9, "{point}");
        let resumed = run(&dir, &["--limit", "3"]);
        assert_eq!(resumed.code, Some(0), "{point}: {}", resumed.err);
        assert_same_files(&whole, &dir);
    }
}

#[test]
#[cfg(unix)]
fn a_run_stopped_by_ctrl_c_says_how_to_go_on_and_does() {
    let root = tempfile::tempdir().unwrap();
    let (whole, dir) = (root.path().join("whole"), root.path().join("run"));
    assert_eq!(run(&whole, &["--limit", "3"]).code, Some(0));
    let answers = dir.join("answers.jsonl");
    let stopped = interrupt(run_command(&dir, &["--limit", "3"]), || lines(&answers) >= 1, signal("-INT"));
    assert_eq!(stopped.code, Some(130), "{}", stopped.err);
    assert!(stopped.out.contains("\nstopped; "), "{}", stopped.out);
    let resumed = run(&dir, &["--limit", "3"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(!resumed.out.contains("(0 from before"), "{}", resumed.out);
    assert_same_files(&whole, &dir);
}

#[test]
#[cfg(unix)]
fn ctrl_c_says_which_answers_were_under_way_and_they_are_asked_again() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let command = || {
        let mut command = command(["run", "--data", "sample", "--sessions", "3", "--limit", "2"]);
        command.args(["--max-new-tokens", "3000", "--context", "8192", "--allow-longer", "--no-attention"]);
        command.arg("--model").arg(model()).arg("--out").arg(&dir);
        command
    };
    let told = " of 3 answers of case sample-t1-01-suitcase were under way and will be asked again";
    // The signal may arrive before the first question, when nothing is in progress; the next try waits longer.
    let said = (0..5).any(|tries| {
        let _ = std::fs::remove_dir_all(&dir);
        let begun = || {
            let begun = dir.join("run.json").exists();
            std::thread::sleep(std::time::Duration::from_millis(if begun { 40 * tries } else { 0 }));
            begun
        };
        let stopped = interrupt(command(), begun, signal("-INT"));
        assert_eq!(stopped.code, Some(130), "{}", stopped.err);
        assert!(stopped.err.contains("answers that have ended are kept"), "{}", stopped.err);
        assert_eq!(lines(&dir.join("answers.jsonl")), 0);
        stopped.err.contains(told)
    });
    assert!(said, "{told}");
}

#[test]
#[cfg(unix)]
fn judging_killed_and_started_again_ends_with_the_same_verdicts() {
    let root = tempfile::tempdir().unwrap();
    let (whole, dir) = (root.path().join("whole"), root.path().join("run"));
    let judge = format!("local:{}", model().display());
    let judging = |dir: &Path| {
        let mut command = command(["judge", "--judge", &judge]);
        command.arg(dir);
        command
    };
    for dir in [&whole, &dir] {
        assert_eq!(run(dir, &["--limit", "3"]).code, Some(0));
    }
    assert_eq!(ended(judging(&whole)).code, Some(0));
    let verdicts = dir.join("verdicts.jsonl");
    let killed = interrupt(judging(&dir), || lines(&verdicts) >= 1, signal("-KILL"));
    assert_eq!(killed.code, None);
    let resumed = ended(judging(&dir));
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert_same_files(&whole, &dir);
}

#[test]
fn a_torn_last_line_is_cut_off_with_a_warning_and_its_probe_answered_again() {
    let root = tempfile::tempdir().unwrap();
    let (whole, dir) = (root.path().join("whole"), root.path().join("run"));
    for dir in [&whole, &dir] {
        assert_eq!(run(dir, &["--limit", "1"]).code, Some(0));
    }
    let answers = dir.join("answers.jsonl");
    let bytes = std::fs::read(&answers).unwrap();
    std::fs::write(&answers, &bytes[..bytes.len() - 20]).unwrap();
    let resumed = run(&dir, &["--limit", "1"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(resumed.err.contains("answers.jsonl: the last line"), "{}", resumed.err);
    assert!(resumed.out.contains("2 from before, 1 new"), "{}", resumed.out);
    assert_same_files(&whole, &dir);
}

#[test]
fn a_folder_that_another_process_writes_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    assert_eq!(run(&dir, &["--limit", "1"]).code, Some(0));
    let _held = RunStore::open(&dir).unwrap();
    for refused in [
        run(&dir, &["--limit", "1"]),
        palimpsest([OsStr::new("judge"), dir.as_os_str(), OsStr::new("--judge"), OsStr::new("local:x")]),
    ] {
        assert_eq!(refused.code, Some(1));
        assert!(refused.err.contains("another process"), "{}", refused.err);
    }
}

#[test]
fn a_folder_of_other_settings_is_refused_with_every_field_that_differs() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    assert_eq!(run(&dir, &["--limit", "1"]).code, Some(0));
    let before = files(&dir);
    let other = run(&dir, &["--limit", "2", "--temperature", "0.5", "--no-attention", "--shard", "0/2"]);
    assert_eq!(other.code, Some(1));
    for field in ["limit: 1 in the folder, 2 asked for", "sampling.temperature", "attention", "shard"] {
        assert!(other.err.contains(field), "{field}: {}", other.err);
    }
    assert_eq!(files(&dir), before);
}

#[test]
#[cfg(unix)]
fn a_run_of_two_conditions_killed_at_random_points_and_started_again_ends_with_the_same_files() {
    use rand::{RngExt, SeedableRng};
    let root = tempfile::tempdir().unwrap();
    let whole = root.path().join("whole");
    let sampled = ["--limit", "1", "--repeat", "2", "--temperature", "0.8"];
    let begun = std::time::Instant::now();
    let done = run(&whole, &sampled);
    let took = begun.elapsed();
    assert!(done.out.contains("6 of 6 answers"), "{}{}", done.out, done.err);
    let folder = RunFolder::read(&whole).unwrap();
    let text = |at: usize| folder.answers[at].answer.clone().unwrap();
    assert!((0..6).step_by(2).any(|at| text(at) != text(at + 1)), "each condition is sampled anew");

    let mut rng = rand::rngs::ChaCha8Rng::seed_from_u64(7);
    for point in 0..crate::left_out::few_or_all(5, 30) {
        let dir = root.path().join(format!("run-{point}"));
        let after = took.mul_f64(rng.random_range(0.0..1.0));
        let begun = std::time::Instant::now();
        interrupt(run_command(&dir, &sampled), || begun.elapsed() >= after, signal("-KILL"));
        let again = run(&dir, &sampled);
        assert_eq!(again.code, Some(0), "killed after {after:?}: {}", again.err);
        assert_same_files(&dir, &whole);
    }
}
