//! Prompts of the model under test and of the judge.

use palimpsest::benchmarks::rubric_named;
use palimpsest::judge::{Exchange, Instructions};
use palimpsest::models::ModelStore;
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest::runs::plan::{PlannedProbe, Selection};

use super::*;

#[test]
fn every_prompt_of_the_sample_has_fewer_than_6000_tokens_and_says_when_to_the_second() {
    if crate::left_out::unless_all("SmolLM2-135M's tokenizer") {
        return;
    }
    let model = palimpsest_core::engine::TextSide::open(
        &ModelStore::open().unwrap().resolve("smollm2-135m").unwrap(),
    )
    .unwrap();
    let builder = PromptBuilder::new(Templates::load(&KNOWME, None).unwrap(), model.template);
    let case = case(sample());
    for (probe, prompt) in case.probes.iter().zip(builder.build_all(&case, &case.history).unwrap()) {
        let tokens = model.tokenizer.encode(&prompt.text).unwrap().len();
        assert!((3000..6000).contains(&tokens), "{}: {tokens}", probe.id);
        assert!(
            prompt.text.contains("1988-01-09 09:05:30\nAction: The ice broke under him.\n"),
            "{}",
            prompt.text
        );
        assert!(
            prompt.text.contains("Inner thought: So this is what the ninth oar was for.\n"),
            "{}",
            prompt.text
        );
        // Everything before the question is shared.
        let query = prompt.spans.iter().find(|span| span.label == "query").unwrap();
        assert_eq!(&prompt.text[query.start..query.end], probe.query);
        // Judge-only notes are not shown. A fact (T1) may occur in the words of its answer.
        let notes = case.judge.of_probes[&probe.id].values().filter_map(Value::as_str);
        for note in notes.filter(|_| probe.facets["task"] != "T1") {
            assert!(!prompt.text.contains(note), "{}: {note}", probe.id);
        }
    }
}

#[test]
fn the_judge_reads_the_reference_and_the_rubric_of_the_task_alone() {
    let case = case(sample());
    let plan = Selection::of_all(&KNOWME).plan(std::slice::from_ref(&case)).unwrap();
    let rubric = rubric_named(&KNOWME, "graded").unwrap();
    let prompt = |id: &str, answer: Option<&str>| {
        let probe = plan[0].probes.iter().find(|probe| probe.id == id).unwrap().clone();
        let exchange = Exchange { probe, answer: answer.map(str::to_owned), cut: false };
        Instructions::from(&rubric).prompt(&plan[0], &[exchange]).unwrap()
    };
    let marks = [
        ("T1", "This is a question of fact."),
        ("T2", "No other answer gets 5."),
        ("T3", "This is a question of time."),
        ("T4", "Look first at the sequence, then at the reasons."),
        ("T5", "the same trigger"),
        ("T6", "5: only where the answer has that core"),
        ("T7", "5: only where the answer has that core"),
    ];
    for (task, mark) in marks {
        let text = prompt(&format!("{task}-1"), Some("an answer of its own"));
        for (_, other) in marks.iter().filter(|(_, other)| *other != mark) {
            assert!(!text.contains(other), "{task}: {text}");
        }
        assert!(text.contains(mark) && text.contains("an answer of its own"), "{task}: {text}");
        assert!(text.contains(&format!("Its key is \"{task}-1\"")), "{task}: {text}");
        let reference = &case.judge.of_probes[&format!("{task}-1")]["reference"];
        match reference.as_str() {
            Some(reference) => assert!(text.contains(reference), "{text}"),
            None => assert!(
                text.contains("1. The crossing alone to the far bank. Why here: Waves stand"),
                "{text}"
            ),
        }
    }
    assert!(prompt("T2-2", None).contains("(no answer was given)"));
    assert!(prompt("T2-2", None).contains("How the question was made a trap: False Premise."));
    assert!(prompt("T3-1", None).contains("From 09:05:30 to 09:09:30"));
}

/// The released rubric has the authors' scales by task; the other rubric scores a guess at a trap 0, this one 1.
#[test]
fn the_released_rubric_has_the_scale_of_the_authors() {
    let case = case(sample());
    let plan = Selection::of_all(&KNOWME).plan(std::slice::from_ref(&case)).unwrap();
    let prompt = |rubric: &str, id: &str| {
        let probe = plan[0].probes.iter().find(|probe| probe.id == id).unwrap().clone();
        let exchange = Exchange { probe, answer: Some("an answer".to_owned()), cut: true };
        Instructions::from(&rubric_named(&KNOWME, rubric).unwrap()).prompt(&plan[0], &[exchange]).unwrap()
    };
    assert_eq!(KNOWME.rubric().name, "released");
    let says = |id: &str, words: &[&str]| {
        let text = prompt("released", id);
        for word in words {
            assert!(text.contains(word), "{id}: {word} in {text}");
        }
        assert!(text.contains("cut this answer off") && !text.contains("\n\n\n"), "{text}");
    };
    says("T1-1", &["2: the right words tied to the wrong person", "1: made up", "0: no answer"]);
    says("T2-1", &["5: the answer says so", "1: it answers as if the record told it", "0: no answer"]);
    for id in ["T3-1", "T5-1"] {
        says(id, &["Only 0, 3 and 5 are given here.", "3: not exact", "0: anything else"]);
        assert!(!prompt("graded", id).contains("Only 0, 3 and 5"));
    }
    says(
        "T4-1",
        &["1: the order is wrong throughout or reversed", "0: no answer, or it says that it does not know"],
    );
    for id in ["T6-1", "T7-1"] {
        says(id, &["3: a feeling in general terms", "2: the outer events alone", "1: it misreads"]);
    }
    assert!(prompt("graded", "T2-1").contains("0: it answers as if the record told it"));
}

/// The authors' judge sees question, reference and answer. The derivation of a gold and the trap strategy are not shown; the reasons
/// within an order are.
#[test]
fn the_released_rubric_shows_no_reasoning_and_no_strategy() {
    let case = case(sample());
    let plan = Selection::of_all(&KNOWME).plan(std::slice::from_ref(&case)).unwrap();
    let prompt = |rubric: &str, probe: &PlannedProbe| {
        let exchange = Exchange { probe: probe.clone(), answer: Some("an answer".to_owned()), cut: false };
        Instructions::from(&rubric_named(&KNOWME, rubric).unwrap()).prompt(&plan[0], &[exchange]).unwrap()
    };
    let mut hidden = Vec::new();
    for probe in &plan[0].probes {
        let [released, graded] = ["released", "graded"].map(|rubric| prompt(rubric, probe));
        assert!(released.contains(&probe.query), "{released}");
        for note in ["reasoning", "strategy"] {
            let Some(text) = probe.judge.get(note).and_then(Value::as_str) else { continue };
            assert!(!released.contains(text) && graded.contains(text), "{}: {text}", probe.id);
            hidden.push(&probe.facets["task"]);
        }
        match &probe.judge["reference"] {
            Value::Array(items) => {
                for item in items {
                    assert!(released.contains(item["event"].as_str().unwrap()));
                    assert!(item["reasoning"].as_str().is_none_or(|why| released.contains(why)));
                }
            }
            reference => assert!(released.contains(reference.as_str().unwrap()), "{released}"),
        }
    }
    hidden.sort();
    hidden.dedup();
    assert_eq!(hidden, ["T2", "T3", "T5", "T6"]);
}

/// A prompt's last line asks for exactly the scores of its scale.
#[test]
fn every_prompt_asks_for_the_scores_of_its_own_scale() {
    let rows = |gold: &str| json!([{"id": 1, "question": "which?", "answer": gold}]);
    let traps = ["A -> B", "The boathouse.", "The text does not tell."];
    let cases = traps.map(|gold| case(small("traps", &[("Adversarial Abstention", rows(gold))])));
    let cases: Vec<Case> = [case(sample())].into_iter().chain(cases).collect();
    let mut seen = Vec::new();
    for (case, rubric) in
        cases.iter().flat_map(|case| KNOWME.rubrics.iter().map(move |rubric| (case, rubric)))
    {
        let plan = Selection::of_all(&KNOWME).plan(std::slice::from_ref(case)).unwrap();
        for probe in &plan[0].probes {
            let exchange =
                Exchange { probe: probe.clone(), answer: Some("an answer".to_owned()), cut: false };
            let text = Instructions::from(rubric).prompt(&plan[0], &[exchange]).unwrap();
            let scale = text.lines().find(|line| line.starts_with("5: ")).unwrap();
            let described: Vec<u32> =
                (0..=5).filter(|score| format!(" {scale}").contains(&format!(" {score}: "))).collect();
            assert_eq!(rubric.verdict.scores(&probe.facets), described, "{} {}", rubric.name, probe.id);
            let values = rubric.verdict.values(&probe.facets);
            assert!(text.lines().last().unwrap().contains(&format!("\"score\" ({values})")), "{text}");
            assert!(text.contains(&format!("Give one of the scores {values}.")), "{text}");
            seen.push(values);
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["0, 1, 2, 3, 4 or 5", "0, 1, 3 or 5", "0, 1, 3, 4 or 5", "0, 3 or 5"]);
}

/// Data set 3 asks for orders under the traps' name.
#[test]
fn a_trap_whose_reference_is_an_order_is_judged_as_one_and_flagged() {
    let mut files = sample();
    let name = "answer/Adversarial Abstention_answers.json";
    let answers = files.iter_mut().find(|(file, _)| file == name).map(|(_, bytes)| bytes).unwrap();
    let mut rows: Value = serde_json::from_slice(answers).unwrap();
    rows[0]["answer"] = "B -> C -> A. (Event B comes first.)".into();
    *answers = serde_json::to_vec(&rows).unwrap();
    let case = case(files);
    let flags: Vec<String> = (KNOWME.checks)(&case).findings.iter().map(ToString::to_string).collect();
    let order = "gold-form: case `diary` T2-1: a trap whose gold is \"B -> C -> A. (Event B comes first.)\"";
    assert_eq!(flags, [order]);
    let expects =
        |id: &str| case.probes.iter().find(|probe| probe.id == id).unwrap().facets.get("expects").cloned();
    assert_eq!((expects("T2-1").as_deref(), expects("T2-2")), (Some("order"), None));

    let plan = Selection::of_all(&KNOWME).plan(std::slice::from_ref(&case)).unwrap();
    for rubric in KNOWME.rubrics {
        let prompt = |id: &str| {
            let probe = plan[0].probes.iter().find(|probe| probe.id == id).unwrap().clone();
            let exchange = Exchange { probe, answer: Some("B, C, A".to_owned()), cut: false };
            Instructions::from(rubric).prompt(&plan[0], &[exchange]).unwrap()
        };
        let (order, trap) = (prompt("T2-1"), prompt("T2-2"));
        assert!(
            order.contains("the order of the reference from end to end")
                || order.contains("an order must be that"),
            "{order}"
        );
        assert!(!order.contains("trap") && !order.contains("as if the record told it"), "{order}");
        assert!(trap.contains("as if the record told it"), "{trap}");
    }
}
