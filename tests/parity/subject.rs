//! The local subject on a tiny checkpoint: sharing, skipping and recording change no answer.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::row_roles;
use palimpsest::benchmarks::stale::STALE;
use palimpsest::benchmarks::stale::sample::cases;
use palimpsest::case::truncate::Truncation;
use palimpsest::case::{Case, Probe};
use palimpsest::chat::Sampling;
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest::runs::condition::{Condition, Question};
use palimpsest::runs::context_budget::Cut;
use palimpsest::runs::model_subject::{ModelSubject, SubjectOptions};
use palimpsest::runs::runner::{ProbeOutcome, Subject};
use palimpsest_core::engine::memory_plan::Branches;
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions};
use palimpsest_core::model::ModelFiles;

use super::{TINY, apart, fixture};
use crate::left_out::few_or_all;

fn ask(
    model: &mut LocalModel,
    templates: &Templates,
    case: &Case,
    probes: &[&Probe],
    (attention, share_prefix): (bool, bool),
    ahead: bool,
) -> Vec<Result<ProbeOutcome, palimpsest::runs::rows::NoAnswer>> {
    let builder = PromptBuilder::new(templates.clone(), model.template().clone());
    let sampling = Sampling { temperature: 1.0, top_p: 0.95, seed: 5, max_new_tokens: 16 };
    let options = SubjectOptions { sampling, attention, selected: false, answer_rows: true, share_prefix };
    let stop = AtomicBool::new(false);
    let mut outcomes = Vec::new();
    let cut = Cut::of_model(Truncation::Evidence, 0, model.text(), options.sampling.max_new_tokens);
    let mut subject = ModelSubject::local(model, builder, cut, row_roles(&STALE), options, &stop);
    let case = std::sync::Arc::new(case.clone());
    if ahead {
        subject.prepare(&case);
    }
    subject
        .answer_case(&case, &plain(probes), &palimpsest::progress::Status::silent(), &mut |_, outcome| {
            outcomes.push(outcome);
            Ok(())
        })
        .unwrap();
    outcomes
}

/// Probes under the plain condition.
pub fn plain<'a>(probes: &[&'a Probe]) -> Vec<Question<'a>> {
    static PLAIN: Condition = Condition::PLAIN;
    probes.iter().map(|probe| Question { probe, condition: &PLAIN }).collect()
}

fn model(name: &str, context: usize) -> LocalModel {
    model_for(name, context, Branches::default())
}

fn model_for(name: &str, context: usize, branches: Branches) -> LocalModel {
    let path = fixture(name);
    let context = ContextLength::Exactly(context);
    let options = LocalOptions { context, allow_longer: true, branches, ..LocalOptions::default() };
    LocalModel::open(&ModelFiles::at(&path).unwrap(), &options).unwrap()
}

/// Our wording, with instructions after the question but none after the request.
fn uneven(dir: &Path) -> Templates {
    let question = "Chats:\n{{ history }}\nQuestion:\n{{ query }}\n\nAnswer in one word.\n";
    let request = "Chats:\n{{ history }}\nQuestion:\n{{ query }}\n";
    std::fs::write(dir.join("question.j2"), question).unwrap();
    std::fs::write(dir.join("request.j2"), request).unwrap();
    Templates::load(&STALE, Some(dir)).unwrap()
}

#[test]
fn neither_observer_nor_sharing_nor_selection_changes_an_answer_even_where_probes_have_other_spans() {
    let dir = tempfile::tempdir().unwrap();
    let case = &cases(SampleSpec { segments: Some(5), seed: 0 }).unwrap()[0];
    let all: Vec<&Probe> = case.probes.iter().collect();
    // Full attention, states, windows, and windows with sinks.
    let models = ["qwen35-text-tiny", "gpt-oss-tiny", TINY[0], "gemma3-tiny"];
    for name in few_or_all(&models[..2], &models) {
        let mut model = model(name, 8192);
        nothing_changes_an_answer(&mut model, case, &all, dir.path());
    }
}

fn nothing_changes_an_answer(model: &mut LocalModel, case: &Case, all: &[&Probe], dir: &Path) {
    for templates in [Templates::load(&STALE, None).unwrap(), uneven(dir)] {
        let mut answers = |probes: &[&Probe], how| -> Vec<ProbeOutcome> {
            ask(model, &templates, case, probes, how, false).into_iter().map(Result::unwrap).collect()
        };
        let observed = answers(all, (true, true));
        let unobserved = answers(all, (false, true));
        let unshared = answers(all, (true, false));
        let alone = answers(&all[2..], (true, true));
        for (i, outcome) in observed.iter().enumerate() {
            // Some of the tiny models end their turn early.
            assert!(outcome.row.completion_tokens.unwrap() <= 16);
            assert_eq!(unobserved[i].row.completion_tokens, outcome.row.completion_tokens);
            assert_eq!(unobserved[i].row.answer, outcome.row.answer);
            assert_eq!(unshared[i].row.answer, outcome.row.answer);
            let (a, b) = (outcome.attention.as_ref().unwrap(), unshared[i].attention.as_ref().unwrap());
            assert_eq!(a.keys, b.keys);
            assert!(apart(a.mass.as_slice().unwrap(), b.mass.as_slice().unwrap()) < 1e-5);
            // `new`, `query`, `last`, and `answer` if there is one, which also has mass on earlier generated tokens.
            let labels: Vec<&str> = a.rows.iter().map(|row| row.label.as_str()).collect();
            let said = outcome.row.completion_tokens.unwrap();
            let more = if said > 0 { &["last", "answer"][..] } else { &["last"] };
            assert_eq!(labels[2..], *more);
            assert_eq!(a.generated.len(), said);
            let of_prompt = ndarray::s![.., .., ..3];
            let all_of_it = |x: &ndarray::Array4<f32>| x.sum_axis(ndarray::Axis(3));
            let mut sums = all_of_it(&a.mass);
            if let Some(sink) = &a.sink {
                sums += sink;
            }
            assert!(sums.slice(of_prompt).iter().all(|sum| (sum - 1.0).abs() < 1e-4));
            assert!(sums.iter().all(|sum| (0.0..1.0 + 1e-4).contains(sum)));
            assert_eq!(a.delta.is_some(), b.delta.is_some());
            if let (Some(a), Some(b)) = (&a.delta, &b.delta) {
                assert!(apart(a.signed.as_slice().unwrap(), b.signed.as_slice().unwrap()) < 1e-5);
                assert!(apart(a.share.as_slice().unwrap(), b.share.as_slice().unwrap()) < 1e-5);
                assert!(all_of_it(&a.share).slice(of_prompt).iter().all(|sum| (sum - 1.0).abs() < 1e-4));
            }
        }
        assert_eq!(alone[0].row.answer, observed[2].row.answer);
        assert_eq!(alone[0].attention.as_ref().unwrap().mass, observed[2].attention.as_ref().unwrap().mass);
    }
}

#[test]
fn probes_answered_together_get_the_answers_and_masses_that_they_get_alone_also_in_smaller_batches() {
    let case = &cases(SampleSpec { segments: Some(5), seed: 0 }).unwrap()[0];
    let all: Vec<&Probe> = case.probes.iter().collect();
    let templates = Templates::load(&STALE, None).unwrap();
    let models = ["gemma3-tiny", "qwen3-moe-tiny", TINY[0], "qwen35-text-tiny", "gpt-oss-tiny"];
    for name in few_or_all(&models[..2], &models) {
        let answers = |branches, probes: &[&Probe], how, ahead| -> Vec<ProbeOutcome> {
            let mut model = model_for(name, 8192, branches);
            let outcomes =
                ask(&mut model, &templates, case, probes, how, ahead).into_iter().map(Result::unwrap);
            // Timings differ between runs.
            outcomes.map(|outcome| ProbeOutcome { cost: None, ..outcome }).collect()
        };
        let alone = answers(Branches::default(), &all, (true, true), false);
        for branches in [
            Branches::USUAL,
            Branches { count: 2, ..Branches::USUAL },
            // Too little room: all are answered alone.
            Branches { tokens: 20, ..Branches::USUAL },
        ] {
            assert_eq!(answers(branches, &all, (true, true), true), alone, "{name} {branches:?}");
        }
        assert_eq!(answers(Branches::USUAL, &all[1..], (true, true), false), alone[1..], "{name}");
        let unshared = answers(Branches::USUAL, &all, (false, false), false);
        for (unshared, alone) in unshared.iter().zip(&alone) {
            let (unshared, alone) = (&unshared.row, &alone.row);
            assert_eq!((&unshared.answer, unshared.stop), (&alone.answer, alone.stop), "{name}");
        }
    }
}

#[test]
fn the_text_of_answers_generated_together_is_shown_whole_and_in_order() {
    let case = &cases(SampleSpec { segments: Some(5), seed: 0 }).unwrap()[0];
    let all: Vec<&Probe> = case.probes.iter().collect();
    let mut shown = Vec::new();
    for branches in [Branches::default(), Branches::USUAL] {
        let mut model = model_for(TINY[0], 8192, branches);
        let builder = PromptBuilder::new(Templates::load(&STALE, None).unwrap(), model.template().clone());
        let sampling = Sampling { temperature: 1.0, top_p: 0.95, seed: 5, max_new_tokens: 16 };
        let options = SubjectOptions {
            sampling,
            attention: false,
            selected: false,
            answer_rows: true,
            share_prefix: true,
        };
        let stop = AtomicBool::new(false);
        let mut text = String::new();
        let cut = Cut::of_model(Truncation::Evidence, 0, model.text(), options.sampling.max_new_tokens);
        ModelSubject::local(&mut model, builder, cut, row_roles(&STALE), options, &stop)
            .streaming(|piece| text.push_str(if piece.is_empty() { "<end>" } else { piece }))
            .answer_case(case, &plain(&all), &palimpsest::progress::Status::silent(), &mut |_, _| Ok(()))
            .unwrap();
        assert_eq!(text.matches("<end>").count(), 3);
        shown.push(text);
    }
    assert_eq!(shown[0], shown[1]);
}

#[test]
fn evidence_that_does_not_fit_is_an_error_of_every_probe_that_names_the_remedy() {
    let case = &cases(SampleSpec { segments: Some(5), seed: 0 }).unwrap()[0];
    let all: Vec<&Probe> = case.probes.iter().collect();
    let templates = Templates::load(&STALE, None).unwrap();
    for ahead in [false, true] {
        for outcome in ask(&mut model(TINY[0], 600), &templates, case, &all, (true, true), ahead) {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("raise --context"), "{error}");
        }
    }
}

/// A batch of all probes that stops as in `how`: the events in order, the outcomes and the lost ones.
fn stopped(
    model: &mut LocalModel,
    case: &Case,
    stops: &[String],
    at: Option<usize>,
) -> (Vec<Result<ProbeOutcome, palimpsest::runs::rows::NoAnswer>>, bool, usize, String) {
    let templates = Templates::load(&STALE, None).unwrap().with_query_time(true);
    let builder = PromptBuilder::new(templates, model.template().clone());
    let options = SubjectOptions {
        sampling: Sampling { temperature: 1.0, top_p: 0.95, seed: 5, max_new_tokens: 24 },
        attention: true,
        selected: false,
        answer_rows: true,
        share_prefix: true,
    };
    let (stop, shown) = (AtomicBool::new(false), std::cell::RefCell::new(String::new()));
    let (ended, mut outcomes) = (std::cell::Cell::new(0), Vec::new());
    let status = palimpsest::progress::Status::silent();
    let cut = Cut::of_model(Truncation::Evidence, 0, model.text(), options.sampling.max_new_tokens);
    let mut subject = ModelSubject::local(model, builder, cut, row_roles(&STALE), options, &stop)
        .stopping_at(stops.to_vec())
        .streaming(|piece| {
            shown.borrow_mut().push_str(piece);
            if piece.is_empty() {
                shown.borrow_mut().push('|');
                ended.set(ended.get() + 1);
                if at == Some(ended.get()) {
                    stop.store(true, std::sync::atomic::Ordering::Relaxed);
                }
            }
        });
    let probes: Vec<&Probe> = case.probes.iter().collect();
    let done = subject.answer_case(case, &plain(&probes), &status, &mut |_, outcome| {
        outcomes.push(outcome);
        // As the runner does.
        match stop.load(std::sync::atomic::Ordering::Relaxed) {
            true => Err(palimpsest::runs::error::RunError::Stopped),
            false => Ok(()),
        }
    });
    drop(subject);
    (outcomes, done.is_ok(), status.lost(), shown.into_inner())
}

#[test]
fn a_stop_string_ends_an_answer_in_a_batch_and_by_itself_and_a_stop_keeps_what_has_ended() {
    let case = &cases(SampleSpec { segments: Some(5), seed: 0 }).unwrap()[0];
    let branches = Branches::for_answers(3, 24);
    let mut batched = model_for(TINY[0], 8192, branches);
    let mut alone = model(TINY[0], 8192);
    let (whole, ended, lost, _) = stopped(&mut batched, case, &[], None);
    let whole: Vec<ProbeOutcome> = whole.into_iter().map(Result::unwrap).collect();
    assert!(ended && lost == 0);
    // Two characters of the first answer that the others lack.
    let said = |outcome: &ProbeOutcome| outcome.row.answer.clone().unwrap();
    let first: Vec<char> = said(&whole[0]).chars().collect();
    let end = (4..first.len() - 2)
        .map(|at| first[at..at + 2].iter().collect::<String>())
        .find(|text| {
            text.trim() == text
                && text.is_ascii()
                && !whole[1..].iter().any(|other| said(other).contains(text))
        })
        .unwrap();
    let stops = [end.clone()];
    let whole_answer = said(&whole[0]);
    let cut = whole_answer[..whole_answer.find(&end).unwrap()].trim_end();
    for model in [&mut batched, &mut alone] {
        let (outcomes, ended, lost, shown) = stopped(model, case, &stops, None);
        assert!(ended && lost == 0);
        let outcomes: Vec<ProbeOutcome> = outcomes.into_iter().map(Result::unwrap).collect();
        let tokens = outcomes[0].row.completion_tokens.unwrap();
        assert_eq!(said(&outcomes[0]), cut);
        assert_eq!(outcomes[0].row.stop, Some(palimpsest::chat::StopReason::EndOfTurn));
        assert!(tokens < whole[0].row.completion_tokens.unwrap());
        assert_eq!(outcomes[0].attention.as_ref().unwrap().generated.len(), tokens);
        let rows = |all: &[ProbeOutcome]| -> Vec<_> { all.iter().map(|one| one.row.clone()).collect() };
        assert_eq!(rows(&outcomes[1..]), rows(&whole[1..]));
        assert_eq!(shown.split('|').next().unwrap().trim(), cut);
    }
    // Cancelled when the first has ended: it is kept, the two in progress are lost.
    let (kept, ended, lost, _) = stopped(&mut batched, case, &stops, Some(1));
    assert!(!ended);
    assert_eq!((kept.len(), lost), (1, 2));
    assert_eq!(said(kept[0].as_ref().unwrap()), cut);
    // All end at the same token: all are kept.
    assert!(whole.iter().all(|one| one.row.completion_tokens == Some(24)));
    let (kept, _, lost, _) = stopped(&mut batched, case, &[], Some(1));
    assert_eq!((kept.len(), lost), (3, 0));
}
