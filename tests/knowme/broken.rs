//! Broken rows are rejected with one line per fault; a faulty question or answer only loses its question.

use palimpsest::runs::file_plan::FilePlan;

use super::*;

const FACTS: &str = "Information Extraction";
const QUESTIONS: &str = "d/question/Information Extraction_questions.json";
const ANSWERS: &str = "d/answer/Information Extraction_answers.json";

fn sound() -> Folder {
    small(
        "d",
        &[(
            FACTS,
            json!([{"id": 1, "question": "a?", "answer": "a", "evidence": 0}, {"id": 2, "question": "b?", "answer": "b"}]),
        )],
    )
}

/// All messages about a folder.
fn said(folder: Folder) -> Vec<String> {
    let errors = read(folder).into_iter().filter_map(Result::err);
    errors.flat_map(|error| error.to_string().lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn every_broken_row_is_named_by_file_row_id_and_field() {
    assert_eq!(said(sound()), Vec::<String>::new());
    type Change = fn(&mut Value);
    let changes: [(&str, Change, String); 19] = [
        (
            ANSWERS,
            |v| drop(v.as_array_mut().unwrap().pop()),
            format!(
                "{QUESTIONS}, row 1 (uid \"T1-2\"), id: found a question without an answer; add its answer to {ANSWERS}, or remove it"
            ),
        ),
        (
            QUESTIONS,
            |v| drop(v.as_array_mut().unwrap().pop()),
            format!(
                "{ANSWERS}, row 1 (uid \"T1-2\"), id: found an answer without a question; add its question to {QUESTIONS}, or remove it"
            ),
        ),
        (
            QUESTIONS,
            |v| v[1]["question"] = json!("  "),
            format!(
                "{QUESTIONS}, row 1 (uid \"T1-2\"), question: found an empty text; write a text that is not blank"
            ),
        ),
        (
            QUESTIONS,
            |v| v[0]["id"] = json!(1.5),
            format!(
                "{QUESTIONS}, row 0 (no uid), id: found the number 1.5; give every row its id, a whole number or a text"
            ),
        ),
        (
            QUESTIONS,
            |v| v[1]["id"] = json!("1"),
            format!(
                "{QUESTIONS}, row 1 (uid \"T1-1\"), id: found a second question of this id; give every question its own id"
            ),
        ),
        (
            ANSWERS,
            |v| v[1]["id"] = json!(1),
            format!(
                "{ANSWERS}, row 1 (uid \"T1-1\"), id: found the id of row 0 again; give every answer its own id"
            ),
        ),
        (
            ANSWERS,
            |v| v[0]["answer"] = json!(7),
            format!("{ANSWERS}, row 0 (uid \"T1-1\"), answer: found the number 7; write a text, or null"),
        ),
        (
            ANSWERS,
            |v| drop(v[0].as_object_mut().unwrap().remove("answer")),
            format!(
                "{ANSWERS}, row 0 (uid \"T1-1\"), answer: found no such field; write a text that is not blank"
            ),
        ),
        (
            QUESTIONS,
            |v| v[0]["options"] = json!(["x", "y"]),
            format!(
                "{QUESTIONS}, row 0 (uid \"T1-1\"), options: found a field that is not known and says something in 1 rows; call it by one \
                 of id, question, or remove it: what it says would be lost"
            ),
        ),
        (
            "d.json",
            |v| (v[1]["weather"], v[2]["weather"]) = (json!("fair"), json!("foul")),
            "d/input/d.json, row 1 (uid \"2\"), weather: found a field that is not known and says something in 2 rows; call it by one of \
             id, timestamp, location, action, dialogue, environment, background, inner_thought, category, or remove it: what it says would \
             be lost"
                .to_owned(),
        ),
        (
            "d.json",
            |v| v[1]["Mind"] = json!("another thought"),
            "d/input/d.json, row 1 (uid \"2\"), \"Mind\": found the same key a second time; keep one of them".to_owned(),
        ),
        (
            ANSWERS,
            |v| v[0]["answer"] = json!([{"event": "x"}]),
            format!(
                "{ANSWERS}, row 0 (uid \"T1-1\"), answer[0].rank: found no such field; write a whole number"
            ),
        ),
        (
            ANSWERS,
            |v| v[0]["answer"] = json!([{"rank": 1, "event": "x"}, {"rank": 1, "event": "y"}]),
            format!(
                "{ANSWERS}, row 0 (uid \"T1-1\"), answer[1].rank: found the rank 1 again; give every event its own"
            ),
        ),
        (
            ANSWERS,
            |v| v[0]["evidence"] = json!([0, null]),
            format!("{ANSWERS}, row 0 (uid \"T1-1\"), evidence[1]: found null; write the id of an event"),
        ),
        (
            ANSWERS,
            |v| v[0]["strategy"] = json!(["x"]),
            format!("{ANSWERS}, row 0 (uid \"T1-1\"), strategy: found an array of 1; write a text, or null"),
        ),
        (
            "d.json",
            |v| v[3]["id"] = json!(2),
            "d/input/d.json, row 3 (uid \"2\"), id: found the id of row 1 again; give every event its own id"
                .to_owned(),
        ),
        (
            "d.json",
            |v| v[3]["dialogue"] = json!({}),
            "d/input/d.json, row 3 (uid \"5\"), dialogue: found an object; write a text, or null".to_owned(),
        ),
        (
            "d.json",
            |v| v[0]["timestamp"] = json!(1990),
            "d/input/d.json, row 0 (uid \"0\"), timestamp: found the number 1990; write a text, or null"
                .to_owned(),
        ),
        (
            "d.json",
            |v| *v = json!([]),
            "d/input/d.json, row 0 (no uid), (file): found no events; give the events of the data set"
                .to_owned(),
        ),
    ];
    for (file, change, expected) in changes {
        let lines = said(edited(sound(), file, change));
        assert!(lines.contains(&expected), "{expected}\n{lines:#?}");
    }
}

#[test]
fn a_torn_file_is_named_with_the_row_and_the_line() {
    let cut = |name: &str, keep: usize| {
        let mut folder = sound();
        let file = folder.iter_mut().find(|(other, _)| other.ends_with(name)).unwrap();
        file.1.truncate(keep);
        folder
    };
    let whole = sound().iter().find(|(name, _)| name == ANSWERS).unwrap().1.len();
    let lines = said(cut(ANSWERS, whole - 20));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with(&format!("{ANSWERS}, row 1, line 9, column ")), "{lines:?}");
    assert!(lines[0].ends_with("it is cut off, fetch it again"), "{lines:?}");
    let lines = said(edited(sound(), "d.json", |v| v[2] = json!("an event")));
    assert!(
        lines[0].contains("d/input/d.json, row 2, line ") && lines[0].contains("expected an object"),
        "{lines:?}"
    );
    let doubled = b"[{\"id\": 1, \"question\": \"a?\", \"id\": 1}]".to_vec();
    let folder = sound()
        .into_iter()
        .map(|(name, bytes)| if name == QUESTIONS { (name, doubled.clone()) } else { (name, bytes) });
    let lines = said(folder.collect());
    assert!(
        lines
            .iter()
            .any(|line| line.contains("row 0 (uid \"T1-1\"), \"id\": found the same key a second time")),
        "{lines:?}"
    );
}

#[test]
fn missing_and_unknown_files_are_named() {
    let without =
        |part: &str| sound().into_iter().filter(|(name, _)| !name.contains(part)).collect::<Folder>();
    for (part, expected) in [
        ("/answer/", format!("{QUESTIONS}, row 0 (no uid), (file): found no file of answers to these questions, and no folder d/answer/; add {ANSWERS}")),
        ("/question/", format!("{ANSWERS}, row 0 (no uid), (file): found no file of questions to these answers, and no folder d/question/; add {QUESTIONS}")),
        ("/input/", "d/input/, row 0 (no uid), (file): found no file of events; give one JSON file of events a data set".to_owned()),
    ] {
        assert!(said(without(part)).contains(&expected), "{expected}\n{:#?}", said(without(part)));
    }
    let events_alone: Folder = sound().into_iter().filter(|(name, _)| name.contains("/input/")).collect();
    let lines = said(events_alone);
    assert_eq!(
        lines,
        [
            "d/question/, row 0 (no uid), (file): found no questions; give the folder that holds input/, question/ and answer/"
        ]
    );
    let with = |name: &str| [sound(), vec![(name.to_owned(), b"[]".to_vec())]].concat();
    let lines = said(with("d/question/Gossip_questions.json"));
    assert!(
        lines[0].contains("Gossip_questions.json")
            && lines[0]
                .contains("found a file of no known task; name it after its task (Information Extraction, "),
        "{lines:?}"
    );
    let lines = said(with("d/question/information extraction.json"));
    assert!(lines[0].contains("found a second file of this task; keep one of them"), "{lines:?}");
    let lines = said(with("d/input/e.json"));
    assert!(lines[0].contains("d/input/") && lines[0].contains("found 2 files of events"), "{lines:?}");
    let twice = [sound(), sound().into_iter().map(|(name, bytes)| (format!("copy/{name}"), bytes)).collect()]
        .concat();
    let lines = said(twice);
    assert!(
        lines.iter().any(|line| line.contains("the name \"d\" of the data set in \"copy/d/\" again")
            || line.contains("the name \"d\" of the data set in \"d/\" again")),
        "{lines:?}"
    );
}

#[test]
fn check_lists_flags_without_failing_and_problems_with() {
    let root = tempfile::tempdir().unwrap();
    let write = |folder: Folder, at: &str| {
        for (name, bytes) in folder {
            let path = root.path().join(at).join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        root.path().join(at).display().to_string()
    };
    let good = crate::cli::palimpsest(["data", "check", &write(sound(), "good")]);
    assert_eq!(good.code, Some(0), "{}", good.err);
    assert!(good.out.contains("1 row (d 1), 2 questions (T1 2), no problems"), "{}", good.out);
    assert!(good.out.contains("warning: time-order: 2 segments whose time sorts before"), "{}", good.out);
    let bad = edited(sound(), QUESTIONS, |v| v[1]["id"] = json!(3));
    let bad = crate::cli::palimpsest(["data", "check", &write(bad, "bad")]);
    assert_eq!(bad.code, Some(1));
    assert_eq!(bad.out.lines().filter(|line| line.contains("; ")).count(), 2, "{}", bad.out);
    assert!(bad.err.contains("not a sound KnowMe-Bench file: 2 problems in 1 of 2 rows"), "{}", bad.err);
    // Events alone, as a file: the missing parts are reported, and it is not taken for another benchmark.
    let alone = root.path().join("good/d/input/d.json").display().to_string();
    let alone = crate::cli::palimpsest(["data", "check", &alone]);
    assert!(
        alone.out.contains("no data set of KnowMe-Bench; give the folder that holds"),
        "{}{}",
        alone.out,
        alone.err
    );
}

#[test]
fn a_broken_row_costs_its_question_alone() {
    let rows = || {
        json!([
            {"id": 1, "question": "a?", "answer": "a"}, {"id": 2, "question": "b?", "answer": "b"},
            {"id": 3, "question": "c?", "answer": "c"}, {"id": 4, "question": "d?", "answer": "d"},
        ])
    };
    let folder = small("d", &[(FACTS, rows()), ("Temporal Reasoning", rows())]);
    let asked = |case: &Case| case.probes.iter().map(|probe| probe.id.clone()).collect::<Vec<_>>();
    type Change = fn(&mut Value);
    let changes: [(&str, Change, &[&str], &[&str]); 7] = [
        (QUESTIONS, |v| v[1]["question"] = json!(7), &["T1-1", "T1-3", "T1-4"], &["T1-2"]),
        (QUESTIONS, |v| v[1]["id"] = Value::Null, &["T1-1", "T1-3", "T1-4"], &["T1-row-1"]),
        (QUESTIONS, |v| v[1]["id"] = json!(9), &["T1-1", "T1-3", "T1-4"], &["T1-9"]),
        (QUESTIONS, |v| drop(v.as_array_mut().unwrap().remove(1)), &["T1-1", "T1-3", "T1-4"], &["T1-2"]),
        (ANSWERS, |v| v[1]["evidence"] = json!({}), &["T1-1", "T1-3", "T1-4"], &["T1-2"]),
        (ANSWERS, |v| v[1]["id"] = json!(3), &["T1-1", "T1-4"], &["T1-2", "T1-3"]),
        (ANSWERS, |v| *v = json!([]), &[], &["T1-1", "T1-2", "T1-3", "T1-4"]),
    ];
    for (file, change, sound, broken) in changes {
        let mut rows = read(edited(folder.clone(), file, change)).into_iter();
        let case = rows.next().unwrap().unwrap();
        assert_eq!(asked(&case), [sound, &["T3-1", "T3-2", "T3-3", "T3-4"]].concat(), "{file} {broken:?}");
        let left: Vec<String> = rows
            .map(|row| match row {
                Err(ReadError::Row(row)) => {
                    assert_eq!((row.labels["dataset"].as_str(), row.probes.len()), ("d", 1));
                    assert_eq!(row.probes[0].facets["task"], "T1");
                    row.probes[0].id.clone()
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(left, broken, "{file}");
    }
}

#[test]
fn a_broken_question_stays_in_the_plan_and_the_others_are_asked() {
    let folder = edited(sound(), ANSWERS, |v| v[1]["evidence"] = json!({}));
    let mut plan = FilePlan::new(&KNOWME);
    for row in read(folder) {
        match row {
            Ok(case) => plan.sound(&case),
            Err(ReadError::Row(problems)) => plan.broken(problems),
            Err(error) => panic!("{error}"),
        }
    }
    let plan = plan.finish();
    let rows: Vec<_> = plan
        .iter()
        .map(|row| {
            (
                row.case.as_str(),
                row.labels["dataset"].as_str(),
                row.probes[0].id.as_str(),
                row.broken.is_some(),
            )
        })
        .collect();
    assert_eq!(rows, [("d", "d", "T1-1", false), ("T1-2", "d", "T1-2", true)]);
    assert_eq!(plan[1].probes[0].facets["task"], "T1");
}
