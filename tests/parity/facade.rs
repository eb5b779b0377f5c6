//! The facade's types give the engine's results.

use palimpsest_core::attention::MassObserver;
use palimpsest_core::text::{Message, MessageRole};
use palimpsest_core::{Error, Model};

use super::fixture;

const OLD: &str = "The market is on Thursday.";
const NEW: &str = "From May on the market is on Sunday.";
const QUESTION: &str = "When is the market in June?";

fn model() -> Model {
    Model::open(fixture("llama-tiny")).unwrap()
}

#[test]
fn masses_of_named_parts_are_those_of_the_observer_over_the_same_tokens() {
    let mut model = model();
    let text = format!("{OLD} {NEW} {QUESTION}");
    let prompt = model.text(&text, &[("old", OLD), ("new", NEW), ("question", QUESTION)]).unwrap();
    let masses = model.masses(&prompt, &["question", "last"], &[]).unwrap();
    let tokens = prompt.tokens.len();
    let mut rows = vec![prompt.overlays[2].clone()];
    rows.push(palimpsest_core::engine::last(tokens));
    let mut observer = MassObserver::new(rows, prompt.overlays.clone(), tokens).unwrap();
    let engine = model.local().engine().clone();
    let mut cache = engine.decoder().cache(tokens).unwrap();
    engine.prefill(&mut cache, &prompt.tokens, 1, &mut observer, &mut |_| true).unwrap();
    let expected = observer.finish().unwrap();
    assert_eq!(masses.mass, expected.mass);
    assert!(masses.mass.iter().all(|mass| *mass > 0.0));
}

#[test]
fn a_knock_out_takes_a_parts_mass_away_and_an_answer_has_a_row_of_its_own() {
    let mut model = model();
    let content = format!("{OLD}\n{NEW}\n{QUESTION}");
    let messages = [Message { role: MessageRole::User, content }];
    let prompt = model.chat(&messages, &[("old", OLD), ("new", NEW), ("question", QUESTION)]).unwrap();
    let labels: Vec<&str> = prompt.overlays.iter().map(|span| span.label.as_str()).collect();
    assert_eq!(labels, ["messages[0]", "old", "new", "question"]);
    let seen = model.answer(&prompt, 8, &["question", "answer"], &[]).unwrap();
    let hidden = model.answer(&prompt, 8, &["question", "answer"], &["question->old"]).unwrap();
    assert!(seen.tokens.len() <= 8 && !seen.tokens.is_empty());
    let of = |answer: &palimpsest_core::Answer, row: usize| answer.masses.mass[[0, 0, row, 1]];
    for row in 0..2 {
        assert!(of(&seen, row) > 0.0);
        assert_eq!(of(&hidden, row), 0.0);
    }
}

#[test]
fn parts_that_are_not_there_once_rows_that_are_no_spans_and_paths_without_a_model_are_refused_by_name() {
    let mut model = model();
    let twice = model.text("on and on", &[("word", "on")]).unwrap_err();
    assert!(matches!(twice, Error::Place { ref label, count: 2 } if label == "word"), "{twice}");
    let absent = model.text("on and on", &[("word", "off")]).unwrap_err();
    assert!(matches!(absent, Error::Place { count: 0, .. }), "{absent}");
    let prompt = model.text(QUESTION, &[]).unwrap();
    let unknown = model.masses(&prompt, &["old"], &[]).unwrap_err().to_string();
    assert!(unknown.contains("old"), "{unknown}");
    let knockout = model.masses(&prompt, &["last"], &["nonsense"]).unwrap_err().to_string();
    assert!(knockout.contains("ROWS->KEYS"), "{knockout}");
    let Err(missing) = Model::open("no/such/model") else { panic!("there is none") };
    assert!(missing.to_string().contains("no/such/model"), "{missing}");
}
