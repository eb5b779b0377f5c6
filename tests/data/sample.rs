//! Texts of the built-in sample.

use std::collections::BTreeSet;

use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::stale::haystack::assemble;
use palimpsest::benchmarks::stale::sample::{DEFAULT_SESSIONS, cases, distractors, scenarios};
use palimpsest::benchmarks::stale::write_stale;
use palimpsest::case::Turn;

use super::check;

/// Table 4 of the STALE paper.
const CATEGORIES: [&str; 10] = [
    "Spatiotemporal_Context",
    "Role_and_Identity",
    "Social_Network",
    "Capability_and_resource",
    "Routine",
    "Belongings_and_Possessions",
    "Preference_and_Value",
    "Physical_and_Mental_Health",
    "Current_Focus",
    "Digital_Footprint",
];

/// Negations. The benchmark's second axiom forbids them in a new session.
const NEGATING: [&str; 16] = [
    "no longer",
    "not anymore",
    "not any more",
    "n't anymore",
    "n't any more",
    "used to",
    "instead of my old",
    "as i told you before",
    "as i mentioned before",
    "forget what i said",
    "i take that back",
    "i was wrong about",
    "correction:",
    "contrary to what i",
    "changed my mind",
    "unlike before",
];

fn words(turns: &[Turn]) -> usize {
    turns.iter().map(|turn| turn.content.split_whitespace().count()).sum()
}

#[test]
fn there_are_scenarios_of_both_types_over_all_categories() {
    let of = |split| scenarios().iter().filter(|scenario| scenario.r#type == split).count();
    assert!(of("T1") >= 8 && of("T2") >= 8, "T1 {}, T2 {}", of("T1"), of("T2"));
    assert_eq!(of("T1") + of("T2"), scenarios().len());
    let covered: BTreeSet<&str> = scenarios().iter().map(|scenario| scenario.category.as_str()).collect();
    assert_eq!(covered, BTreeSet::from(CATEGORIES));
    let uids: BTreeSet<&str> = scenarios().iter().map(|scenario| scenario.uid.as_str()).collect();
    assert_eq!(uids.len(), scenarios().len());
}

#[test]
fn the_first_eight_scenarios_are_half_t1_and_half_t2() {
    // `quickstart` runs eight cases and plots both types.
    let first: Vec<&str> = scenarios().iter().take(8).map(|scenario| scenario.r#type.as_str()).collect();
    assert_eq!(first.iter().filter(|split| **split == "T1").count(), 4, "{first:?}");
}

#[test]
fn no_new_session_takes_anything_back_in_words() {
    for scenario in scenarios() {
        for turn in &scenario.new_session {
            let text = turn.content.to_lowercase().replace('\u{2019}', "'");
            for phrase in NEGATING {
                assert!(!text.contains(phrase), "{}: {phrase:?} in {text:?}", scenario.uid);
            }
        }
    }
}

#[test]
fn every_session_is_a_conversation_that_the_user_opens_and_the_assistant_closes() {
    let evidence = scenarios().iter().flat_map(|s| [(&s.uid, &s.old_session), (&s.uid, &s.new_session)]);
    for (name, turns) in evidence.chain(distractors().iter().map(|d| (&d.topic, &d.turns))) {
        assert!(turns.len() >= 4 && turns.len().is_multiple_of(2), "{name}: {} turns", turns.len());
        for (i, turn) in turns.iter().enumerate() {
            let expected = if i % 2 == 0 { "user" } else { "assistant" };
            assert_eq!(turn.role, expected, "{name}, turn {i}");
            assert!(!turn.content.trim().is_empty(), "{name}, turn {i}");
        }
    }
}

#[test]
fn there_are_sixty_different_distractors_of_100_to_250_words() {
    assert!(distractors().len() >= 60, "{}", distractors().len());
    let topics: BTreeSet<&str> = distractors().iter().map(|d| d.topic.as_str()).collect();
    let openings: BTreeSet<&str> = distractors().iter().map(|d| d.turns[0].content.as_str()).collect();
    assert_eq!((topics.len(), openings.len()), (distractors().len(), distractors().len()));
    for distractor in distractors() {
        let n = words(&distractor.turns);
        assert!((100..=250).contains(&n), "{}: {n} words", distractor.topic);
    }
}

#[test]
fn the_assembled_sample_passes_every_check_at_several_lengths() {
    for spec in [
        SampleSpec::default(),
        SampleSpec { segments: Some(2), seed: 1 },
        SampleSpec { segments: Some(50), seed: 0 },
        SampleSpec { segments: Some(240), seed: 9 },
    ] {
        let mut text = Vec::new();
        write_stale(&mut text, &cases(spec).unwrap()).unwrap();
        let report = check(text.as_slice());
        assert!(report.is_sound(), "{spec:?}: {:?} {:?}", report.problems, report.broken);
        assert_eq!(report.rows, scenarios().len());
    }
}

#[test]
fn a_case_does_not_depend_on_the_other_scenarios() {
    let spec = SampleSpec::default();
    let last = scenarios().last().unwrap();
    let alone = assemble(last, distractors(), spec.seed, DEFAULT_SESSIONS).unwrap();
    assert_eq!(cases(spec).unwrap().last(), Some(&alone));
}

#[test]
fn a_default_history_about_fills_a_context_of_4096_tokens() {
    // With dates, numbers and roles a word costs about 1.6 tokens of SmolLM2's tokeniser.
    for case in cases(SampleSpec::default()).unwrap() {
        let n: usize = case.history.segments.iter().map(|session| words(&session.turns)).sum();
        assert!((2300..=2700).contains(&n), "{}: {n} words", case.id);
    }
}
