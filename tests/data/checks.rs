//! Data checks: each finds its fault in rows with one fault, and nothing in valid rows.

use std::collections::BTreeSet;
use std::path::Path;

use palimpsest::benchmarks::dataset::cases_in_memory;
use palimpsest::benchmarks::stale::STALE;
use palimpsest::benchmarks::{ALL, SampleSpec};
use palimpsest::case::check::near;
use palimpsest::case::check::words::{CHANGE_WORDS, STOP_WORDS, STRAY_TEXTS, TIME_WORDS};
use palimpsest::case::finding::{Finding, Severity, by_check};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A row without findings.
pub(super) fn row(uid: &str) -> Value {
    let session = |user: &str, assistant: &str| json!([{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]);
    json!({
        "uid": uid,
        "type": "T2",
        "M_old": "I water the tomato bed with rain from the barrel.",
        "M_new": "A crane lifted my greenhouse onto a truck.",
        "explanation": "Where there is no greenhouse there is nothing in it.",
        "relevant_session_index": [1, 3],
        "haystack_session": [
            session("Which tea suits a headache?", "Peppermint; let it stand for five minutes under a lid, and drink it slowly."),
            session("By the way, I water the tomato bed with rain from the barrel.", "Good: soft and warm."),
            session("Why does bread rise?", "Yeast makes gas of sugar, and the dough holds the bubbles until the heat sets its walls."),
            session("Long day. A crane lifted my greenhouse onto a truck.", "That must have been a sight."),
            session("Name three rivers.", "Danube, Elbe and Oder, all of which rise far from the sea that they reach."),
        ],
        "timestamps": [
            "2025-03-03 10:00:00", "2025-03-04 10:00:00", "2025-03-05 10:00:00", "2025-03-06 10:00:00", "2025-03-07 10:00:00"
        ],
        "probing_queries": {
            "dim1_query": "Does the user have plants to look after?",
            "dim2_query": "Which can is best for the tomato bed?",
            "dim3_query": "I have a free hour; what could I do outside?",
        },
    })
}

/// Findings of parseable rows.
fn found(rows: &Value) -> Vec<Finding> {
    let cases = cases_in_memory(&STALE, vec![("rows.json".to_owned(), rows.to_string().into_bytes())]);
    let report = STALE.check(Box::new(cases.into_iter()), &mut |_| {});
    assert!(report.is_sound(), "{:?}", report.problems);
    report.findings
}

fn lines(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_sound_row_has_no_finding() {
    assert_eq!(lines(&found(&json!([row("a")]))), Vec::<String>::new());
}

#[test]
fn each_fault_is_found_by_its_check_alone() {
    type Change = fn(&mut Value);
    let content =
        |text: &'static str| move |row: &mut Value| row["haystack_session"][2][1]["content"] = json!(text);
    for stray in STRAY_TEXTS {
        let mut row = row("a");
        row["haystack_session"][2][1]["content"] = json!(stray.to_uppercase());
        let found = found(&json!([row]));
        assert_eq!(found.len(), 1, "{:?}", lines(&found));
        assert_eq!((found[0].check.name, found[0].check.severity), ("stray-text", Severity::Error));
        assert_eq!(found[0].segments, [2]);
    }
    let changes: [(&str, Change, &str); 11] = [
        (
            "day-words",
            |row| {
                row["haystack_session"][0][0]["content"] =
                    json!("Today is Friday. Which tea suits a headache?");
            },
            "case `a` [0]: \"Today is Friday\" on 2025-03-03, a Monday",
        ),
        (
            "day-words",
            |row| row["probing_queries"]["dim1_query"] = json!("Did it change on Friday, March 6, 2025?"),
            "case `a` SR: \"Friday, March 6, 2025\" is a Thursday",
        ),
        (
            "premise-tells-new",
            |row| {
                row["probing_queries"]["dim2_query"] =
                    json!("Which can suits the tomato bed in greenhouses?");
            },
            "case `a` PR: the query says: greenhous",
        ),
        (
            "request-tells-state",
            |row| {
                row["probing_queries"]["dim3_query"] = json!("I have a free hour; is it time for watering?");
            },
            "case `a` IPA: the query says: water",
        ),
        (
            "marked-update",
            |row| {
                let new = "A crane lifted my greenhouse onto a truck; it is no longer here.";
                row["M_new"] = json!(new);
                row["haystack_session"][3][0]["content"] = json!(new);
            },
            "case `a`: the new state says: no, longer",
        ),
        (
            "shared-words",
            |row| {
                let new = "A crane lifted my tomato bed onto a truck.";
                row["M_new"] = json!(new);
                row["haystack_session"][3][0]["content"] = json!(new);
            },
            "case `a`: both states say: bed, tomato",
        ),
        (
            "fact-not-told",
            |row| row["haystack_session"][1][0]["content"] = json!("By the way, the weather is fine."),
            "case `a` [1]: a user turn of the old session has 0% of the words of the old state",
        ),
        (
            "fact-told-again",
            |row| {
                row["haystack_session"][4][0]["content"] =
                    json!("They water every tomato bed from a barrel there.");
            },
            "case `a` [4]: session 4 has 80% of the words of the old state",
        ),
        (
            "same-question",
            |row| row["probing_queries"]["dim1_query"] = json!("which can is best, for the TOMATO bed"),
            "case `a` SR, PR: 2 questions are \"which can is best, for the TOMATO bed\": SR, PR",
        ),
        (
            "same-segment",
            |row| row["haystack_session"][4] = row["haystack_session"][2].clone(),
            "case `a` [4], [2]: it says what segment 2 says",
        ),
        (
            "no-options",
            |row| row["probing_queries"]["dim1_query"] = json!("Which of them holds: A, B or C?"),
            "case `a` SR: \"Which of them holds: A, B or C?\" says nowhere what A, B, C are",
        ),
    ];
    for (check, change, expected) in changes {
        let mut row = row("a");
        change(&mut row);
        assert_eq!(lines(&found(&json!([row]))), [format!("{check}: {expected}")]);
    }
    // Neither a text that merely contains the word nor options that are present.
    for change in
        [content("Stop the dough when it has doubled; then continue."), content("The error is in the oven.")]
    {
        let mut row = row("a");
        change(&mut row);
        assert_eq!(lines(&found(&json!([row]))), Vec::<String>::new());
    }
    let mut row = row("a");
    row["probing_queries"]["dim1_query"] = json!("Which of A, B, C holds? A: tea. B: bread. C: rivers.");
    assert_eq!(lines(&found(&json!([row]))), Vec::<String>::new());
}

#[test]
fn copies_are_found_across_cases() {
    let names = |rows: Value| {
        let found = found(&rows);
        by_check(&found).iter().map(|(check, of, _)| (check.name, of.len())).collect::<Vec<_>>()
    };
    // The same history under another uid: its three questions repeat, and its evidence is not reported separately.
    assert_eq!(names(json!([row("a"), row("b")])), [("same-question", 3), ("same-history", 1)]);
    let mut other = row("b");
    other["haystack_session"][0][0]["content"] = json!("Which tea suits a cold?");
    other["haystack_session"][1][0]["content"] =
        json!("By the way, I water the tomato bed with rain from the barrel. Every day.");
    other["probing_queries"] = json!({
        "dim1_query": "Does the user have plants to look after now?",
        "dim2_query": "How large is the tomato bed?",
        "dim3_query": "What could fill my afternoon?",
    });
    let found = found(&json!([row("a"), other]));
    let lines = lines(&found);
    assert_eq!(
        by_check(&found).iter().map(|(check, of, _)| (check.name, of.len())).collect::<Vec<_>>(),
        [("like-question", 1), ("same-evidence", 2)],
        "{lines:#?}"
    );
    assert!(
        lines[0].contains("case `a` SR: case `b` SR has 88%") && lines[1].contains("case `b` [1]"),
        "{lines:#?}"
    );
}

#[test]
fn findings_are_counted_by_check_and_probes_once_each() {
    let mut row = row("a");
    row["haystack_session"][0][0]["content"] = json!("Today is Friday, and it's already April.");
    let found = found(&json!([row]));
    let [(check, of, probes)] = by_check(&found).try_into().unwrap();
    assert_eq!((check.name, of.len(), probes), ("day-words", 2, 0));
}

/// Small sets, so that many are similar.
fn sets() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let set = prop::collection::btree_set(0u64..12, 0..9).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    prop::collection::vec(set, 0..14)
}

proptest! {
    /// Reference: comparison of every pair.
    #[test]
    fn pairs_alike_are_those_that_comparing_all_pairs_finds(sets in sets(), least in 1u32..=10) {
        let least = f64::from(least) / 10.0;
        let mut expected = Vec::new();
        for first in 0..sets.len() {
            for second in first + 1..sets.len() {
                let (a, b) = (&sets[first], &sets[second]);
                let common = a.iter().filter(|x| b.contains(x)).count();
                let either = a.len() + b.len() - common;
                if either > 0 && common as f64 / either as f64 >= least {
                    expected.push((first, second));
                }
            }
        }
        let found: Vec<(usize, usize)> = near::pairs(&sets, least).iter().map(|p| (p.first, p.second)).collect();
        prop_assert_eq!(found, expected);
    }
}

/// The built-in samples, which people start from, have no errors. Known warnings remain (words that both states of a case, or a request,
/// share): committed figures and numbers depend on these texts.
#[test]
fn the_samples_have_known_warnings_and_no_error() {
    let found = ALL.map(|benchmark| {
        let cases = cases_in_memory(benchmark, (benchmark.sample)(SampleSpec::default()).unwrap());
        let report = benchmark.check(Box::new(cases.into_iter()), &mut |_| {});
        let counts = by_check(&report.findings);
        assert!(
            counts.iter().all(|(check, ..)| check.severity == Severity::Warning),
            "{:#?}",
            lines(&report.findings)
        );
        let counts = counts.iter().map(|(check, of, _)| format!("{} {}", check.name, of.len()));
        (benchmark.name, counts.collect::<Vec<_>>().join(", "))
    });
    assert_eq!(
        found.map(|(name, counts)| format!("{name}: {counts}")),
        [
            "stale: shared-words 9, request-tells-state 6, marked-update 1",
            "subtlememory: fact-not-told 2",
            // A memory of 1979 that is mentioned in 1988.
            "knowme: time-order 1",
            "memrewardbench: ",
            "dose: ",
            "own: ",
        ]
    );
}

/// Names in `Check::error("…` and `Check::warning("…` of the source, with their severities.
fn declared() -> BTreeSet<(String, &'static str)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/data/src")];
    let mut found = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(path).unwrap();
                for severity in ["error", "warning"] {
                    let declaration = format!("Check::{severity}(");
                    let of = text.split(declaration.as_str()).skip(1);
                    let names = of.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
                    found.extend(names.map(|name| (name.to_owned(), severity)));
                }
            }
        }
    }
    found
}

#[test]
fn the_docs_have_every_check_and_every_word() {
    let docs = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/data.md")).unwrap();
    let mut listed = BTreeSet::new();
    for row in docs.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let severity = if cells[2] == "error" { "error" } else { "warning" };
        listed.extend(cells[1].split(", ").map(|name| (name.trim_matches('`').to_owned(), severity)));
    }
    assert_eq!(listed, declared());
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    let docs = words(&docs);
    assert!(
        docs.contains(&words(STOP_WORDS))
            && docs.contains(&words(TIME_WORDS))
            && docs.contains(&words(CHANGE_WORDS))
    );
    assert!(STRAY_TEXTS.iter().all(|text| docs.contains(&format!("`{text}`"))));
}
