//! Reading of a valid folder, and messages about a broken one.

use std::collections::BTreeMap;

use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::dataset::{Dataset, DatasetError, cases_in_memory};
use palimpsest::benchmarks::reading::ReadError;
use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::case::{Case, Probe};
use palimpsest::runs::file_plan::FilePlan;
use serde_json::{Value, json};

use super::{Folder, sample, sample_case};

/// Evidence of a probe: session roles by position in the history.
fn roles(probe: &Probe) -> Vec<(usize, &str)> {
    probe.evidence.iter().map(|e| (e.place.segment, e.role.as_str())).collect()
}

fn probe<'a>(case: &'a Case, id: &str) -> &'a Probe {
    case.probes.iter().find(|probe| probe.id == id).unwrap()
}

#[test]
fn the_sample_has_every_relation_and_subtype_on_one_history() {
    let case = sample_case();
    assert_eq!(case.id, "persona_0");
    assert_eq!(case.history.segments.len(), 24);
    let times: Vec<_> = case.history.segments.iter().map(|segment| segment.time.unwrap()).collect();
    assert!(times.is_sorted() && case.labels.is_empty() && case.flags.is_empty());
    assert_eq!(case.probes.len(), 15);
    let mut kinds: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for probe in &case.probes {
        *kinds.entry((&probe.facets["relation"], &probe.facets["subtype"])).or_default() += 1;
        assert!(["user-related", "user-unrelated"].contains(&probe.facets["source"].as_str()));
        assert!(!probe.facets["topic"].is_empty() && probe.id.starts_with(&probe.facets["instance"]));
        let notes = &case.judge.of_probes[&probe.id];
        assert_eq!(notes["correct_answers"].as_array().unwrap().len(), 3);
        assert_eq!(notes["incorrect_answers"].as_array().unwrap().len(), 3);
        assert!(notes["facts"].as_array().unwrap().len() >= 2 && notes["case"].is_string());
    }
    let expected = [
        (("complementary", "any_one"), 2),
        (("complementary", "multi_evidence"), 2),
        (("contradictory", "contradictory"), 3),
        (("nuanced", "contextual"), 4),
        (("nuanced", "temporal"), 4),
    ];
    assert_eq!(kinds, expected.into());
}

#[test]
fn evidence_plays_its_part_in_time_order() {
    let mut folder = sample();
    // The order of ids in the file must not matter.
    let seat =
        folder.instances.as_array_mut().unwrap().iter_mut().find(|i| i["instance_id"] == "related-seat");
    seat.unwrap()["session_ids"].as_array_mut().unwrap().reverse();
    let (case, _) = folder.parts();
    let case = case.unwrap();
    assert_eq!(roles(probe(&case, "related-seat-q1")), [(4, "conflict_early"), (15, "conflict_late")]);
    assert_eq!(roles(probe(&case, "related-picnic-q1")), [(0, "target"), (11, "target"), (16, "target")]);
    // In a nuanced set the only session with a correct answer is the selected one; without one it is unknown.
    assert_eq!(roles(probe(&case, "unrelated-museum-q1")), [(3, "target"), (12, "selected"), (20, "target")]);
    assert_eq!(roles(probe(&case, "unrelated-museum-q2")), [(3, "selected"), (12, "target"), (20, "target")]);
    assert_eq!(roles(probe(&case, "related-notes-q1")), [(7, "target"), (17, "selected")]);
    assert_eq!(roles(probe(&case, "related-run-q1")), [(2, "selected"), (13, "target")]);
}

#[test]
fn a_folder_is_known_by_content_alone_or_among_others() {
    let root = tempfile::tempdir().unwrap();
    for (name, bytes) in sample().files("") {
        for folder in ["persona_0", "persona_10", "persona_9"] {
            let folder = root.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(&name), &bytes).unwrap();
        }
    }
    std::fs::write(root.path().join("README.md"), "notes").unwrap();
    let ids = |path: &std::path::Path| {
        let data = Dataset::open(path, SampleSpec::default(), |_| {}).unwrap();
        assert_eq!(data.benchmark().name, "subtlememory");
        let ids: Vec<String> = data.cases().unwrap().map(|case| case.unwrap().id).collect();
        (ids, data.digest().to_owned())
    };
    let (of_all, digest) = ids(root.path());
    assert_eq!(of_all, ["persona_0", "persona_9", "persona_10"]);
    // The folder's own name is not needed: the session ids hold it.
    assert_eq!(ids(&root.path().join("persona_9")).0, ["persona_0"]);
    std::fs::write(root.path().join("README.md"), "other notes").unwrap();
    assert_eq!(ids(root.path()).1, digest, "other files are no data");
    let sample = Dataset::open("sample:subtlememory", SampleSpec::default(), |_| {}).unwrap();
    assert_eq!(sample.cases().unwrap().next().unwrap().unwrap(), sample_case());
    let spec = SampleSpec { segments: Some(7), seed: 0 };
    let error = Dataset::open("sample:subtlememory", spec, |_| {}).unwrap_err();
    assert!(matches!(error, DatasetError::Sample(_)) && error.to_string().contains("24 sessions"), "{error}");
}

#[test]
fn a_folder_alone_is_called_by_its_session_ids_or_its_persona() {
    let id = |change: &dyn Fn(&mut Value)| {
        let mut folder = sample();
        let mut renamed = folder.sessions.to_string().replace("-persona_0-", "-persona_7-");
        folder.sessions = serde_json::from_str(&renamed).unwrap();
        folder
            .sessions
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .for_each(|session| session["persona_id"] = json!("135"));
        folder.sessions.as_array_mut().unwrap().iter_mut().for_each(change);
        renamed = folder.instances.to_string().replace("-persona_0-", "-persona_7-");
        folder.instances = serde_json::from_str(&renamed).unwrap();
        cases_in_memory(&SUBTLEMEMORY, folder.files("")).remove(0)
    };
    assert_eq!(id(&|_| {}).unwrap().id, "persona_7");
    // Sets of sessions whose ids lack a name fall back on the field.
    let bare = |session: &mut Value| {
        session["session_id"] = json!(session["session_id"].as_str().unwrap().replace("persona_7", "p"));
    };
    match id(&bare) {
        Err(ReadError::Row(problems)) => {
            assert!(problems.to_string().contains("does not have"), "{problems}");
        }
        other => panic!("{other:?}"),
    }
    let mut folder = sample();
    let strip = |value: &Value| serde_json::from_str(&value.to_string().replace("-persona_0-", "-")).unwrap();
    folder = Folder { sessions: strip(&folder.sessions), instances: strip(&folder.instances) };
    folder
        .sessions
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .for_each(|session| session["persona_id"] = json!("135"));
    assert_eq!(cases_in_memory(&SUBTLEMEMORY, folder.files("")).remove(0).unwrap().id, "persona_135");
}

/// Sorted like the authors' converter; ids break ties.
#[test]
fn sessions_follow_their_order_and_timestamps_that_say_otherwise_are_told() {
    let mut folder = sample();
    let sessions = folder.sessions.as_array_mut().unwrap();
    // By time the last session is the second one.
    sessions[23]["timestamp"] = json!("2025-04-02T10:00:00+02:00");
    // File order is irrelevant.
    sessions.swap(3, 17);
    let (case, broken) = folder.parts();
    let case = case.unwrap();
    assert!(broken.is_empty());
    assert!(case.history.segments[23].turns[0].content.starts_with("Please shorten this"));
    assert_eq!(roles(probe(&case, "unrelated-lighthouse-q1")).last(), Some(&(23, "target")));
    let report = SUBTLEMEMORY.check(Box::new(std::iter::once(Ok(case))), &mut |_| {});
    let told: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let out_of_order: Vec<&String> = told.iter().filter(|line| line.starts_with("time-order")).collect();
    assert_eq!(out_of_order.len(), 1, "{told:?}");
    assert!(out_of_order[0].contains("[23]"), "{told:?}");

    let mut folder = sample();
    let sessions = folder.sessions.as_array_mut().unwrap();
    let (first, second) = (sessions[0]["session_id"].clone(), sessions[1]["session_id"].clone());
    sessions[1]["order"] = sessions[0]["order"].clone();
    let earlier = if first.as_str() < second.as_str() { 0 } else { 1 };
    let opening = sessions[earlier]["history"][0]["content"].clone();
    let case = folder.parts().0.unwrap();
    assert_eq!(Value::from(case.history.segments[0].turns[0].content.clone()), opening);
}

/// Breaks one set of the sample; returns the messages.
fn broken_instance(at: usize, change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut folder = sample();
    change(&mut folder.instances[at]);
    let (case, broken) = folder.parts();
    assert_eq!(broken.len(), 1);
    let questions = broken[0].probes.len();
    assert_eq!(case.unwrap().probes.len() + questions, 15, "every question stays in the denominator");
    broken[0].problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_broken_set_is_one_clear_line_and_leaves_the_others() {
    let told = |at: usize, change: &dyn Fn(&mut Value), line: &str| {
        let lines = broken_instance(at, change);
        assert_eq!(lines, [format!("persona_0/bench_instances.json, row {at} {line}")]);
    };
    told(
        0,
        &|i| i["session_ids"][1] = json!("related-persona_0-picnic-s9"),
        "(uid \"related-picnic\"), session_ids[1]: found \"related-persona_0-picnic-s9\", which the history does not have; \
         name sessions of history_sessions.json by their session_id",
    );
    told(
        1,
        &|i| i["relation_subtype"] = json!("any_two"),
        "(uid \"related-tea\"), relation_subtype: found \"any_two\"; write multi_evidence, any_one, single_evidence, temporal, \
         contextual or contradictory",
    );
    told(
        1,
        &|i| i["relation_subtype"] = json!("Temporal"),
        "(uid \"related-tea\"), relation_subtype: found \"Temporal\", which is nuanced, in a complementary set; make relation and \
         subtype agree",
    );
    told(
        2,
        &|i| i["relation_type"] = json!("subtle"),
        "(uid \"related-run\"), relation_type: found \"subtle\"; write complementary, nuanced or contradictory",
    );
    told(
        2,
        &|i| i["qas"][1]["correct_answers"] = json!([]),
        "(uid \"related-run\"), qas[1].correct_answers: found an empty array; give at least one answer",
    );
    told(
        3,
        &|i| i["qas"][0]["incorrect_answers"][2] = json!("  "),
        "(uid \"related-notes\"), qas[0].incorrect_answers[2]: found an empty string; write a text that is not blank",
    );
    told(
        3,
        &|i| drop(i["qas"][0].as_object_mut().unwrap().remove("query")),
        "(uid \"related-notes\"), qas[0].query: found no such field; add it",
    );
    told(
        4,
        &|i| drop(i["session_ids"].as_array_mut().unwrap().pop()),
        "(uid \"related-seat\"), session_ids: found a single session; a contradictory set needs at least two sessions",
    );
    told(
        4,
        &|i| i["session_ids"][1] = i["session_ids"][0].clone(),
        "(uid \"related-seat\"), session_ids[1]: found \"related-persona_0-seat-s1\" a second time; name every session once",
    );
    told(
        5,
        &|i| drop(i.as_object_mut().unwrap().remove("instance_id")),
        "(no uid), instance_id: found no such field; add it",
    );
    told(
        6,
        &|i| i["instance_id"] = json!("related-tea"),
        "(uid \"related-tea\"), instance_id: found the instance_id of row 1 again; give every instance its own id",
    );
    told(
        7,
        &|i| i["facts"] = json!("one"),
        "(uid \"unrelated-lighthouse\"), facts: found \"one\"; write an array, one element a fact",
    );
    // A row that is not an object has an unknown number of questions: it counts as one.
    told(10, &|i| *i = json!(3), "(no uid), (row): found 3; write an object");
}

#[test]
fn several_problems_of_a_set_are_all_told() {
    let lines = broken_instance(0, |i| {
        i["case"] = json!("");
        i["topic"] = json!(null);
        i["qas"][0]["query"] = json!(["?"]);
    });
    let fields: Vec<&str> = lines.iter().map(|line| line.split(": found").next().unwrap()).collect();
    let field =
        |name: &str| format!("persona_0/bench_instances.json, row 0 (uid \"related-picnic\"), {name}");
    assert_eq!(fields, [field("case"), field("topic"), field("qas[0].query")]);
}

#[test]
fn the_profile_is_the_judges_alone_and_in_no_message() {
    const SECRET: &str = "4938 6251 9472 1058";
    let mut folder = sample();
    for instance in folder.instances.as_array_mut().unwrap() {
        instance["persona_str"] = json!(format!("{{card: {SECRET}}}"));
    }
    folder.instances[0]["qas"] = json!(SECRET.len());
    folder.instances[1]["relation_type"] = json!("none");
    // A non-text profile is reported without its content; for a set about something else it is ignored.
    folder.instances[2]["persona_str"] = json!({"card": SECRET});
    let instances = folder.instances.as_array_mut().unwrap();
    let other = instances.iter_mut().find(|instance| instance["source"] != "user-related").unwrap();
    other["persona_str"] = json!([SECRET]);
    let (case, broken) = folder.parts();
    let mut case = case.unwrap();
    let told = format!("{broken:?}{}", broken.iter().map(ToString::to_string).collect::<String>());
    assert!(!told.contains(SECRET), "{told}");
    assert!(
        told.contains("persona_str: found an object of 1 fields; write a string, or leave it out"),
        "{told}"
    );
    assert_eq!(broken.len(), 3);
    for probe in &case.probes {
        let has_profile = case.judge.of_probes[&probe.id].contains_key("persona");
        assert_eq!(has_profile, probe.facets["source"] == "user-related", "{}", probe.id);
    }
    case.judge.of_probes.clear();
    assert!(!format!("{case:?}").contains(SECRET));
}

#[test]
fn a_broken_session_refuses_its_history_with_all_of_its_questions() {
    let mut folder = sample();
    folder.sessions[2]["history"][1]["role"] = json!("system");
    folder.sessions[3]["timestamp"] = json!("2025-04-02");
    folder.sessions[5]["session_id"] = folder.sessions[4]["session_id"].clone();
    folder.sessions[6]["order"] = json!("six");
    let (case, broken) = folder.parts();
    assert_eq!((case, broken.len(), broken[0].probes.len()), (None, 1, 15));
    let lines: Vec<String> = broken[0].problems.iter().map(ToString::to_string).collect();
    let line = |row: usize, session: &str, rest: &str| {
        format!("persona_0/history_sessions.json, row {row} (uid \"persona_0\"), session {session:?}, {rest}")
    };
    let seat = "related-persona_0-seat-s1";
    let expected = [
        line(
            2,
            "related-persona_0-run-s1",
            "history[1].role: found \"system\"; write \"user\" or \"assistant\"",
        ),
        line(
            3,
            "unrelated-persona_0-museum-s1",
            "timestamp: found \"2025-04-02\"; write a date and time with its offset, as 2025-04-01T10:01:36+08:00",
        ),
        line(5, seat, "session_id: found the session_id of row 4 again; give every session its own id"),
        line(
            6,
            "unrelated-persona_0-rovers-s1",
            "order: found \"six\"; write the session's place, a whole number",
        ),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn files_that_cannot_be_parsed_or_are_missing_end_the_reading() {
    let one = |files: Vec<(String, Vec<u8>)>| {
        let mut all = cases_in_memory(&SUBTLEMEMORY, files);
        assert_eq!(all.len(), 1);
        let error = all.remove(0).unwrap_err();
        let source = std::error::Error::source(&error).map(|s| format!(": {s}")).unwrap_or_default();
        format!("{error}{source}")
    };
    let mut cut = sample().files("persona_0/");
    cut[1].1.truncate(9000);
    let told = one(cut);
    assert!(told.starts_with("persona_0/history_sessions.json, row "), "{told}");
    assert!(told.contains("the file ends inside the row") && told.contains("fetch it again"), "{told}");
    let told = one(sample().files("a/persona_3/").into_iter().skip(1).collect());
    assert_eq!(
        told,
        "a/persona_3/bench_instances.json, reading failed in row 0: no such file: every history has both \
         history_sessions.json and bench_instances.json"
    );
    let told = one(vec![("other.json".to_owned(), b"[]".to_vec())]);
    assert!(told.contains("no cases") && told.contains("SubtleMemory"), "{told}");
    let mut empty = sample();
    empty.instances = json!([]);
    let (case, broken) = empty.parts();
    assert!(case.is_none() && broken[0].to_string().contains("found no instance at all"), "{broken:?}");
    empty.sessions = json!([]);
    assert!(empty.parts().1[0].to_string().contains("found no session at all"));
}

#[test]
fn broken_sets_are_planned_with_their_questions_and_their_relation() {
    let mut folder = sample();
    folder.instances[2]["facts"] = json!([]);
    folder.instances[3]["relation_subtype"] = json!("?");
    folder.instances[4]["relation_type"] = json!("?");
    folder.instances[4]["relation_subtype"] = json!("?");
    let mut plan = FilePlan::new(&SUBTLEMEMORY);
    for case in folder.read() {
        match case {
            Ok(case) => plan.sound(&case),
            Err(ReadError::Row(problems)) => plan.broken(problems),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(plan.rows(), (4, 3));
    let plan = plan.finish();
    let cases: Vec<(&str, usize)> = plan.iter().map(|c| (c.case.as_str(), c.probes.len())).collect();
    assert_eq!(cases, [("persona_0", 10), ("related-run", 2), ("related-notes", 2), ("related-seat", 1)]);
    let facets = |case: usize| {
        let facets = &plan[case].probes[0].facets;
        (facets.get("relation").map(String::as_str), facets.get("subtype").map(String::as_str))
    };
    assert_eq!(facets(1), (Some("nuanced"), Some("temporal")));
    assert_eq!(facets(2), (Some("nuanced"), None));
    assert_eq!(facets(3), (None, None));
    assert!(plan[1].broken.as_ref().unwrap().contains("facts: found an empty array"));
    let ids: Vec<&str> = plan[1].probes.iter().map(|probe| probe.id.as_str()).collect();
    assert_eq!(ids, ["related-run-q1", "related-run-q2"]);
}
