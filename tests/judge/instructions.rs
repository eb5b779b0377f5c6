//! The judge's instructions.

use std::collections::{BTreeMap, BTreeSet};

use palimpsest::benchmarks::knowme::KNOWME;
use palimpsest::benchmarks::rubric_named;
use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::judge::Instructions;

use super::*;

fn planned() -> PlannedCase {
    Selection::of_all(&STALE).plan(&cases(1)).unwrap().remove(0)
}

#[test]
fn the_prompt_holds_all_that_the_judge_may_see_and_no_history() {
    let mut exchanges = exchanges();
    exchanges[1].answer = None;
    let prompt = Instructions::from(&STALE.rubric()).prompt(&planned(), &exchanges).unwrap();
    for part in [
        "old 0",
        "new 0",
        "because 0",
        "SR?",
        "IPA?",
        "(no response was given)",
        "Its keys are \"SR\", \"PR\", \"IPA\"; each holds an object with \"correct\" (true or false)",
    ] {
        assert!(prompt.contains(part), "{part} in {prompt}");
    }
    assert!(!prompt.contains("message 1"), "{prompt}");
}

#[test]
fn each_probe_has_one_rule_and_the_rules_agree_for_one_exchange_or_three() {
    let all = exchanges();
    let rule = |prompt: &str, id: &str| {
        let lines = prompt.lines().filter(|line| line.starts_with(&format!("- {id} ")));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        assert_eq!(lines.len(), 1, "{id} in {prompt}");
        lines[0].clone()
    };
    let mut rules = BTreeMap::new();
    for rubric in STALE.rubrics {
        let three = Instructions::from(rubric).prompt(&planned(), &all).unwrap();
        for (at, id) in ["SR", "PR", "IPA"].into_iter().enumerate() {
            let one = Instructions::from(rubric).prompt(&planned(), &all[at..=at]).unwrap();
            assert_eq!(rule(&one, id), rule(&three, id));
            assert_eq!(one.matches("<exchange").count(), 1);
            assert!(one.contains(&format!("Its key is \"{id}\"; it holds an object with")), "{one}");
            for other in ["SR", "PR", "IPA"].into_iter().filter(|other| *other != id) {
                assert!(!one.contains(&format!("- {other} ")), "{one}");
            }
            rules.insert((rubric.name, id), rule(&three, id));
        }
        assert!(!three.contains("\n\n\n"), "{three}");
    }
    let says = |rubric, id, words: &str| {
        let rule = &rules[&(rubric, id)];
        assert!(rule.contains(words), "{rubric} {id}: {rule}");
    };
    // Like the authors' judge: doubt is enough for SR, one of two things for PR, and IPA fails if too general or too vague, a weaker
    // condition than useless.
    says("released", "SR", "It need not be sure of it");
    says("released", "SR", "or says that it does not know the state");
    says("released", "PR", "one of the two is enough");
    says("released", "IPA", "safe under the updated state");
    says("released", "IPA", "or it is too general or too vague, even where nothing in it is unsafe");
    assert!(!rules[&("released", "IPA")].contains("nobody"), "{rules:?}");
    // Section 3.5 of the paper: doubt alone is not enough for PR; IPA is judged only by the assumptions it acts on.
    says("strict", "PR", "Both are needed");
    says("strict", "PR", "doubts the premise");
    says("strict", "IPA", "no difference whether the response names the change");
    says("strict", "IPA", "suit the earlier state as well as the updated one");
}

#[test]
fn every_benchmark_has_rubrics_by_distinct_names_that_return_the_same_kind_of_verdict() {
    for benchmark in palimpsest::benchmarks::ALL {
        let names: BTreeSet<&str> = benchmark.rubrics.iter().map(|rubric| rubric.name).collect();
        assert_eq!(names.len(), benchmark.rubrics.len());
        assert_eq!(Some(benchmark.rubric()), benchmark.rubrics.first().copied(), "{}", benchmark.name);
        for rubric in benchmark.rubrics {
            let kind = (rubric.verdict.key(), rubric.verdict.most());
            let first = benchmark.rubric().verdict;
            assert_eq!(kind, (first.key(), first.most()), "{}", rubric.name);
            assert_eq!(rubric.unit, benchmark.rubric().unit, "{}", rubric.name);
            assert_eq!(rubric_named(benchmark, rubric.name).unwrap(), *rubric);
        }
        let error = rubric_named(benchmark, "nonsense").unwrap_err().to_string();
        assert!(error.contains(benchmark.title) && error.contains("`nonsense`"), "{error}");
        assert!(names.iter().all(|name| error.contains(name)) && error.contains("the default"), "{error}");
    }
    let names = |benchmark: &Benchmark| benchmark.rubrics.iter().map(|r| r.name).collect::<Vec<_>>();
    assert_eq!(names(&STALE), ["released", "strict"]);
    assert_eq!(names(&KNOWME), ["released", "graded"]);
}

/// Verdicts of versions without rubric names belong to the texts of that time, which ask the same for answers that were not cut.
#[test]
fn the_texts_of_earlier_versions_are_known_by_their_digests() {
    let strict = rubric_named(&STALE, "strict").unwrap();
    let paper = SUBTLEMEMORY.rubric();
    // The line about cut answers is new, and in SubtleMemory's rubric the user profile.
    for rubric in [strict, paper, rubric_named(&KNOWME, "graded").unwrap()] {
        for reasons in [Reasons::First, Reasons::Last, Reasons::None] {
            let digest = Instructions { reasons, ..Instructions::from(&rubric) }.digest();
            assert!(!rubric.earlier.contains(&digest.as_str()), "{} {reasons:?}", rubric.name);
        }
        assert_eq!(rubric.earlier.len() % 3, 0);
    }
    let released = Instructions::from(&STALE.rubric());
    let elsewhere =
        Instructions { reasons: Reasons::None, thinking: Some("on".to_owned()), ..released.clone() };
    assert_ne!(elsewhere.digest(), released.digest());
    assert_eq!(elsewhere.criteria(), released.criteria(), "raters share the text, not where reasons stand");
    assert_ne!(Instructions::from(&strict).criteria(), released.criteria());
    let own = released.clone().with_template("Judge {{ old }}.".to_owned());
    assert!(own.name.starts_with("own-") && own.name.len() == 12 && own.criteria() != released.criteria());
}

#[test]
fn a_judge_is_told_of_answers_that_were_cut_in_every_benchmark() {
    let mut all = exchanges();
    all[1].cut = true;
    for rubric in STALE.rubrics {
        let prompt = Instructions::from(rubric).prompt(&planned(), &all).unwrap();
        assert_eq!(prompt.matches("cut the response to").count(), 1, "{prompt}");
        assert!(prompt.contains("The limit on its length cut the response to PR off."), "{prompt}");
    }
    for benchmark in palimpsest::benchmarks::ALL.iter().filter(|b| b.readings.is_empty()) {
        for rubric in benchmark.rubrics {
            assert!(rubric.template.contains("probe.cut"), "{} {}", benchmark.name, rubric.name);
        }
    }
}

#[test]
fn the_prompt_asks_for_reasons_where_the_instructions_put_them() {
    let prompt = |reasons| with(reasons).prompt(&planned(), &exchanges()).unwrap();
    let places = |text: &str| {
        let last = text.lines().last().unwrap().to_owned();
        (last.find("\"reason\""), last.find("\"correct\""))
    };
    let (reason, correct) = places(&prompt(Reasons::First));
    assert!(reason.unwrap() < correct.unwrap());
    let (reason, correct) = places(&prompt(Reasons::Last));
    assert!(correct.unwrap() < reason.unwrap());
    let (reason, correct) = places(&prompt(Reasons::None));
    assert!(reason.is_none() && correct.is_some());
    assert!(stale().says_where_reasons_stand().unwrap());
    let silent = Instructions { template: "Judge {{ old }}.".into(), ..stale() };
    assert!(!silent.says_where_reasons_stand().unwrap());
}

#[test]
fn a_template_that_names_an_unknown_variable_is_refused_by_its_name_before_any_call() {
    let (_root, dir) = finished(2);
    let mut store = RunStore::open(&dir).unwrap();
    for (template, named) in [
        ("Judge {{ odl }}.", "odl"),
        ("{% for probe in probes %}{{ probe.anwser }}{% endfor %}", "anwser"),
        // For the second case only.
        ("{% if labels.type == \"T2\" %}{{ labels.kind }}{% endif %}", "kind"),
        ("{% if old %}", "judge.j2"),
    ] {
        let instructions = Instructions { template: template.into(), ..stale() };
        let mut model = Scripted::default();
        let stop = AtomicBool::new(false);
        let error = run(&mut store, &mut Judge::Scoring(&mut model), instructions, &stop, false).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(named) && error.contains("judge.j2"), "{error}");
        assert!(
            error.contains("variables of judge.j2 are probes, labels, reasons, ") || named == "judge.j2",
            "{error}"
        );
        assert!(model.asked.is_empty() && store.verdicts().is_empty());
    }
}

#[test]
fn a_template_of_ones_own_is_what_the_judge_reads_and_its_verdicts_stand_beside_the_others() {
    let (_root, dir) = finished(1);
    let mut store = RunStore::open(&dir).unwrap();
    judge(&mut store, &mut agreeable(1)).unwrap();
    let own = Instructions { template: "{{ new }} or {{ probes[2].id }}?".into(), ..stale() };
    let mut model = agreeable(1);
    let stop = AtomicBool::new(false);
    let summary = run(&mut store, &mut Judge::Scoring(&mut model), own.clone(), &stop, false).unwrap();
    assert_eq!((summary.skipped, summary.done), (0, 3));
    assert_eq!(model.asked[0][0].content, "new 0 or IPA?");
    let digests: Vec<_> = store.verdicts().into_iter().map(|row| row.rubric.unwrap()).collect();
    assert_eq!(digests, [stale().digest(), own.digest()].map(|digest| vec![digest; 3]).concat());
    let again = run(&mut store, &mut Judge::Scoring(&mut Scripted::default()), own, &stop, false).unwrap();
    assert_eq!((again.skipped, again.done), (3, 0));
}
