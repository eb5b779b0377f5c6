//! Data with broken rows: the run answers the others and ends with exit code 3, and every later command counts them as errors.
use serde_json::{Value, json};

use super::endpoints::server;
use super::*;

/// Rows of a small sample, T1 and T2 alternating.
fn sample() -> Vec<Value> {
    let written = palimpsest(["data", "sample", "--sessions", "3"]);
    serde_json::from_str(&written.out).unwrap()
}

/// Two valid rows and four broken ones, each broken differently.
fn damaged() -> Vec<Value> {
    let all = sample();
    let (one, two) = (all[0].clone(), all[1].clone());
    let mut role = all[2].clone();
    role["haystack_session"][0][0]["role"] = json!("tool");
    role["haystack_session"][1][0]["content"] = json!("");
    let mut nameless = all[3].clone();
    nameless.as_object_mut().unwrap().remove("uid");
    let mut type_ = all[4].clone();
    type_["type"] = json!("T9");
    vec![one.clone(), role, two, one, nameless, type_]
}

fn written(path: &Path, rows: &[Value]) -> PathBuf {
    std::fs::write(path, Value::from(rows).to_string()).unwrap();
    path.to_owned()
}

fn run_file(data: &Path, out: &Path, more: &[&str]) -> Ended {
    let mut command = command(["run", "--max-new-tokens", "4", "--data"]);
    command.arg(data).arg("--model").arg(model()).arg("--out").arg(out).args(more);
    ended(command)
}

/// A run's error rows, by case.
fn errors(folder: &RunFolder) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in folder.answers.iter().filter(|row| row.error.is_some()) {
        found.entry(&row.case).or_default().push(&row.probe);
    }
    found
}

#[test]
fn broken_rows_are_errors_in_their_cells_and_strict_refuses_them() {
    let root = tempfile::tempdir().unwrap();
    let rows = damaged();
    let data = written(&root.path().join("damaged.json"), &rows);
    let dir = root.path().join("run");
    let refused = run_file(&data, &dir, &["--strict"]);
    assert_eq!(refused.code, Some(1), "{}", refused.out);
    for words in ["4 of the 6 rows of damaged.json", "--strict", "data check", "haystack_session[0][0].role"]
    {
        assert!(refused.err.contains(words), "{words}: {}", refused.err);
    }
    assert!(!dir.exists());

    let done = run_file(&data, &dir, &[]);
    assert_eq!(done.code, Some(3), "{}", done.err);
    assert!(done.err.contains("4 of the 6 rows of damaged.json are broken"), "{}", done.err);
    let ending = "12 of 18 answers ended as errors; the reasons are in answers.jsonl; 12 are of broken rows of the data and stay until \
                  the data is mended";
    assert_eq!(done.err.lines().last(), Some(format!("error: {ending}").as_str()));
    assert!(done.out.contains("6 of 18 answers (0 from before, 6 new, 12 errors)"), "{}", done.out);
    let folder = RunFolder::read(&dir).unwrap();
    let uid = |row: usize| rows[row]["uid"].as_str().unwrap();
    // Duplicate uid, or no readable uid.
    let ids: Vec<&str> = folder.plan.iter().map(|case| case.case.as_str()).collect();
    assert_eq!(ids, [uid(0), uid(1), uid(2), "row-3", "row-4", uid(5)]);
    let types: Vec<_> =
        folder.plan.iter().map(|case| case.labels.get("type").map_or("", String::as_str)).collect();
    assert_eq!(types, ["T1", "T1", "T2", "T1", "T2", ""]);
    let three = vec!["SR", "PR", "IPA"];
    let broken = [uid(1), "row-3", "row-4", uid(5)].map(|id| (id, three.clone()));
    assert_eq!(errors(&folder), broken.into());
    let said = folder.answers.iter().find(|row| row.case == uid(1)).unwrap().error.clone().unwrap();
    assert!(
        said.contains("haystack_session[0][0].role: found \"tool\"") && said.contains("and 1 more"),
        "{said}"
    );

    // A rerun changes nothing and retries nothing that cannot succeed.
    let before = files(&dir);
    let again = run_file(&data, &dir, &[]);
    assert_eq!(again.code, Some(3), "{}", again.err);
    assert!(again.out.contains("6 of 18 answers (6 from before, 0 new, 12 errors)"), "{}", again.out);
    assert!(files(&dir) == before);

    // A filter matches them by their readable fields.
    let only = root.path().join("only");
    assert_eq!(run_file(&data, &only, &["--only", "t1/sr"]).code, Some(3));
    let only = RunFolder::read(&only).unwrap();
    assert_eq!(errors(&only), [(uid(1), vec!["SR"]), ("row-3", vec!["SR"])].into());
    assert_eq!(only.answers.len(), 3);

    // Without a broken row among the chosen ones nothing is an error.
    let sound = root.path().join("sound");
    assert_eq!(run_file(&data, &sound, &["--limit", "1"]).code, Some(0));
    // Other commands that leave the rows out say so with the same code, after their output.
    let counted = palimpsest(["data", "stats", data.to_str().unwrap()]);
    assert_eq!(counted.code, Some(3), "{}", counted.err);
    assert!(counted.err.contains("4 rows of damaged.json are broken and not counted"), "{}", counted.err);
    assert!(counted.out.contains("damaged.json (SHA-256 "), "{}", counted.out);
}

#[test]
fn runs_with_broken_rows_are_merged_judged_exported_drawn_and_reported() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let data = written(&at("damaged.json"), &damaged());
    assert_eq!(run_file(&data, &at("whole"), &[]).code, Some(3));
    for shard in ["0", "1"] {
        let done = run_file(&data, &at(shard), &["--shard", &format!("{shard}/2")]);
        assert_eq!(done.code, Some(3), "{}", done.err);
    }
    let mut merging = command(["merge"]);
    merging.arg(at("merged")).args([at("0"), at("1")]);
    let merged = ended(merging);
    assert_eq!(merged.code, Some(0), "{}", merged.err);
    for file in ["answers.jsonl", "plan.jsonl"] {
        let read = |dir: &str| std::fs::read(at(dir).join(file)).unwrap();
        assert!(read("merged") == read("whole"), "{file}");
    }

    let dir = at("merged");
    let verdicts = r#"{"SR": {"correct": true, "reason": "a"}, "PR": {"correct": false, "reason": "b"},
        "IPA": {"correct": true, "reason": "c"}}"#;
    let mut judging = command(["judge", "--judge", &server(verdicts)]);
    judging.arg(&dir);
    let judged = ended(judging);
    assert_eq!(judged.code, Some(3), "{}", judged.err);
    let folder = RunFolder::read(&dir).unwrap();
    assert_eq!(folder.verdicts.iter().filter(|row| row.correct == Some(true)).count(), 4);
    assert_eq!(folder.verdicts.iter().filter(|row| row.error.is_some()).count(), 12);

    let name = dir.to_str().unwrap();
    for drawing in ["lens", "figures", "report"] {
        let done = palimpsest([drawing, name]);
        assert_eq!(done.code, Some(0), "{drawing}: {}", done.err);
    }
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    // One of three T1 rows and one of two T2 rows is valid and judged correct; the sixth row's type is unknown.
    for words in
        ["4 of 6, not asked, counted as errors", "33.3%", "50.0%", "1 of 3", "1 of 2", "found \\\"tool\\\""]
    {
        assert!(page.contains(words), "{words}");
    }
    assert!(page.contains("mean of the 6 cells"), "a row of no type makes no cell");

    assert!(page.contains("1 broken row has no readable `type`"), "but it is told");
    // SR and IPA are correct for two valid rows, out of six rows with three questions each.
    let table = palimpsest(["table", name]);
    for words in ["4/18", "unreadable", "1 broken row has no readable `type`"] {
        assert!(table.out.contains(words), "{words}: {}", table.out);
    }

    let exported = palimpsest(["export", "--stale", name]);
    assert_eq!(exported.code, Some(0), "{}", exported.err);
    let answers: Vec<Value> = serde_json::from_str(&exported.out).unwrap();
    let empty = |entry: &Value| entry["target_model_responses"]["dim1_response"] == "";
    assert_eq!(answers.iter().map(empty).collect::<Vec<_>>(), [false, true, false, true, true, true]);
}

#[test]
fn what_cannot_be_counted_is_refused_whole() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let torn = root.path().join("torn.json");
    let text = Value::from(damaged()).to_string();
    std::fs::write(&torn, &text[..text.len() - 40]).unwrap();
    let refused = run_file(&torn, &dir, &[]);
    assert!(refused.err.contains("cut off") && refused.err.contains("data check"), "{}", refused.err);
    let broken: Vec<Value> = [1, 4, 5].map(|row| damaged()[row].clone()).into();
    let none = written(&root.path().join("none.json"), &broken);
    let refused = run_file(&none, &dir, &[]);
    assert!(refused.err.contains("none of its 3 rows is sound"), "{}", refused.err);
    assert!(!dir.exists());
}
