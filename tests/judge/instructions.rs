//! What must hold for what a judge is told.

use palimpsest::judge::judge_prompt;

use super::*;

fn planned() -> PlannedCase {
    Selection::of_all(&Stale).plan(&cases(1)).unwrap().remove(0)
}

#[test]
fn the_prompt_holds_all_that_the_judge_may_see_and_no_history() {
    let mut exchanges = exchanges();
    exchanges[1].answer = None;
    let prompt = judge_prompt(&Stale.rubric(), &planned(), &exchanges).unwrap();
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
    let three = judge_prompt(&Stale.rubric(), &planned(), &all).unwrap();
    let rule = |prompt: &str, id: &str| {
        let lines = prompt.lines().filter(|line| line.starts_with(&format!("- {id} ")));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        assert_eq!(lines.len(), 1, "{id} in {prompt}");
        lines[0].clone()
    };
    for (at, id) in ["SR", "PR", "IPA"].into_iter().enumerate() {
        let one = judge_prompt(&Stale.rubric(), &planned(), &all[at..=at]).unwrap();
        assert_eq!(rule(&one, id), rule(&three, id));
        assert_eq!(one.matches("<exchange").count(), 1);
        assert!(one.contains(&format!("Its key is \"{id}\"; it holds an object with")), "{one}");
        for other in ["SR", "PR", "IPA"].into_iter().filter(|other| *other != id) {
            assert!(!one.contains(&format!("- {other} ")), "{one}");
        }
    }
    // Doubt alone is not enough for PR; IPA is judged by what it acts on and by nothing else.
    assert!(rule(&three, "PR").contains("Both are needed"));
    assert!(rule(&three, "PR").contains("doubts the premise"));
    assert!(rule(&three, "IPA").contains("no difference whether the response names the change"));
    assert!(rule(&three, "IPA").contains("suit the earlier state as well as the updated one"));
    assert!(!three.contains("awareness"));
    assert!(!three.contains("\n\n\n"), "{three}");
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
        // Of the second case alone.
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
