//! Branches that decode together give the same output as alone.

use candle_core::{Device, Tensor};
use palimpsest::chat::StopReason;
use palimpsest_core::attention::NoObserver;
use palimpsest_core::engine::{
    self, Backend, Engine, EngineError, Event, Generate, Generated, Request, RequestError, Session, Task,
    TokenRules,
};
use palimpsest_core::model::{Branch, Cache, Pass, Phase};

use super::checkpoint::Llama;
use super::{
    FORMATS, Formats, TINY, answering, decode, engine, engine_of, fixture, greedy, in_formats, numbers,
    session,
};
use crate::left_out::few_or_all;

/// Quantised files, whose weights are multiplied differently in decode.
const GGUF: [&str; 4] = ["gguf-llama", "gguf-gemma3", "gguf-gpt-oss-mxfp4", "gguf-qwen35-text"];
/// Lengths of the continuations' own prompts.
const OWN: [usize; 3] = [1, 7, 90];
const NEW: usize = 8;

fn tokens(from: usize, l: usize) -> Vec<u32> {
    (from..from + l).map(|i| 3 + (i * 7919 % 61) as u32).collect()
}

fn model(name: &str, formats: Formats) -> Engine {
    let path = fixture(name);
    let file = path.join("model.gguf");
    engine_of(if file.exists() { &file } else { &path }, 64, formats)
}

/// A marked trunk of `shared` tokens.
fn trunk(engine: &Engine, shared: usize) -> Cache {
    // So long that windowed layers drop keys.
    let mut cache = engine.decoder().cache(shared + 400).unwrap();
    engine.fill_cache(&mut cache, &tokens(0, shared), &mut NoObserver, &mut |_| true).unwrap();
    cache.mark().unwrap();
    cache
}

/// A continuation's own prompt.
fn own(nth: usize) -> Vec<u32> {
    tokens(1000 * (nth + 1), OWN[nth])
}

/// Prefills one continuation's own prompt after the trunk; f32 (vocab).
fn read(engine: &Engine, cache: &mut Cache, shared: usize, nth: usize) -> Tensor {
    assert_eq!(cache.truncate(shared).unwrap(), shared);
    engine.prefill(cache, &own(nth), 1, &mut NoObserver, &mut |_| true).unwrap().squeeze(0).unwrap()
}

/// Branches of the trunk after the own prompts of `count` continuations.
fn branches(engine: &Engine, cache: &mut Cache, shared: usize, count: usize) -> Vec<Branch> {
    let branches = (0..count).map(|nth| {
        read(engine, cache, shared, nth);
        cache.branch(shared, NEW).unwrap()
    });
    let branches = branches.collect();
    assert_eq!(cache.truncate(shared).unwrap(), shared);
    branches
}

/// Decodes one token per branch of one trunk; f32 (branches, vocab).
fn step(
    engine: &Engine,
    cache: &Cache,
    branches: &mut [Branch],
    tokens: &[u32],
) -> candle_core::Result<Tensor> {
    let mut nothing = [NoObserver; OWN.len()];
    let rows = branches.iter_mut().zip(&mut nothing);
    let rows = rows.map(|(branch, observer)| (branch, Pass::from(observer))).collect();
    let hidden = engine.decoder().forward_groups(tokens, vec![(cache, rows)])?;
    engine.decoder().logits(&hidden, Phase::Decode)
}

/// A session for three continuations of the trunk.
fn together(engine: &Engine, shared: usize) -> Session {
    session(engine, shared + 400, (OWN.len(), 500))
}

/// The trunk, and one continuation of it per task.
fn request(shared: usize, tasks: impl IntoIterator<Item = Task>) -> Request {
    let branch =
        |(nth, task)| engine::Branch { tokens: own(nth), tasks: vec![task], ..engine::Branch::default() };
    let branches = tasks.into_iter().enumerate().map(branch).collect();
    Request { prefix: tokens(0, shared).into(), branches, ..Request::default() }
}

/// Results; `on_event` gets all non-final events.
fn said(
    session: &mut Session,
    request: Request,
    on_event: &mut dyn FnMut(usize, &Event) -> bool,
) -> Vec<Result<Generated, RequestError>> {
    let answered = session.answers(request, &mut |nth, _, event| on_event(nth, event));
    answered.into_iter().flatten().map(|answer| answer.map(|measured| measured.generated)).collect()
}

/// [`said`], with the tokens of answers that all end by themselves.
fn tokens_said(session: &mut Session, request: Request) -> Vec<Vec<u32>> {
    said(session, request, &mut |_, _| true).into_iter().map(|said| said.unwrap().tokens).collect()
}

fn is_interrupted(said: &Result<Generated, RequestError>) -> bool {
    matches!(said, Err(RequestError::Engine(EngineError::Interrupted)))
}

#[test]
fn branches_say_what_each_says_alone_bit_for_bit_for_every_architecture() {
    for (name, formats) in in_formats(TINY.into_iter().chain(GGUF)) {
        let engine = model(name, formats);
        let name = &format!("{name} in {formats:?}");
        // No whole key block is shared; one and part of another; exactly two.
        for &shared in few_or_all(&[300][..], &[40, 300, 512]) {
            let mut cache = trunk(&engine, shared);
            let alone: Vec<(Vec<u32>, Vec<f32>)> = (0..OWN.len())
                .map(|nth| {
                    let logits = read(&engine, &mut cache, shared, nth);
                    let (how, mut nothing) = ((&greedy(NEW), &[][..]), NoObserver);
                    let said =
                        engine.decode(&mut cache, &logits, how, &mut nothing, &mut |_| true).unwrap().tokens;
                    read(&engine, &mut cache, shared, nth);
                    let logits = decode(&engine, &mut cache, &said);
                    (said, logits)
                })
                .collect();
            let mut session = together(&engine, shared);
            for count in 1..=OWN.len() {
                // 1. The answers.
                let request = request(shared, (0..count).map(|_| answering(NEW, &[])));
                let found = tokens_said(&mut session, request);
                assert_eq!(found.len(), count);
                for (said, (alone, _)) in found.iter().zip(&alone) {
                    assert_eq!(said, alone, "{name}, {shared} shared, {count} together");
                }
                // 2. The logits, step by step.
                let mut branches = branches(&engine, &mut cache, shared, count);
                let vocab = alone[0].1.len() / NEW;
                for nth_step in 0..NEW {
                    let last: Vec<u32> = alone[..count].iter().map(|(said, _)| said[nth_step]).collect();
                    let logits = step(&engine, &cache, &mut branches, &last).unwrap();
                    for (nth, (_, alone)) in alone[..count].iter().enumerate() {
                        let found = numbers(&logits.get(nth).unwrap());
                        let alone = &alone[nth_step * vocab..(nth_step + 1) * vocab];
                        assert_eq!(
                            found, alone,
                            "{name}, {shared} shared, {nth} of {count}, step {nth_step}"
                        );
                    }
                }
                assert!(branches.iter().zip(OWN).all(|(b, own)| b.tokens() == shared + own + NEW));
            }
        }
    }
}

#[test]
fn a_branch_that_ends_early_leaves_and_the_others_go_on() {
    for name in [TINY[0], "qwen35-text-tiny", "gemma3-tiny"] {
        let engine = model(name, FORMATS[0]);
        let mut session = together(&engine, 300);
        let whole = tokens_said(&mut session, request(300, [NEW; 3].map(|n| answering(n, &[]))));

        let stop = whole[1][5];
        let first = whole[1].iter().position(|&token| token == stop).unwrap();
        let shortest = whole[0][..3].iter().position(|&token| token == stop).unwrap_or(3);
        let (mut shown, mut ended) = (vec![Vec::new(); 3], Vec::new());
        let mut said: Vec<Option<Generated>> = vec![None; 3];
        session.run(request(300, [3, NEW, 0].map(|n| answering(n, &[stop]))), &mut |nth, _, event| {
            match event {
                Event::Token(chosen) => shown[nth].push(chosen.token),
                Event::Done(measured) => {
                    ended.push(nth);
                    said[nth] = Some(measured.generated);
                }
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
            true
        });
        let said: Vec<_> = said.into_iter().map(Option::unwrap).collect();
        assert_eq!(said[0].tokens, whole[0][..shortest], "{name}");
        assert_eq!(
            (&said[1].tokens[..], said[1].stop),
            (&whole[1][..first], StopReason::EndOfTurn),
            "{name}"
        );
        assert_eq!((said[2].tokens.len(), said[2].stop), (0, StopReason::MaxNewTokens));
        assert_eq!(shown, said.iter().map(|said| said.tokens.clone()).collect::<Vec<_>>());
        ended.sort_unstable();
        assert_eq!(ended, [0, 1, 2]);
    }
}

#[test]
fn a_branch_whose_output_is_no_number_fails_alone_and_a_stop_ends_all() {
    let sound = engine(&fixture(TINY[0]), 64);
    let whole = tokens_said(&mut together(&sound, 300), request(300, [NEW; 3].map(|n| answering(n, &[]))));
    let broken = (100..200).find(|token| whole.iter().all(|said| !said.contains(token))).unwrap();

    // A branch that reads a token with NaN weights gets NaN; the others do not.
    let dir = tempfile::tempdir().unwrap();
    let mut model = Llama::fixture(TINY[0]);
    let name = "model.embed_tokens.weight";
    let mut rows: Vec<Vec<f32>> = model.tensors[name].to_vec2().unwrap();
    rows[broken as usize][3] = f32::NAN;
    model.tensors.insert(name.into(), Tensor::new(rows, &Device::Cpu).unwrap());
    let engine = engine(&model.write_folder(dir.path()), 64);
    let mut session = together(&engine, 300);
    let rules = TokenRules { bias: [(broken, 1000.0)].into(), ..TokenRules::default() };
    let says_it = Generate { rules, ..Generate::new(greedy(NEW), Vec::new()) };
    let tasks = [answering(NEW, &[]), Task::Generate(Box::new(says_it)), answering(NEW, &[])];
    let mut shown = Vec::new();
    let found = said(&mut session, request(300, tasks), &mut |nth, event| {
        if let (1, Event::Token(chosen)) = (nth, event) {
            shown.push(chosen.token);
        }
        true
    });
    match &found[1] {
        Err(RequestError::Engine(EngineError::NotFinite { position: 307, .. })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(shown, [broken]);
    for nth in [0, 2] {
        assert_eq!(found[nth].as_ref().unwrap().tokens, whole[nth]);
    }

    let mut left = 4;
    let tasks = [NEW; 3].map(|n| answering(n, &[]));
    let stopped = said(&mut session, request(300, tasks), &mut |_, event| {
        left -= i32::from(matches!(event, Event::Token(_)));
        left > 0
    });
    assert!(stopped.iter().all(is_interrupted), "{stopped:?}");
}

#[test]
fn a_stop_keeps_the_branches_that_have_ended_by_themselves() {
    let engine = model(TINY[0], FORMATS[0]);
    let mut session = together(&engine, 300);
    let request = || request(300, [NEW, 2, NEW].map(|n| answering(n, &[])));
    let alone = said(&mut session, request(), &mut |_, _| true);
    // Cancelled as soon as one has ended.
    let mut found: Vec<Option<Result<Generated, RequestError>>> = vec![None, None, None];
    session.run(request(), &mut |nth, _, event| match event {
        Event::Done(measured) => {
            found[nth] = Some(Ok(measured.generated));
            false
        }
        Event::Failed(error) => {
            found[nth] = Some(Err(error));
            true
        }
        _ => true,
    });
    let said: Vec<_> = found.into_iter().map(Option::unwrap).collect();
    assert!(is_interrupted(&said[0]) && is_interrupted(&said[2]), "{said:?}");
    assert_eq!(said[1].as_ref().unwrap(), alone[1].as_ref().unwrap());
}

#[test]
fn a_branch_grows_as_far_as_it_was_given_room_and_the_trunk_must_hold_what_it_shares() {
    let engine = model("gpt-oss-tiny", FORMATS[0]);
    let mut cache = trunk(&engine, 300);
    read(&engine, &mut cache, 300, 1);
    let mut branch = [cache.branch(300, 1).unwrap()];
    assert!(step(&engine, &cache, &mut branch, &[5]).is_ok());
    let error = step(&engine, &cache, &mut branch, &[5]).unwrap_err().to_string();
    assert!(error.contains("308 of 308 tokens: 1 more do not fit"), "{error}");

    let error = cache.branch(308, 1).unwrap_err().to_string();
    assert!(error.contains("308 tokens of a cache that holds 307"), "{error}");
    let mut branch = [cache.branch(300, 1).unwrap()];
    cache.truncate(0).unwrap();
    let error = step(&engine, &cache, &mut branch, &[5]).unwrap_err().to_string();
    assert!(error.contains("a trunk of 0 tokens"), "{error}");
}
