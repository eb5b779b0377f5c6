//! Reading of valid data, and its flags.

use std::collections::BTreeMap;

use palimpsest::benchmarks::dataset::Dataset;
use palimpsest::case::Turn;

use super::*;

const FACTS: &str = "Information Extraction";
const TIMES: &str = "Temporal Reasoning";
const TRIGGERS: &str = "Mnestic Trigger Analysis";
const BODY: &str = "Mind-Body Interaction";
const PSYCHE: &str = "Expert-Annotated Psychoanalysis";

#[test]
fn the_sample_has_two_questions_of_each_task_on_more_than_120_dated_events() {
    let case = case(sample());
    assert_eq!((case.id.as_str(), case.history.segments.len(), case.probes.len()), ("diary", 128, 14));
    assert!(case.history.segments.iter().all(|event| event.time.is_some() && !event.turns.is_empty()));
    let mut tasks: BTreeMap<&str, usize> = BTreeMap::new();
    for probe in &case.probes {
        *tasks.entry(&probe.facets["task"]).or_default() += 1;
        assert!(case.judge.of_probes[&probe.id].contains_key("reference"), "{}", probe.id);
    }
    assert_eq!(
        tasks.into_iter().collect::<Vec<_>>(),
        ["T1", "T2", "T3", "T4", "T5", "T6", "T7"].map(|t| (t, 2))
    );
    assert_eq!(case.flags, []);
    assert!((KNOWME.sample)(SampleSpec { segments: Some(9), seed: 0 }).is_err());
}

#[test]
fn the_sample_and_what_is_written_of_it_are_one_data_set() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in sample() {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    // Unrelated files do not change the data.
    std::fs::write(folder.path().join("README.md"), "notes").unwrap();
    let spec = SampleSpec::default();
    let written = Dataset::open(folder.path(), spec, |_| {}).unwrap();
    let built_in = Dataset::open("sample:knowme", spec, |_| {}).unwrap();
    assert_eq!((written.benchmark().name, written.digest()), ("knowme", built_in.digest()));
    let both = [written.cases().unwrap(), built_in.cases().unwrap()];
    let [written, built_in] = both.map(|cases| cases.map(Result::unwrap).collect::<Vec<_>>());
    assert_eq!(written, built_in);
}

#[test]
fn events_keep_file_order_and_show_the_fields_that_say_something() {
    let folder =
        small("one", &[(FACTS, json!([{"id": 1, "question": "When?", "answer": "At 8.", "evidence": 0}]))]);
    let case = case(folder);
    assert_eq!((case.id.as_str(), case.labels["dataset"].as_str()), ("one", "one"));
    let events = &case.history.segments;
    assert_eq!(events.iter().map(|event| event.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    let turns = [
        Turn::new("action", "I washed."),
        Turn::new("background", "It had been so."),
        Turn::new("inner_thought", "I thought of water."),
    ];
    assert_eq!(events[1].turns, turns);
    let times: Vec<String> = events.iter().map(|e| e.time.map_or(String::new(), |t| t.to_string())).collect();
    assert_eq!(
        (times[1].as_str(), times[2].as_str(), times[3].as_str()),
        ("1990-01-01T08:00:10", "", "1989-01-01T08:00:00")
    );
    // Six tasks have no questions here.
    let flags: Vec<&str> = case.flags.iter().map(|flag| flag.check.name).collect();
    assert_eq!(flags, ["no-questions"; 6]);
}

#[test]
fn ids_are_numbers_or_texts_and_may_repeat_across_tasks() {
    let folder = small(
        "mixed",
        &[
            (
                FACTS,
                json!([{"id": 17, "question": "a?", "answer": "a", "evidence": "2", "entity_type": "Person", "type": "Who"}]),
            ),
            (PSYCHE, json!([{"id": "17", "question": "b?", "answer": "b"}])),
            (
                "Adversarial Abstention",
                json!([{"id": "17", "question": "c?", "answer": "none", "evidence": [2, "4", 2], "strategy": "False Premise"}]),
            ),
        ],
    );
    // The same with the other spelling of the file names.
    let renamed: Folder = (folder.iter())
        .map(|(name, bytes)| {
            (name.replace("_questions", "_question").replace("_answers", "_answer"), bytes.clone())
        })
        .collect();
    assert_eq!(case(folder.clone()).probes, case(renamed).probes);
    let case = case(folder);
    let ids: Vec<&str> = case.probes.iter().map(|probe| probe.id.as_str()).collect();
    assert_eq!(ids, ["T1-17", "T2-17", "T7-17"]);
    let t1 = probe(&case, "T1-17");
    assert_eq!((segments(t1, "evidence"), t1.form.as_str()), (vec![1], "question"));
    let facets = [("entity_type", "Person"), ("task", "T1"), ("type", "Who")];
    assert_eq!(t1.facets.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<Vec<_>>(), facets);
    let t2 = probe(&case, "T2-17");
    assert_eq!((segments(t2, "evidence"), t2.facets["strategy"].as_str()), (vec![1, 2], "False Premise"));
    // A distinct form would reveal the trap.
    assert_eq!(t2.form, t1.form);
    assert_eq!(case.judge.of_probes["T2-17"]["strategy"], "False Premise");
}

#[test]
fn two_events_of_a_duration_are_its_start_and_end_by_time_and_three_are_plain() {
    let row = |id: u64, evidence: Value| json!({"id": id, "question": format!("{id}?"), "answer": "so", "evidence": evidence});
    let rows = json!([
        row(1, json!([0, 2])), // order by time equals file order
        row(2, json!([7, 9])), // order by time differs from file order
        row(3, json!([9, 4])), // one has no time: file order
        row(4, json!([0, 2, 5])),
        row(5, json!([0, 8])), // which of the two was left is unknown
        row(6, json!([6, 8])),
    ]);
    let case = case(small("t3", &[(TIMES, rows)]));
    let anchors = |id: &str| {
        let probe = probe(&case, id);
        (segments(probe, "anchor_start"), segments(probe, "anchor_end"), segments(probe, "evidence"))
    };
    assert_eq!(anchors("T3-1"), (vec![0], vec![1], vec![]));
    assert_eq!(anchors("T3-2"), (vec![5], vec![4], vec![]));
    assert_eq!(anchors("T3-3"), (vec![2], vec![5], vec![]));
    assert_eq!(anchors("T3-4"), (vec![], vec![], vec![0, 1, 3]));
    assert_eq!(anchors("T3-5"), (vec![], vec![], vec![0]));
    assert_eq!(anchors("T3-6"), (vec![], vec![], vec![]));
    let flags: Vec<String> = case.flags.iter().map(ToString::to_string).collect();
    let file = "t3/answer/Temporal Reasoning_answers.json";
    assert_eq!(
        flags.iter().filter(|flag| flag.starts_with("dangling")).collect::<Vec<_>>(),
        [
            &format!("dangling-evidence: {file}: case `t3` T3-5: no event 8"),
            &format!("dangling-evidence: {file}: case `t3` T3-6: no event 6 8")
        ]
    );
}

#[test]
fn thought_and_outer_fields_are_evidence_where_an_event_of_an_insight_has_both() {
    let rows = json!([{"id": 1, "question": "why?", "answer": "so", "evidence": [2, 4, 0]}]);
    let fields = |task: &str, id: &str| {
        let case = case(small("t6", &[(task, rows.clone())]));
        let of = |e: &Evidence| {
            let event = &case.history.segments[e.place.segment];
            (e.role.clone(), e.place.segment, event.turns[e.place.turn.unwrap()].role.clone())
        };
        let found = probe(&case, id).evidence.iter().filter(|e| !e.place.is_segment()).map(of);
        found.collect::<Vec<_>>()
    };
    // Event 4 (row 2) has no outer field, event 0 no thought; `background` is neither.
    let both = [("outer", 1, "action"), ("inner", 1, "inner_thought")];
    let both: Vec<_> = both.map(|(role, at, field)| (role.to_owned(), at, field.to_owned())).to_vec();
    assert_eq!(fields(BODY, "T6-1"), both);
    assert_eq!(fields(PSYCHE, "T7-1"), both);
    assert_eq!(fields(TRIGGERS, "T5-1"), []);
}

#[test]
fn an_order_is_kept_by_rank_with_its_reasons() {
    let answer = json!([{"rank": 2, "event": "b", "reasoning": "later"}, {"rank": 1, "event": "a"}]);
    let case = case(small(
        "t4",
        &[("Logical Event Ordering", json!([{"id": 1, "question": "order?", "answer": answer}]))],
    ));
    let expected = json!([{"rank": 1, "event": "a", "reasoning": null}, {"rank": 2, "event": "b", "reasoning": "later"}]);
    assert_eq!(case.judge.of_probes["T4-1"]["reference"], expected);
    assert_eq!(probe(&case, "T4-1").form, "ordering");
}

#[test]
fn several_data_sets_lie_beside_each_other() {
    let rows = json!([{"id": 1, "question": "a?", "answer": "a"}]);
    let folder = [small("dataset1", &[(FACTS, rows.clone())]), small("dataset2", &[(FACTS, rows)])].concat();
    let cases: Vec<Case> = read(folder).into_iter().map(Result::unwrap).collect();
    assert_eq!(cases.iter().map(|case| case.id.as_str()).collect::<Vec<_>>(), ["dataset1", "dataset2"]);
}

#[test]
fn what_is_odd_and_usable_is_flagged() {
    let rows = json!([
        {"id": 1, "question": "A, B, C", "answer": "A -> B"},
        {"id": 2, "question": "A, B, C", "answer": "B -> A", "mood": "glad"},
    ]);
    let folder = edited(small("odd", &[(TIMES, rows)]), "odd.json", |events| {
        events[1]["timestamp"] = json!("early in 1990");
        events[0]["category"] = json!("action");
        events[0]["weather"] = json!(" ");
        events[2] = json!({"id": 4, "timestamp": "1990-01-01 08:00"});
    });
    let case = case(folder);
    let flags: Vec<String> = case.flags.iter().map(ToString::to_string).collect();
    for expected in [
        "no-date: odd/input/odd.json: case `odd` [1]: \"early in 1990\"",
        "empty-event: odd/input/odd.json: case `odd` [2]: an event without a text",
        "unused-field: odd/answer/Temporal Reasoning_answers.json: case `odd`: \"mood\" in 1 rows",
    ] {
        assert!(flags.iter().any(|flag| flag == expected), "{expected}: {flags:#?}");
    }
    assert_eq!(case.history.segments[1].turns[0], Turn::new("timestamp", "early in 1990"));
}

#[test]
fn names_of_fields_have_any_case_and_those_of_data_sets_2_and_3_are_known() {
    let plain =
        small("plain", &[(FACTS, json!([{"id": 1, "question": "a?", "answer": "a", "evidence": [2, 5]}]))]);
    let renamed = |name: &str, from: &[&str], to: &[&str], folder: Folder| {
        edited(folder, name, |rows| {
            for row in rows.as_array_mut().unwrap() {
                let fields = std::mem::take(row.as_object_mut().unwrap());
                let name = |key: String| {
                    from.iter().position(|from| *from == key).map_or(key, |at| to[at].to_owned())
                };
                *row = fields
                    .into_iter()
                    .map(|(key, value)| (name(key), value))
                    .collect::<serde_json::Map<_, _>>()
                    .into();
            }
        })
    };
    let other = renamed(
        "plain.json",
        &["inner_thought", "environment", "background", "action", "dialogue"],
        &["Mind", "Environment", "Background", "Action", "DIALOGUE"],
        plain.clone(),
    );
    let other =
        renamed("Extraction_answers.json", &["evidence", "answer"], &["evidence_ids", "Answer"], other);
    let (plain, other) = (case(plain), case(other));
    assert_eq!(other.history, plain.history);
    assert_eq!((&other.probes, &other.judge), (&plain.probes, &plain.judge));
    assert_eq!(segments(probe(&other, "T1-1"), "evidence"), [1, 3]);
}

#[test]
fn a_question_without_a_gold_is_not_asked_and_is_told() {
    let rows = json!([
        {"id": 1, "question": "a?", "answer": ""},
        {"id": 2, "question": "b?", "answer": null},
        {"id": 3, "question": "c?", "answer": []},
        {"id": 4, "question": "d?", "answer": "d"},
    ]);
    let folder = |rows: &[Value]| small("empty", &[(FACTS, rows.iter().cloned().collect())]);
    let rows = rows.as_array().unwrap();
    let case = case(folder(rows));
    assert_eq!(case.probes.iter().map(|probe| probe.id.as_str()).collect::<Vec<_>>(), ["T1-4"]);
    assert_eq!(case.judge.of_probes.keys().collect::<Vec<_>>(), ["T1-4"]);
    assert_eq!(case.labels["without_gold"], "T1-1 T1-2 T1-3");
    let told = case.flags.iter().filter(|flag| flag.check.name == "empty-gold");
    assert_eq!(told.map(|flag| flag.probes.join(" ")).collect::<Vec<_>>(), ["T1-1", "T1-2", "T1-3"]);
    // A data set without any gold has no questions.
    let [Err(ReadError::Row(refused))] = &read(folder(&rows[..3]))[..] else { panic!("it is read") };
    assert_eq!(refused.problems[0].found, "no question that has a gold");
}
