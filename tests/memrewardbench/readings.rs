//! Answers under each reading, and the correct letter by order.

use std::collections::BTreeMap;

use palimpsest::benchmarks::memrewardbench::Order;
use palimpsest::benchmarks::{Given, NotRead, Said, Told};
use palimpsest::case::Notes;
use palimpsest::runs::judged::{no_result, warning};
use palimpsest::runs::rows::VerdictRow;

use super::BENCHMARK;

struct Asked<'a> {
    reading: &'a str,
    setting: &'a str,
    seed: u64,
    answer: Option<&'a str>,
    thought: Option<&'a str>,
    scores: Option<[f64; 2]>,
}

fn told(asked: &Asked<'_>) -> Result<Told, NotRead> {
    let reading = BENCHMARK.readings.iter().find(|reading| reading.name == asked.reading).unwrap();
    let scores =
        asked.scores.map(|[a, b]| BTreeMap::from([("[[A]]".to_owned(), a), ("[[B]]".to_owned(), b)]));
    (reading.read)(&Given {
        case: "7",
        setting: asked.setting,
        seed: asked.seed,
        answer: asked.answer,
        thought: asked.thought,
        scores: scores.as_ref(),
        notes: &Notes::new(),
    })
}

fn plain<'a>(reading: &'a str, answer: &'a str) -> Asked<'a> {
    Asked { reading, setting: "chosen-first", seed: 0, answer: Some(answer), thought: None, scores: None }
}

fn letter(asked: &Asked<'_>) -> Option<String> {
    match told(asked).ok()?.said {
        Said::Choice(choice) => Some(choice),
        other => panic!("{other}"),
    }
}

#[test]
fn both_readings_of_one_answer_stand_side_by_side() {
    // answer, strict, lenient
    let table: [(&str, Option<&str>, Option<&str>); 16] = [
        ("[[A]] because", Some("A"), Some("A")),
        ("[[B]]", Some("B"), Some("B")),
        ("**[[B]]** since", None, Some("B")),
        ("\"[[A]]\"", None, Some("A")),
        ("Verdict: [[A]], though [[B]] is close", None, Some("A")),
        ("[[ b ]] lower and wide", None, Some("B")),
        ("\\[\\[A\\]\\] escaped", None, Some("A")),
        ("`[[**A**]]`", None, Some("A")),
        ("<think>first [[A]]</think>\n[[B]]", None, Some("B")),
        ("<think>only [[A]]", None, None),
        ("[A] is better", None, None),
        ("[[C]] no", None, None),
        ("Agent B is better.", None, None),
        ("[[A", None, None),
        ("", None, None),
        ("é[[A]]", None, Some("A")),
    ];
    for (answer, strict, lenient) in table {
        assert_eq!(letter(&plain("strict", answer)).as_deref(), strict, "strict: {answer}");
        assert_eq!(letter(&plain("lenient", answer)).as_deref(), lenient, "lenient: {answer}");
        // Position of the letter.
        let at = (BENCHMARK.decisive)(answer);
        assert_eq!(at.is_some(), lenient.is_some(), "{answer}");
        let found = at.map(|at| answer[at..].chars().next().unwrap().to_ascii_uppercase().to_string());
        assert_eq!(found.as_deref(), lenient, "{answer}");
    }
    let thought = Asked { thought: Some("hm"), ..plain("strict", "[[A]]") };
    assert!(told(&thought).unwrap_err().0.contains("thought"));
    assert!(letter(&Asked { thought: Some("hm"), ..plain("lenient", "[[A]]") }).is_some());
    let unparsed = told(&plain("lenient", "Agent B is better, and I shall say at length why that is so."))
        .unwrap_err()
        .0;
    assert!(unparsed.starts_with("unparsed: ") && unparsed.contains("Agent B is better"), "{unparsed}");
    assert!(told(&Asked { answer: None, ..plain("lenient", "") }).unwrap_err().0.contains("no answer"));
}

#[test]
fn the_right_letter_is_that_of_the_chosen_trajectory() {
    fn correct(setting: &str, answer: &str, seed: u64) -> bool {
        told(&Asked { setting, seed, ..plain("strict", answer) }).unwrap().correct.unwrap()
    }
    for variant in ["", "-untagged", "-density-25"] {
        let (chosen, rejected) = (format!("chosen-first{variant}"), format!("rejected-first{variant}"));
        assert_eq!((correct(&chosen, "[[A]]", 0), correct(&chosen, "[[B]]", 0)), (true, false));
        assert_eq!((correct(&rejected, "[[A]]", 0), correct(&rejected, "[[B]]", 0)), (false, true));
        for seed in 0..20 {
            let random = format!("random{variant}");
            let chosen_first = Order::Random.chosen_first("7", seed);
            assert_eq!(correct(&random, "[[A]]", seed), chosen_first, "{seed}");
            assert_eq!(correct(&random, "[[B]]", seed), !chosen_first, "{seed}");
        }
    }
    assert!(told(&Asked { setting: "", ..plain("strict", "[[A]]") }).unwrap_err().0.contains("stood first"));
}

#[test]
fn scores_are_read_as_the_likelier_option_with_its_probability() {
    let scored = |scores| told(&Asked { scores, ..plain("scored", "whatever") });
    let Told { said, correct, probability } = scored(Some([-1.0, -3.0])).unwrap();
    assert_eq!((said, correct), (Said::Choice("A".to_owned()), Some(true)));
    // e^-1 / (e^-1 + e^-3)
    assert!((probability.unwrap() - 0.880_797_077_977_882_3).abs() < 1e-12);
    let other = scored(Some([-900.0, -20.5])).unwrap();
    assert_eq!((other.said, other.correct), (Said::Choice("B".to_owned()), Some(false)));
    assert_eq!(other.probability, Some(1.0));
    let tie = scored(Some([-2.0, -2.0])).unwrap();
    assert_eq!((tie.said, tie.probability), (Said::Choice("A".to_owned()), Some(0.5)));
    assert!(scored(None).unwrap_err().0.contains("no scores"));
    // It needs no answer.
    assert!(told(&Asked { answer: None, scores: Some([-1.0, -2.0]), ..plain("scored", "") }).is_ok());
}

/// A rule-based reading that is always the same is a result; only a constant judge is flagged.
#[test]
fn what_a_rule_read_is_a_result_even_where_it_is_always_the_same() {
    let row = VerdictRow { choice: Some("A".to_owned()), correct: Some(true), ..VerdictRow::default() };
    let rows = [row.clone(), row];
    for reading in BENCHMARK.readings {
        assert_eq!((no_result(reading.name), warning(reading.name, rows.iter())), (None, None));
    }
    assert!(warning("local:able", rows.iter()).is_some());
}
