//! Names and labels of judges, selection by name, and unusable verdicts.

use palimpsest::runs::judge_name::{JudgeChoice, judge_names, short_judges};
use palimpsest::runs::judged::{no_result, warning};
use palimpsest::runs::rows::{RubricRow, VerdictRow};

fn row(judge: &str, digest: Option<&str>, name: Option<&str>) -> VerdictRow {
    VerdictRow {
        judge: judge.to_owned(),
        rubric: digest.map(str::to_owned),
        rubric_name: name.map(str::to_owned),
        correct: Some(true),
        ..VerdictRow::default()
    }
}

fn told(digest: &str, reasons: &str) -> RubricRow {
    RubricRow {
        rubric: digest.to_owned(),
        name: "fair".to_owned(),
        criteria: String::new(),
        reasons: reasons.to_owned(),
        thinking: None,
        accepted: None,
        rejected: None,
        template: String::new(),
    }
}

fn labels(rows: &[VerdictRow], rubrics: &[RubricRow]) -> Vec<String> {
    judge_names(rows, rubrics, "none").into_iter().map(|name| name.label).collect()
}

#[test]
fn two_rubrics_of_one_judge_are_two_and_so_are_two_ways_of_asking() {
    let rows = [row("j", Some("aaaaaaaaa1"), Some("fair")), row("j", Some("b"), Some("hard"))];
    assert_eq!(labels(&rows, &[]), ["j (fair)", "j (hard)"]);
    let rows = [
        row("j", Some("aaaaaaaaa1"), Some("fair")),
        row("j", Some("bbbbbbbbb2"), Some("fair")),
        row("k", Some("bbbbbbbbb2"), Some("fair")),
    ];
    let rubrics = [told("aaaaaaaaa1", "first"), told("bbbbbbbbb2", "last")];
    let asked = ["j (fair, reasons first)", "j (fair, reasons last)", "k (fair, reasons last)"];
    assert_eq!(labels(&rows, &rubrics), asked);
    // The first judging keeps its name when a second is added.
    assert_eq!(labels(&rows[..1], &rubrics), asked[..1]);
    let thinking = |text: &str| RubricRow { thinking: Some(text.to_owned()), ..told("x", "last") };
    let of = |text: &str| labels(&[row("j", Some("x"), Some("fair"))], &[thinking(text)]).concat();
    assert_eq!(of("{\"mode\":\"on\"}"), "j (fair, reasons last, thinking on)");
    let told = of("{\"mode\":\"on\",\"reasoning_effort\":\"low\"}");
    assert_eq!(told, "j (fair, reasons last, told about thinking)");
    // A rubric text that changed under its name.
    assert_eq!(labels(&rows, &[])[..2], ["j (fair, aaaaaaaa)", "j (fair, bbbbbbbb)"]);
    let old = [row("j", None, None), row("j", Some("cccccccccc"), None)];
    assert_eq!(labels(&old, &[]), ["j", "j (unnamed rubric cccccccc)"]);
    let failed = VerdictRow { correct: None, error: Some("no".to_owned()), ..row("j", None, None) };
    assert_eq!(labels(&[failed], &[]), ["j"], "a judge that said nothing readable judged");
}

#[test]
fn judges_go_without_their_addresses_unless_two_would_be_called_the_same() {
    let judges = ["http://a/v1#m", "http://b/v1#m", "http://a/v1#n", "local:m"];
    let short = short_judges(judges.into_iter());
    assert_eq!(judges.map(|judge| short[judge]), ["http://a/v1#m", "http://b/v1#m", "n", "local:m"]);
    assert_eq!(short_judges(judges.into_iter().skip(1))["http://b/v1#m"], "m");
}

#[test]
fn a_choice_takes_a_judge_by_its_name_or_its_label_and_a_rubric_by_its_name() {
    let choice = |judge, rubric| JudgeChoice { judge, rubric };
    let label = "http://h/v1#m (strict, reasons first)";
    for judge in [
        None,
        Some("http://h/v1#m"),
        Some("m"),
        Some("m (strict)"),
        Some("http://h/v1#m (strict)"),
        Some(label),
    ] {
        for rubric in [None, Some("strict"), Some("strict, reasons first")] {
            assert!(choice(judge, rubric).takes(label), "{judge:?} {rubric:?}");
        }
    }
    for (judge, rubric) in [(Some("http://h/v1"), None), (None, Some("str")), (None, Some("released"))] {
        assert!(!choice(judge, rubric).takes(label), "{judge:?} {rubric:?}");
    }
    assert!(choice(Some("lenient"), None).takes("lenient") && !choice(None, Some("strict")).takes("lenient"));
}

#[test]
fn rows_without_a_name_get_it_by_the_digests_of_earlier_texts() {
    for benchmark in palimpsest::benchmarks::ALL {
        for rubric in benchmark.rubrics {
            for digest in rubric.earlier {
                let names = judge_names(&[row("j", Some(digest), None)], &[], benchmark.name);
                assert_eq!(names[0].rubric.as_deref(), Some(rubric.name));
            }
        }
    }
}

fn of_rows(judge: &str, correct: &[Option<bool>]) -> Option<String> {
    let row = |correct: &Option<bool>| VerdictRow { correct: *correct, ..VerdictRow::default() };
    warning(judge, correct.iter().map(row).collect::<Vec<_>>().iter())
}

#[test]
fn a_judge_that_is_too_small_gives_no_result_and_one_that_says_the_same_of_all_a_result_with_a_warning() {
    for (small, millions) in
        [("local:smollm2-135m", "135"), ("local:qwen3-0.6b", "600"), ("http://h/v1#Gemma-3-270M-it", "270")]
    {
        assert!(no_result(small).unwrap().contains(&format!("about {millions} million")));
    }
    for able in
        ["local:qwen3.5-9b", "http://h/v1#gpt-oss-120b", "http://h:8000/v1#gemini", "local:Llama-3.1-8B"]
    {
        assert_eq!(no_result(able), None, "{able}");
        assert_eq!(of_rows(able, &[Some(true), Some(false), None]), None, "{able}");
        // All incorrect is a result; with a judge of unknown ability it gets a note.
        let said = of_rows(able, &[Some(false), None, Some(false)]);
        let known = !able.ends_with("gemini");
        assert_eq!(said.is_none(), known, "{able}: {said:?}");
        assert!(known || said.is_some_and(|said| said.contains("all 2 answers wrong")));
        // A single verdict is not flagged as constant.
        assert_eq!(of_rows(able, &[Some(true)]), None);
    }
}
