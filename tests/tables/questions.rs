//! Tables over questions: two runs on the same ones, answers that were cut, any benchmark, samples.

use super::*;

#[test]
fn two_runs_are_compared_on_the_same_questions_alone() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let first = Run::of("first", 20, vec![[15, 2, 9, 10, 0, 5]]);
    let second = Run::of("http://host/v1#second", 20, vec![[6, 2, 12, 4, 0, 5]]);
    first.write(&at("first"));
    second.write(&at("second"));
    let json: Value =
        serde_json::from_str(&done(root.path(), &["first", "second", "--compare", "--format", "json"]))
            .unwrap();
    let comparison = &json["comparison"];
    assert_eq!((&comparison["first"], &comparison["second"]), (&json!("first"), &json!("second")));
    // The first cases are the correct ones, so the smaller set is a subset of the larger.
    let cells = comparison["cells"].as_array().unwrap();
    let tests: Vec<_> =
        cells.iter().map(|c| (c["test"]["b"].as_u64().unwrap(), c["test"]["c"].as_u64().unwrap())).collect();
    assert_eq!(tests, [(9, 0), (0, 0), (0, 3), (6, 0), (0, 0), (0, 0)]);
    let numbers = |name: &str| cells.iter().map(|c| c["test"][name].as_f64().unwrap()).collect::<Vec<_>>();
    // 2 / 2^9, 1, 2 / 2^3, 2 / 2^6, 1, 1; Holm over six: times 6, then 5, then 4.
    for (ours, expected) in numbers("p").iter().zip([2.0 / 512.0, 1.0, 0.25, 2.0 / 64.0, 1.0, 1.0]) {
        assert!((ours - expected).abs() < 1e-9, "{ours} {expected}");
    }
    for (ours, expected) in numbers("p_holm").iter().zip([12.0 / 512.0, 1.0, 1.0, 10.0 / 64.0, 1.0, 1.0]) {
        assert!((ours - expected).abs() < 1e-9, "{ours} {expected}");
    }
    let overall = &comparison["overall"];
    assert_eq!(
        (&overall["test"]["b"], &overall["test"]["c"], &overall["pairs"]),
        (&json!(15), &json!(3), &json!(120))
    );
    // 2 (1 + 18 + 153 + 816) / 2^18
    assert!((overall["test"]["p"].as_f64().unwrap() - 1976.0 / 262_144.0).abs() < 1e-9);
    assert!((overall["difference"].as_f64().unwrap() - 0.1).abs() < 1e-9);
    assert!(overall["test"]["p_holm"].is_null());
    // T1 SR differs in 9 of 20 cases, always by one; with one more difference either way the mean is 9/22 and the sum of squares 11.
    let interval = |of: &Value| ["low", "high"].map(|end| of["interval"][end].as_f64().unwrap());
    let [low, high] = interval(&cells[0]);
    let adjusted = |sum: f64, squares: f64| {
        let mean = sum / 22.0;
        (mean, 2.079_613_845 * ((squares - 22.0 * mean * mean) / 21.0 / 22.0).sqrt())
    };
    let (mean, half) = adjusted(9.0, 11.0);
    assert!((low - (mean - half)).abs() < 1e-9 && (high - (mean + half)).abs() < 1e-9, "{low} {high}");
    // No case differs, which does not prove that none would.
    let (_, half) = adjusted(0.0, 2.0);
    let [low, high] = interval(&cells[1]);
    assert!((low + half).abs() < 1e-9 && (high - half).abs() < 1e-9 && high > 0.1, "{low} {high}");
    // Swapping the runs flips every sign.
    let text = done(root.path(), &["second", "first", "--compare"]);
    let line = |name: &str| {
        text.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(line("T1 SR")[2..6], ["20", "30.0", "75.0", "-45.0"]);
    assert_eq!(line("T1 SR")[9..], ["0", "9", "0.0039", "0.0234"]);
    assert_eq!(line("overall ")[1..5], ["120", "24.2", "34.2", "-10.0"]);
    assert!(text.contains("McNemar") && text.contains("p (Holm)"), "{text}");

    // A run with fewer cases.
    Run::of("short", 19, vec![[6, 2, 12, 4, 0, 5]]).write(&at("short"));
    let differs = refused(root.path(), &["first", "short", "--compare"]);
    assert!(
        differs.contains("6 in first alone (T1-019/SR, T1-019/PR, T1-019/IPA, ...)")
            && differs.contains("--common"),
        "{differs}"
    );
    let common = done(root.path(), &["first", "short", "--compare", "--common"]);
    assert!(
        common.lines().any(|line| line.starts_with("left out: 6 ") && line.contains(" 0 "))
            && common.contains("same 114"),
        "{common}"
    );

    // Incomparable runs are rejected by name.
    Run { judge: Some("http://host/v1#other"), ..Run::of("other", 20, vec![[6, 2, 12, 4, 0, 5]]) }
        .write(&at("other"));
    Run { rubric: None, ..Run::of("old", 20, vec![[6, 2, 12, 4, 0, 5]]) }.write(&at("old"));
    Run { judge: None, ..Run::of("none", 20, vec![[0; 6]]) }.write(&at("none"));
    Run { judge: Some("local:tiny-0.5b"), ..Run::of("same", 20, vec![[0; 6]]) }.write(&at("same"));
    Run::of("five", 20, vec![[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]]).write(&at("five"));
    for (args, expected) in [
        (&["first", "other", "--compare"][..], "needs one judge and rubric for both"),
        (&["first", "old", "--compare"], "needs one judge and rubric for both"),
        (&["first", "none", "--compare"], "no verdicts to compare"),
        (&["first", "same", "--compare"], "cannot be compared: local:tiny-0.5b has about 500 million"),
        (&["first", "--compare"], "takes two rows, and these folders have 1"),
        (&["first", "second", "other", "--compare"], "takes two rows, and these folders have 3"),
        (&["first", "five", "--compare"], "takes two rows, and these folders have 3"),
        (&["first", "first"], "given twice"),
        (&["first", "--repeats"], "has no repetitions"),
        (&["first", "--judge", "nobody"], "holds no verdict of judge `nobody`; its judges are: http"),
        (&["first", "--rubric", "s"], "holds no verdict of judge by the rubric `s`; its judges are: http"),
        (&["first", "--condition", "repeat-7"], "no condition `repeat-7`"),
        (&["first", "no/such/folder"], "no/such/folder is no run folder"),
    ] {
        let error = refused(root.path(), args);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    // Two conditions of one run are two rows.
    let two = done(root.path(), &["five", "--compare"]);
    assert!(two.contains("first: five (plain); second: five (repeat-2)"), "{two}");
    // Rows with equal names show their folder.
    Run::of("first", 20, vec![[6, 2, 12, 4, 0, 5]]).write(&at("again"));
    let text = done(root.path(), &["first", "again"]);
    assert!(text.contains("first [") && text.contains("/again]"), "{text}");
}

/// Truncated answers and thoughts appear in every format of every table.
#[test]
fn answers_that_were_cut_are_counted_in_every_table() {
    use palimpsest::chat::StopReason;
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let cut = |answers: &mut Vec<AnswerRow>| {
        for row in answers.iter_mut().filter(|row| row.probe == "IPA" && row.case.starts_with("T1")) {
            row.stop = Some(StopReason::MaxNewTokens);
        }
        let thought = answers.iter_mut().find(|row| row.probe == "SR").unwrap();
        *thought = AnswerRow {
            answer: None,
            error: Some("the budget for thinking ended".to_owned()),
            cut: true,
            ..thought.clone()
        };
    };
    Run::of("cut", 10, vec![[5, 1, 3, 2, 0, 1]]).write_with(&at("cut"), |answers, _| cut(answers));
    Run::of("whole", 10, vec![[5, 1, 3, 2, 0, 1]]).write(&at("whole"));
    let said = "cut: 10 of 59 answers were cut at the limit of new tokens; 1 without an answer ended inside a thought";
    let text = done(root.path(), &["cut", "whole"]);
    let last = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!((last("cut"), last("whole")), ("10".to_owned(), "0".to_owned()));
    assert!(text.contains(said) && !text.contains("whole: "), "{text}");
    let json: Value = serde_json::from_str(&done(root.path(), &["cut", "--format", "json"])).unwrap();
    assert_eq!((&json["rows"][0]["cut"], &json["rows"][0]["cut_thoughts"]), (&json!(10), &json!(1)));
    let csv = done(root.path(), &["cut", "--format", "csv"]);
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let records: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    assert!(records.iter().all(|record| record["cut"] == "10"), "{csv}");
    // Over repetitions too.
    Run::of("five", 10, vec![[5, 1, 3, 2, 0, 1]; 2]).write_with(&at("five"), |answers, _| cut(answers));
    let text = done(root.path(), &["five", "--repeats"]);
    assert!(text.contains("five: 20 of 119 answers were cut"), "{text}");
}

/// Notes on answers that count as wrong use the singular for one question, the plural for more.
#[test]
fn questions_without_an_outcome_are_counted_in_grammatical_sentences() {
    let root = tempfile::tempdir().unwrap();
    for (name, n, said) in [
        (
            "one",
            1,
            [
                "1 of 60 questions was not asked yet and counts as wrong; the same `palimpsest run`",
                "1 of 60 questions ended in an error instead of an answer; it counts as wrong",
                "1 of 60 questions has an answer and no verdict; it counts as wrong",
            ],
        ),
        (
            "two",
            2,
            [
                "2 of 60 questions were not asked yet and count as wrong; the same `palimpsest run`",
                "2 of 60 questions ended in an error instead of an answer; they count as wrong",
                "2 of 60 questions have an answer and no verdict; they count as wrong",
            ],
        ),
    ] {
        Run::of(name, 10, vec![[5, 1, 3, 2, 0, 1]]).write_with(
            &root.path().join(name),
            |answers, verdicts| {
                answers.drain(..n);
                for row in &mut answers[..n] {
                    *row = AnswerRow { answer: None, error: Some("no server".to_owned()), ..row.clone() };
                }
                verdicts.drain(..3 * n);
            },
        );
        let text = done(root.path(), &[name]);
        for said in said {
            assert!(text.contains(&format!("{name}: {said}")), "{said}: {text}");
        }
    }
}

/// Not specific to one benchmark: scores, dimensions that are facets, an overall number over all probes.
#[test]
fn tables_of_any_benchmark_are_made_by_its_trait() {
    let probe = |id: &str, about: &str| PlannedProbe {
        id: id.to_owned(),
        query: format!("{id}?"),
        facets: BTreeMap::from([("about".to_owned(), about.to_owned())]),
        ..PlannedProbe::default()
    };
    let case = |position: usize, id: &str, ship: &str, probes: Vec<PlannedProbe>| PlannedCase {
        position,
        case: id.to_owned(),
        labels: BTreeMap::from([("ship".to_owned(), ship.to_owned())]),
        probes,
        evidence: Vec::new(),
        judge: Notes::default(),
        broken: None,
    };
    let plan = [
        case(0, "a", "Pequod", vec![probe("q1", "place"), probe("q2", "place"), probe("q3", "oil")]),
        case(1, "b", "Pequod", vec![probe("q1", "place")]),
        case(2, "c", "Rachel", vec![probe("q1", "oil")]),
    ];
    let rows = |scores: [u32; 5]| {
        let keys = [("a", "q1"), ("a", "q2"), ("a", "q3"), ("b", "q1"), ("c", "q1")];
        let of = |((case, probe), score): ((&str, &str), u32)| {
            let answer = json!({"case": case, "probe": probe, "labels": {}, "query": "", "answer": "x", "dropped_sessions": []});
            let (case, probe) = (case.to_owned(), probe.to_owned());
            let verdict = VerdictRow {
                case,
                probe,
                judge: "j".to_owned(),
                score: Some(f64::from(score)),
                ..VerdictRow::default()
            };
            (serde_json::from_value::<AnswerRow>(answer).unwrap(), verdict)
        };
        keys.into_iter().zip(scores).map(of).unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let (answers, verdicts) = rows([2, 1, 0, 2, 1]);
    let first = Outcomes::of(&LOGBOOK, &join(&plan, "", &answers, &verdicts), "j");
    let table = AccuracyTable::of(&first, "j");
    let cells: Vec<_> =
        table.cells.iter().map(|c| (&*c.kind, &*c.dimension, c.counts.worth, c.counts.expected)).collect();
    assert_eq!(cells, [("Pequod", "place", 2.5, 3), ("Pequod", "oil", 0.0, 1), ("Rachel", "oil", 0.5, 1)]);
    assert_eq!((table.most, table.overall.accuracy), (Some(2), Some(0.6)));

    let (answers, verdicts) = rows([0, 1, 0, 2, 2]);
    let second = Outcomes::of(&LOGBOOK, &join(&plan, "", &answers, &verdicts), "j");
    let compared = compare(&first, &second, ("one", "other"), false).unwrap();
    let cells: Vec<_> = compared.cells.iter().map(|c| (c.pairs, c.difference, c.test)).collect();
    assert_eq!(cells.len(), 3);
    for ((pairs, difference, test), expected) in cells.iter().zip([(3, 1.0 / 3.0), (1, 0.0), (1, -0.5)]) {
        assert!(
            *pairs == expected.0 && (difference - expected.1).abs() < 1e-9 && test.is_none(),
            "{compared:?}"
        );
    }
    assert!((compared.overall.difference - 0.1).abs() < 1e-9);
    assert_eq!(compared.cells[1].interval, None, "of one case");

    let rows = repeats(&[first.clone(), second.clone()]);
    let overall: Vec<_> = rows.iter().map(|row| (row.kind.as_deref(), row.overall.mean)).collect();
    for ((kind, mean), expected) in
        overall.iter().zip([(Some("Pequod"), 0.5), (Some("Rachel"), 0.75), (None, 0.55)])
    {
        assert!(*kind == expected.0 && (mean - expected.1).abs() < 1e-9, "{overall:?}");
    }

    // Another question under the same id, and nothing in common.
    let mut other = plan.clone();
    other[0].probes[0].query = "another?".to_owned();
    let changed = Outcomes::of(&LOGBOOK, &join(&other, "", &answers, &verdicts), "j");
    let error = compare(&first, &changed, ("one", "other"), true).unwrap_err();
    assert!(
        matches!(&error, CompareError::Query { case, probe, .. } if case == "a" && probe == "q1"),
        "{error}"
    );
    let nothing = Outcomes::of(&LOGBOOK, &join(&[], "", &answers, &verdicts), "j");
    assert!(matches!(compare(&first, &nothing, ("one", "other"), true), Err(CompareError::Nothing { .. })));
}

#[test]
fn a_sample_is_the_same_for_every_order_filter_and_shard_and_moves_with_its_seed_alone() {
    let plan = Run::of("m", 200, vec![[0; 6]]).plan();
    let all_of = Selection::of_all(&STALE);
    let sample = |cases, seed| Selection { sample: Some(CaseSample { cases, seed }), ..all_of.clone() };
    let ids = |selection: &Selection, all: &[PlannedCase]| -> Vec<String> {
        selection.of(all.to_vec()).unwrap().into_iter().map(|case| case.case).collect()
    };
    let twenty = ids(&sample(20, 0), &plan);
    assert_eq!(twenty.iter().filter(|id| id.starts_with("T1")).count(), 20);
    assert_eq!(twenty.len(), 40);
    // In file order, and spread over the file.
    assert!(twenty.is_sorted());
    assert!(plan[..20].iter().zip(&twenty).any(|(case, drawn)| case.case != *drawn), "{twenty:?}");
    let mut reversed = plan.clone();
    reversed.reverse();
    let mut other_way = ids(&sample(20, 0), &reversed);
    other_way.reverse();
    assert_eq!(other_way, twenty);
    // A smaller sample is a subset; another seed gives another one.
    assert!(ids(&sample(5, 0), &plan).iter().all(|id| twenty.contains(id)));
    assert_ne!(ids(&sample(20, 1), &plan), twenty);
    // Filters and shards apply to the sampled cases.
    let only = Selection { only: Some("T1/PR".to_owned()), ..sample(20, 0) };
    assert_eq!(ids(&only, &plan), twenty[..20]);
    let shards: Vec<String> = (0..3)
        .flat_map(|index| ids(&Selection { shard: Some(Shard { index, count: 3 }), ..sample(20, 0) }, &plan))
        .collect();
    assert_eq!(shards.iter().collect::<std::collections::BTreeSet<_>>().len(), 40);
    // More than exist.
    let error = sample(201, 0).of(plan).unwrap_err();
    assert_eq!(error.to_string(), "--sample 201: type T1 has 200 cases in this dataset; give at most 200");
    assert_eq!(STALE.split, "type");
}
