//! A folder made by 0.1.0 (tests/fixtures/run-0.1.0): resumed, judged again, measured, drawn and reported.
use super::*;

fn copied(to: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/run-0.1.0/run");
    for (name, bytes) in files(&from) {
        let path = to.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// The command that made it.
fn made_by(dir: &Path) -> Command {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/run-0.1.0");
    let mut command =
        command(["run", "--query-time", "--max-new-tokens", "12", "--context", "4096", "--allow-longer"]);
    command.args(["--dtype", "f32", "--device", "cpu"]).arg("--model").arg(model()).arg("--out").arg(dir);
    command.arg("--data").arg(fixture.join("short.json")).arg("--prompts").arg(fixture.join("prompts"));
    command
}

/// Its spans assign a token across a border by its first byte; current spans do not.
#[test]
fn a_folder_of_the_first_version_is_not_gone_on_with_and_the_same_command_gives_the_same_answers() {
    let root = tempfile::tempdir().unwrap();
    let (dir, before, anew) = (root.path().join("run"), root.path().join("before"), root.path().join("anew"));
    copied(&dir);
    copied(&before);
    let done = ended(made_by(&dir));
    assert_eq!(done.code, Some(1), "{}", done.err);
    assert!(done.err.contains("holds a different run; use another --out"), "{}", done.err);
    let named = "borders: null in the folder, \"first character\" asked for";
    assert!(done.err.contains(named) && !done.err.contains("seed"), "{}", done.err);
    assert_same_files(&dir, &before);
    let done = ended(made_by(&anew));
    assert!(done.out.contains("6 of 6 answers (0 from before, 6 new, 0 errors)"), "{}", done.out);
    let answers = |dir: &Path| std::fs::read_to_string(dir.join("answers.jsonl")).unwrap();
    assert_eq!(answers(&anew), answers(&dir));
}

#[test]
fn a_folder_of_the_first_version_is_judged_again_drawn_and_reported() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    copied(&dir);
    let old = std::fs::read_to_string(dir.join("verdicts.jsonl")).unwrap();
    let dir_name = dir.to_str().unwrap();
    // The same model by another name.
    let other = root.path().join("other-judge");
    std::fs::create_dir(&other).unwrap();
    for (name, bytes) in files(&model()) {
        std::fs::write(other.join(name), bytes).unwrap();
    }
    let judge = format!("local:{}", other.display());
    for command in [
        vec!["judge", dir_name, "--judge", judge.as_str(), "--device", "cpu", "--dtype", "f32"],
        vec!["lens", dir_name],
        vec!["figures", dir_name],
        vec!["report", dir_name],
        vec!["export", "--stale", dir_name, "--out", dir.join("answers.json").to_str().unwrap()],
    ] {
        let done = palimpsest(&command);
        assert_eq!(done.code, Some(0), "{command:?}: {}", done.err);
    }
    // The old judge's verdicts come first.
    let now = std::fs::read_to_string(dir.join("verdicts.jsonl")).unwrap();
    assert!(now.starts_with(&old) && now.lines().count() == 12, "{now}");
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.contains("local:other-judge"), "the page names the judge that judged last");
}

#[test]
fn an_identity_that_was_changed_and_one_of_a_later_version_are_refused_and_unknown_fields_count() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    copied(&dir);
    let path = dir.join("run.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let with = |from: &str, to: &str| {
        std::fs::write(&path, text.replace(from, to)).unwrap();
        palimpsest(["lens", dir.to_str().unwrap()])
    };
    let changed = with("\"seed\": 0,\n    \"only\"", "\"seed\": 1,\n    \"only\"");
    assert!(changed.err.contains("its identity was changed after the run began"), "{}", changed.err);
    let unknown = with("\"attention\": true,", "\"attention\": true,\n    \"later\": 1,");
    assert!(unknown.err.contains("its identity was changed after the run began"), "{}", unknown.err);
    let later = with("\"identity_sha256\"", "\"identity_version\": 99,\n  \"identity_sha256\"");
    assert!(later.err.contains("a later version of palimpsest"), "{}", later.err);
}
