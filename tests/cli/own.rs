//! A table of one's own through every command, and the same history as a benchmark's file.

use palimpsest::runs::causes::rows::{CauseRow, CauseRows};
use serde_json::{Value, json};

use super::endpoints::answering_server;
use super::knockouts::{fixture, stores};
use super::*;

fn run_table(data: &Path, out: &Path, more: &[&str]) -> Ended {
    let mut command =
        command(["run", "--context", "8192", "--allow-longer", "--max-new-tokens", "6", "--data"]);
    command.arg(data).arg("--model").arg(fixture("llama-tiny")).arg("--out").arg(out).args(more);
    ended(command)
}

/// The built-in tables.
fn tables(root: &Path) -> PathBuf {
    let folder = root.join("mine");
    done(palimpsest(["data", "sample", "--benchmark", "own", "--out", shown(&folder)]));
    folder.join("history.csv")
}

#[test]
fn the_same_history_as_a_benchmarks_file_has_the_same_tokens_and_masses() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let rows: Value = serde_json::from_str(&palimpsest(["data", "sample", "--sessions", "6"]).out).unwrap();
    let row = &rows[0];
    std::fs::write(at("row.json"), json!([row]).to_string()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut messages = csv::Writer::from_path(at("row.csv")).unwrap();
    messages.write_record(["session", "time", "role", "text"]).unwrap();
    for (index, session) in row["haystack_session"].as_array().unwrap().iter().enumerate() {
        for turn in session.as_array().unwrap() {
            let cells = [&row["timestamps"][index], &turn["role"], &turn["content"]].map(text);
            messages.write_record([&[format!("day {index}")], &cells[..]].concat()).unwrap();
        }
    }
    messages.flush().unwrap();
    let mut questions = csv::Writer::from_path(at("row-questions.csv")).unwrap();
    questions.write_record(["question", "old", "new"]).unwrap();
    for field in ["dim1_query", "dim2_query", "dim3_query"] {
        let named = [0, 1].map(|at| format!("session[{}]", row["relevant_session_index"][at]));
        let cells = [&[text(&row["probing_queries"][field])], &named[..]].concat();
        questions.write_record(cells).unwrap();
    }
    questions.flush().unwrap();
    for (data, out) in [("row.json", "one"), ("row.csv", "other")] {
        done(run_table(&at(data), &at(out), &[]));
    }
    let (one, other) = (stores(&at("one"), ""), stores(&at("other"), ""));
    assert_eq!((one.len(), other.len()), (3, 3));
    // The third is put as a request there, in other words.
    for (one, other) in one.iter().zip(&other).take(2) {
        assert!(one.tokens == other.tokens && one.generated == other.generated);
        assert_eq!((&one.keys, &one.rows), (&other.keys, &other.rows));
        assert!(one.mass == other.mass && one.uniform == other.uniform);
    }
    assert_ne!(one[2].tokens, other[2].tokens);
    let folder = RunFolder::read(&at("other")).unwrap();
    let answer = |dir: &str| RunFolder::read(&at(dir)).unwrap().answers[0].answer.clone();
    assert_eq!(answer("one"), answer("other"));
    assert_eq!(folder.header.identity.benchmark, "own");
    // Nothing is called what it is not.
    let plan = std::fs::read_to_string(at("other").join("plan.jsonl")).unwrap();
    assert!(!["SR", "IPA", "T1", "STALE"].iter().any(|word| plan.contains(&format!("\"{word}\""))), "{plan}");
}

#[test]
fn a_table_goes_through_every_command() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let data = tables(root.path());
    let questions = data.with_file_name("questions.csv");
    let questions = ["--questions", shown(&questions)];
    let checked = done(palimpsest([&["data", "check", shown(&data)], &questions[..]].concat()));
    assert!(
        checked.out.contains("3 histories, 5 questions (no update 1, update 4), no problems"),
        "{}",
        checked.out
    );
    let counted =
        done(palimpsest([&["data", "stats", shown(&data), "--by", "case"], &questions[..]].concat()));
    assert!(["mira", "jonas", "lena"].iter().all(|case| counted.out.contains(case)), "{}", counted.out);

    let run = at("run");
    let answered = done(run_table(&data, &run, &questions));
    assert!(
        answered.out.contains("5 of 5 answers") && answered.out.contains("The question pays"),
        "{}",
        answered.out
    );
    let again = done(run_table(&data, &run, &questions));
    assert!(again.out.contains("5 from before, 0 new"), "{}", again.out);
    // The folder holds the same tables.
    let elsewhere = done(run_table(data.parent().unwrap(), &at("folder"), &[]));
    assert!(elsewhere.out.contains("5 of 5 answers"));

    // Shards, put together.
    for shard in ["0/2", "1/2"] {
        let out = at(&shard.replace('/', "-"));
        done(run_table(&data, &out, &[&questions[..], &["--shard", shard]].concat()));
    }
    let merged = at("merged");
    done(palimpsest(["merge", shown(&merged), shown(&at("0-2")), shown(&at("1-2"))]));
    let plan = |dir: &Path| std::fs::read_to_string(dir.join("plan.jsonl")).unwrap();
    assert_eq!(plan(&merged), plan(&run));
    let answers = |dir: &Path| {
        let rows = RunFolder::read(dir).unwrap().answers.into_iter();
        rows.map(|row| (row.case, row.probe, row.answer)).collect::<Vec<_>>()
    };
    assert_eq!(answers(&merged), answers(&run));

    // The judge sees the expected answer and the outdated statement, one question a call.
    let judge = answering_server(|request| {
        let of = ["lesson", "early", "work", "ida", "nuts"];
        let sees = |words: &str| request.contains(words);
        let id = of.into_iter().find(|id| sees(&format!("\\\"{id}\\\"; it holds"))).unwrap_or("none");
        let right = sees("On Thursday") && sees("My piano lesson is on Monday");
        let right = right || sees("By tram") && !sees("<outdated>");
        json!({ id: { "reason": "it is so", "correct": right } }).to_string()
    });
    done(palimpsest(["judge", shown(&run), "--judge", &judge]));
    let verdicts = RunFolder::read(&run).unwrap().verdicts;
    let right: Vec<(&str, Option<bool>)> =
        verdicts.iter().map(|row| (row.probe.as_str(), row.correct)).collect();
    let expected = [("lesson", true), ("early", true), ("work", true), ("ida", false), ("nuts", false)];
    assert_eq!(right, expected.map(|(id, right)| (id, Some(right))));

    let model = fixture("llama-tiny");
    let dir = shown(&run);
    for command in [
        &["causes", dir, "--model", shown(&model), "--controls", "2"][..],
        &["why", dir, "--model", shown(&model), "--readings", "4", "--controls", "2"],
        &["lens", dir],
        &["table", dir],
        &["figures", dir, "--out", shown(&at("figures"))],
        &["report", dir],
    ] {
        let ended = done(palimpsest(command));
        assert!(
            !["STALE", "SR", "IPA", "T1"].iter().any(|word| ended.out.split_whitespace().any(|w| w == *word)),
            "{}",
            ended.out
        );
    }
    // One question marks no evidence: its controls may touch the session that it needs, which rows and the table say.
    let again = done(palimpsest(["causes", dir, "--model", shown(&model), "--controls", "2"]));
    assert!(again.out.contains("1 of 5 answers has no marked evidence in the prompt"), "{}", again.out);
    let controls = CauseRows::read(&run).unwrap().controls;
    let anywhere = |row: &CauseRow| row.anywhere == (row.answer.probe == "nuts");
    assert!(controls.iter().any(|row| row.anywhere) && controls.iter().all(anywhere), "{controls:?}");
    let table = done(palimpsest(["table", dir])).out;
    assert!(table.contains("60.0") && table.contains("no update"), "{table}");
    let causes = std::fs::read_to_string(run.join("causes.jsonl")).unwrap();
    assert!(
        causes.contains("\"nuts\"") && causes.contains("\"new\""),
        "a question without evidence has effects, too"
    );
}

#[test]
fn questions_without_expected_answers_run_and_are_judged_by_no_rubric() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    std::fs::write(at("my.csv"), "session,role,text\n1,user,Hello there.\n2,user,I moved to Lund.\n")
        .unwrap();
    std::fs::write(at("my-questions.csv"), "question,answer,tpye\nWhere do I live?,,x\nWho?,Me,y\n").unwrap();
    let answered = done(run_table(&at("my.csv"), &at("run"), &[]));
    assert!(answered.err.contains("unused-column: my-questions.csv: case `my`: tpye"), "{}", answered.err);
    let judged = palimpsest(["judge", shown(&at("run")), "--judge", "local:llama-tiny"]);
    assert_eq!(judged.code, Some(2), "{}", judged.err);
    for words in ["1 of 2 questions has no expected answer (q1)", "column `answer`", "--prompts"] {
        assert!(judged.err.contains(words), "{words}: {}", judged.err);
    }
    // All sessions are in the attention file.
    let store = &stores(&at("run"), "")[0];
    let labels: Vec<&str> = store.keys.iter().map(|span| span.label.as_str()).collect();
    assert!(labels.contains(&"session[0]") && labels.contains(&"session[1]"), "{labels:?}");
    done(palimpsest(["lens", shown(&at("run"))]));
    done(palimpsest(["report", shown(&at("run"))]));
}

#[test]
fn broken_questions_are_counted_as_questions_of_their_own_table() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    std::fs::write(at("my.csv"), "session,role,text\n1,user,Hello there.\n2,user,I moved to Lund.\n")
        .unwrap();
    let questions = "question,old\nWhere do I live?,\nWho?,no such text\nWhen?,session[7]\n";
    std::fs::write(at("my-questions.csv"), questions).unwrap();
    let of_broken = "2 of 3 questions (my-questions.csv) are broken";
    let checked = palimpsest(["data", "check", shown(&at("my.csv"))]);
    assert_eq!(checked.code, Some(1), "{}", checked.err);
    assert!(checked.err.contains(&format!("my.csv has 2 problems: {of_broken};")), "{}", checked.err);
    let answered = run_table(&at("my.csv"), &at("run"), &[]);
    assert_eq!(answered.code, Some(3), "{}", answered.err);
    assert!(answered.err.contains(&format!("note: {of_broken}; they are not asked")), "{}", answered.err);
    let table = done(palimpsest(["table", shown(&at("run"))])).out;
    let apart = "2 broken questions (unreadable) count as wrong in every total over questions";
    assert!(table.contains(apart), "{table}");

    // One history, and no place to align it at: the mean map says so instead of drawing a scale.
    done(palimpsest(["figures", shown(&at("run")), "--out", shown(&at("figures"))]));
    let text = |file: &str| std::fs::read_to_string(at("figures").join(file)).unwrap();
    let caption = "Nothing to draw: histories are aligned at their evidence (old and new), and no question shows all of it.";
    assert!(text("captions.json").contains(caption), "{}", text("captions.json"));
    let map = text("strip-mean-mass.svg");
    assert!(map.contains("There is nothing to draw") && map.contains(" 1 case "), "{map}");
}
