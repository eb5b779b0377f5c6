//! What the model under test and the judge are shown.

use palimpsest::judge::{Exchange, judge_prompt};
use palimpsest::model::fetch::ModelStore;
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest::run::plan::Selection;

use super::*;

#[test]
fn every_prompt_of_the_sample_has_fewer_than_6000_tokens_and_says_when_to_the_second() {
    let model =
        palimpsest::engine::TextSide::open(&ModelStore::open().unwrap().resolve("smollm2-135m").unwrap())
            .unwrap();
    let builder = PromptBuilder::new(Templates::load(&KnowMe, None).unwrap(), model.template);
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
        // Everything before the question is the same for all.
        let query = prompt.spans.iter().find(|span| span.label == "query").unwrap();
        assert_eq!(&prompt.text[query.start..query.end], probe.query);
        // What only a judge may see is not shown. A fact (T1) may stand there in the words of its answer.
        let notes = case.judge.of_probes[&probe.id].values().filter_map(Value::as_str);
        for note in notes.filter(|_| probe.facets["task"] != "T1") {
            assert!(!prompt.text.contains(note), "{}: {note}", probe.id);
        }
    }
}

#[test]
fn the_judge_reads_the_reference_and_the_rubric_of_the_task_alone() {
    let case = case(sample());
    let plan = Selection::of_all(&KnowMe).plan(std::slice::from_ref(&case)).unwrap();
    let rubric = KnowMe.rubric();
    let prompt = |id: &str, answer: Option<&str>| {
        let probe = plan[0].probes.iter().find(|probe| probe.id == id).unwrap().clone();
        let exchange = Exchange { probe, answer: answer.map(str::to_owned), cut: false };
        judge_prompt(&rubric, &plan[0], &[exchange]).unwrap()
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
