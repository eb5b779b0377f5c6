//! Verdicts by scoring, and the row of the deciding token: against transformers, and against a second pass.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use candle_core::{D, Tensor};
use palimpsest::benchmarks::{Benchmark, row_roles, wants_verdict_row};
use palimpsest::case::Case;
use palimpsest::case::truncate::Truncation;
use palimpsest::chat::Sampling;
use palimpsest::progress::Status;
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest::runs::context_budget::Cut;
use palimpsest::runs::model_subject::{ModelSubject, SubjectOptions};
use palimpsest::runs::runner::{ProbeOutcome, Subject};
use palimpsest_core::attention::{AttentionStore, MassObserver, NoObserver, Step};
use palimpsest_core::engine::memory_plan::Branches;
use palimpsest_core::engine::{LocalModel, Measurement, Observe, Rows};
use palimpsest_core::span::Span;
use serde::Deserialize;

use super::{BENCHMARK, case, row};
use crate::parity::subject::plain;
use crate::toy::model;

const OPTIONS: [&str; 2] = ["[[A]]", "[[B]]"];

fn options(share_prefix: bool) -> SubjectOptions {
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 8 };
    SubjectOptions { sampling, attention: true, selected: false, answer_rows: true, share_prefix }
}

/// Outcome of a case's only probe.
fn outcome(
    model: &mut LocalModel,
    case: &Case,
    share_prefix: bool,
    deciding: Option<&'static Benchmark>,
) -> ProbeOutcome {
    let stop = AtomicBool::new(false);
    let builder = PromptBuilder::new(Templates::load(&BENCHMARK, None).unwrap(), model.template().clone());
    let cut =
        Cut::of_model(Truncation::Evidence, 0, model.text(), options(share_prefix).sampling.max_new_tokens);
    let mut subject =
        ModelSubject::local(model, builder, cut, row_roles(&BENCHMARK), options(share_prefix), &stop);
    if let Some(benchmark) = deciding {
        subject = subject.deciding(benchmark);
    }
    let mut found = None;
    let probes: Vec<_> = case.probes.iter().collect();
    subject
        .answer_case(case, &plain(&probes), &Status::silent(), &mut |_, outcome| {
            found = Some(outcome.unwrap());
            Ok(())
        })
        .unwrap();
    found.unwrap()
}

fn short() -> Case {
    (BENCHMARK.arrange)(&case(&row(3)), "chosen-first", 0)
}

/// Sum of log-softmax over an option's tokens, in one pass over prompt and option.
fn in_one_pass(model: &LocalModel, tokens: &[u32], option: &[u32]) -> f64 {
    let engine = model.engine();
    let whole = [tokens, option].concat();
    let mut cache = engine.decoder().cache(whole.len()).unwrap();
    let logits =
        engine.prefill(&mut cache, &whole, option.len() + 1, &mut NoObserver, &mut |_| true).unwrap();
    let log_p = candle_nn::ops::log_softmax(&logits, D::Minus1).unwrap();
    let of = |(row, &token): (usize, &u32)| {
        f64::from(log_p.get(row).unwrap().get(token as usize).unwrap().to_scalar::<f32>().unwrap())
    };
    option.iter().enumerate().map(of).sum()
}

/// Tokens of an option after a prompt; the prompt's end is the same for all prompts of the model.
fn option_tokens(model: &LocalModel, option: &str) -> Vec<u32> {
    let user =
        palimpsest::chat::Message { role: palimpsest::chat::MessageRole::User, content: "x".to_owned() };
    let text = model.template().render(&[user], true).unwrap();
    let before = model.tokenizer().encode(&text).unwrap();
    let whole = model.tokenizer().encode(&format!("{text}{option}")).unwrap();
    whole.strip_prefix(&before[..]).unwrap().to_vec()
}

#[test]
fn scores_are_those_of_one_pass_and_the_same_bits_however_the_prompt_was_read() {
    let case = short();
    let without = {
        let mut case = case.clone();
        case.probes[0].options.clear();
        case
    };
    // Full attention, sliding windows, linear layers.
    for name in ["llama-tiny", "gemma3-tiny", "qwen35-text-tiny"] {
        let mut alone = model(name, Branches::default());
        let first = outcome(&mut alone, &case, true, None);
        assert_eq!(first.row.scores.keys().map(String::as_str).collect::<Vec<_>>(), OPTIONS, "{name}");
        let again = outcome(&mut alone, &case, true, None);
        let unshared = outcome(&mut alone, &case, false, None);
        let mut together = model(name, Branches::for_answers(4, 8));
        let branched = outcome(&mut together, &case, true, None);
        for other in [&again, &unshared, &branched] {
            assert_eq!(other.row.scores, first.row.scores, "{name}");
            assert_eq!(other.row.answer, first.row.answer, "{name}");
        }
        // Scoring changes nothing else.
        let plain = outcome(&mut alone, &without, true, None);
        assert!(plain.row.scores.is_empty());
        assert_eq!((&plain.row.answer, &plain.attention), (&first.row.answer, &first.attention), "{name}");

        let tokens = first.attention.unwrap().tokens;
        for option in OPTIONS {
            let ids = option_tokens(&alone, option);
            assert!(ids.len() > 1, "{name}: {ids:?}");
            let expected = in_one_pass(&alone, &tokens, &ids);
            let apart = (first.row.scores[option] - expected).abs();
            assert!(apart < 1e-4, "{name}, {option}: {} is {apart:e} off one pass", first.row.scores[option]);
        }
    }
}

/// Made by `tests/reference/memrewardbench_scores.py` from the attention file of a run of this case.
#[derive(Deserialize)]
struct Reference {
    checkpoint: String,
    tokens: Vec<u32>,
    options: BTreeMap<String, Scored>,
}

#[derive(Deserialize)]
struct Scored {
    tokens: Vec<u32>,
    log_probability: f64,
}

#[test]
fn scores_are_those_of_transformers() {
    let case = short();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/memrewardbench/scores.json");
    let reference: Vec<Reference> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(!reference.is_empty());
    for Reference { checkpoint, tokens, options } in reference {
        let mut model = model(&checkpoint, Branches::default());
        let found = outcome(&mut model, &case, true, None);
        assert_eq!(found.attention.unwrap().tokens, tokens, "{checkpoint}");
        for option in OPTIONS {
            assert_eq!(option_tokens(&model, option), options[option].tokens, "{checkpoint}");
            let (found, expected) = (found.row.scores[option], options[option].log_probability);
            assert!((found - expected).abs() < 1e-3, "{checkpoint}, {option}: {found} for {expected}");
        }
    }
}

fn middle(answer: &str) -> usize {
    let mut at = answer.len() / 2;
    while !answer.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The benchmark with a decision in the middle of any answer.
static MIDDLE: Benchmark =
    Benchmark { name: "middle", title: "Middle", decisive: |answer| Some(middle(answer)), ..BENCHMARK };

fn apart(a: impl Iterator<Item = f32>, b: impl Iterator<Item = f32>) -> f32 {
    a.zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn the_row_of_the_verdict_is_the_position_that_predicted_the_token_that_decides() {
    assert!(wants_verdict_row(&BENCHMARK));
    let case = short();
    for name in ["llama-tiny", "gemma3-tiny", "qwen35-text-tiny"] {
        let mut model = model(name, Branches::default());
        let plain = outcome(&mut model, &case, true, None);
        let found = outcome(&mut model, &case, true, Some(&MIDDLE));
        assert_eq!(found.row.answer, plain.row.answer, "{name}");
        let store: AttentionStore = found.attention.unwrap();
        let plain = plain.attention.unwrap();
        let labels: Vec<&str> = store.rows.iter().map(|row| &*row.label).collect();
        let last = ["query", "generation", "last", "answer", "verdict"];
        assert_eq!(labels[labels.len() - 5..], last, "{name}: {labels:?}");
        // Only the generation prompt follows the query, up to the prompt's last position.
        let row = |label: &str| store.rows.iter().find(|row| row.label == label).unwrap().range();
        assert_eq!(row("generation"), row("query").end..store.tokens.len(), "{name}");
        assert!(row("generation").len() > 1, "{name}");
        // The other rows are unchanged.
        let others = plain.rows.len();
        assert_eq!(store.rows[..others], plain.rows[..], "{name}");
        let of = |store: &AttentionStore| store.mass.slice(ndarray::s![.., .., ..others, ..]).to_owned();
        let off = apart(of(&store).into_iter(), of(&plain).into_iter());
        assert!(off < 1e-6, "{name}: {off:e}");

        // Its token holds the letter: the decoded text before it ends before the letter.
        let at = store.rows[others].start;
        let token = at + 1 - store.tokens.len();
        let text = |n: usize| model.tokenizer().decode(&store.generated[..n], true).unwrap();
        let answer = found.row.answer.unwrap();
        let letter = text(store.generated.len()).find(&answer).unwrap() + middle(&answer);
        assert!(text(token).trim_end_matches('\u{fffd}').len() <= letter, "{name}");
        assert!(text(token + 1).len() > letter, "{name}");

        // A second pass over prompt and answer.
        let whole = [&store.tokens[..], &store.generated[..]].concat();
        let row = Span::new("row", at..at + 1);
        let mut observer = MassObserver::new(vec![row], store.keys.clone(), whole.len()).unwrap();
        let engine = model.engine();
        let mut cache = engine.decoder().cache(whole.len()).unwrap();
        engine.prefill(&mut cache, &whole, 1, &mut observer, &mut |_| true).unwrap();
        let masses = observer.finish().unwrap();
        let row = store.mass.index_axis(ndarray::Axis(2), others);
        let off = apart(row.iter().copied(), masses.mass.index_axis(ndarray::Axis(2), 0).iter().copied());
        assert!(off < 1e-5, "{name}: {off:e} off a second pass");
        if let (Some(delta), Some(second)) = (&store.delta, &masses.delta) {
            for (a, b) in [(&delta.signed, &second.signed), (&delta.share, &second.share)] {
                let row = a.index_axis(ndarray::Axis(2), others);
                let off = apart(row.iter().copied(), b.index_axis(ndarray::Axis(2), 0).iter().copied());
                assert!(off < 1e-5, "{name}: {off:e} off a second pass");
            }
        }
        // The benchmark finds no verdict in a random model's words, so there is no row.
        let none = outcome(&mut model, &case, true, Some(&BENCHMARK)).attention.unwrap();
        assert_eq!(none.rows, plain.rows, "{name}");
    }
}

#[test]
fn a_step_that_was_not_generated_is_no_row_and_one_that_was_is_that_of_each() {
    let model = model("llama-tiny", Branches::default());
    let tokens: Vec<u32> = (5..45).collect();
    let keys = vec![Span::new("a", 0..13), Span::new("b", 13..40)];
    let mut rows = Rows::named(&["b", "each"], &keys, tokens.len()).unwrap();
    rows.answer.step = true;
    let engine = model.engine();
    let observe = Observe { rows, keys, ..Observe::default() };
    let measurement = &mut Measurement::new(&observe, tokens.len(), 5, engine).unwrap();
    let mut cache = engine.decoder().cache(64).unwrap();
    let logits: Tensor =
        engine.prefill(&mut cache, &tokens, 1, &mut *measurement, &mut |_| true).unwrap().squeeze(0).unwrap();
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 5 };
    let said = engine.decode(&mut cache, &logits, (&sampling, &[]), measurement, &mut |_| true).unwrap();
    let n = said.tokens.len();
    assert_eq!(n, 5);
    for token in 0..n {
        let masses = measurement.finish_with(n, Some(Step { label: "verdict", token })).unwrap();
        let each = &masses.each.as_ref().unwrap().mass;
        assert_eq!((masses.rows.len(), &*masses.rows[1].label), (2, "verdict"));
        assert_eq!(masses.rows[1].range(), 39 + token..40 + token);
        let row = masses.mass.index_axis(ndarray::Axis(2), 1);
        assert_eq!(row, each.index_axis(ndarray::Axis(2), token));
    }
    let beyond = measurement.finish_with(n, Some(Step { label: "verdict", token: n })).unwrap();
    assert_eq!(beyond.rows.len(), 1);
}
