//! Branches that decode together say what each would have said alone.

use candle_core::{Device, Tensor};
use palimpsest::chat::StopReason;
use palimpsest_core::attention::NoObserver;
use palimpsest_core::engine::{BatchSequence, Engine, EngineError};
use palimpsest_core::model::{Branch, Cache, Phase};

use super::checkpoint::Llama;
use super::{TINY, decode, engine, fixture, greedy, numbers};

/// Quantised files, whose weights are multiplied otherwise when generating.
const GGUF: [&str; 4] = ["gguf-llama", "gguf-gemma3", "gguf-gpt-oss-mxfp4", "gguf-qwen35-text"];
/// Lengths of the continuations' own prompts.
const OWN: [usize; 3] = [1, 7, 90];
const NEW: usize = 8;

fn tokens(from: usize, l: usize) -> Vec<u32> {
    (from..from + l).map(|i| 3 + (i * 7919 % 61) as u32).collect()
}

fn model(name: &str) -> Engine {
    let path = fixture(name);
    let file = path.join("model.gguf");
    engine(if file.exists() { &file } else { &path }, 64)
}

/// A trunk of so many tokens, marked.
fn trunk(engine: &Engine, shared: usize) -> Cache {
    // So much that windowed layers keep less.
    let mut cache = engine.decoder().cache(shared + 400).unwrap();
    engine.fill_cache(&mut cache, &tokens(0, shared), &mut NoObserver, &mut |_| true).unwrap();
    cache.mark().unwrap();
    cache
}

/// Reads one continuation's own prompt after the trunk, f32 (vocab).
fn read(engine: &Engine, cache: &mut Cache, shared: usize, nth: usize) -> Tensor {
    assert_eq!(cache.truncate(shared).unwrap(), shared);
    let own = tokens(1000 * (nth + 1), OWN[nth]);
    engine.prefill(cache, &own, 1, &mut NoObserver, &mut |_| true).unwrap().squeeze(0).unwrap()
}

fn begin(engine: &Engine, cache: &mut Cache, shared: usize, count: usize) -> Vec<BatchSequence> {
    let sequences = (0..count).map(|nth| {
        let logits = read(engine, cache, shared, nth);
        BatchSequence {
            branch: cache.branch(shared, NEW).unwrap(),
            logits,
            sampling: greedy(NEW),
            thinker: None,
            watch: None,
        }
    });
    let sequences = sequences.collect();
    assert_eq!(cache.truncate(shared).unwrap(), shared);
    sequences
}

#[test]
fn branches_say_what_each_says_alone_bit_for_bit_for_every_architecture() {
    for name in TINY.into_iter().chain(GGUF) {
        let engine = model(name);
        // No whole part of the keys is shared; one, and the beginning of another; two and nothing else.
        for shared in [40, 300, 512] {
            let mut cache = trunk(&engine, shared);
            let alone: Vec<(Vec<u32>, Vec<f32>)> = (0..OWN.len())
                .map(|nth| {
                    let logits = read(&engine, &mut cache, shared, nth);
                    let said =
                        engine.decode(&mut cache, &logits, &greedy(NEW), &[], &mut |_| true).unwrap().tokens;
                    read(&engine, &mut cache, shared, nth);
                    let logits = decode(&engine, &mut cache, &said);
                    (said, logits)
                })
                .collect();
            for count in 1..=OWN.len() {
                // 1. The answers.
                let sequences = begin(&engine, &mut cache, shared, count);
                let said = engine.decode_batch(&cache, sequences, vec![], &[], &mut |_, _| true).unwrap();
                for (said, (alone, _)) in said.into_iter().zip(&alone) {
                    assert_eq!(&said.unwrap().tokens, alone, "{name}, {shared} shared, {count} together");
                }
                // 2. The logits, step by step.
                let mut branches: Vec<Branch> = begin(&engine, &mut cache, shared, count)
                    .into_iter()
                    .map(|sequences| sequences.branch)
                    .collect();
                let vocab = alone[0].1.len() / NEW;
                for step in 0..NEW {
                    let last: Vec<u32> = alone[..count].iter().map(|(said, _)| said[step]).collect();
                    let decoder = engine.decoder();
                    let hidden = decoder
                        .forward_branches(&last, &cache, branches.iter_mut().collect(), vec![])
                        .unwrap();
                    let logits = decoder.logits(&hidden, Phase::Decode).unwrap();
                    for (nth, (_, alone)) in alone[..count].iter().enumerate() {
                        let found = numbers(&logits.get(nth).unwrap());
                        let alone = &alone[step * vocab..(step + 1) * vocab];
                        assert_eq!(found, alone, "{name}, {shared} shared, {nth} of {count}, step {step}");
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
        let engine = model(name);
        let mut cache = trunk(&engine, 300);
        let whole = begin(&engine, &mut cache, 300, 3);
        let whole = engine.decode_batch(&cache, whole, vec![], &[], &mut |_, _| true).unwrap();
        let whole: Vec<Vec<u32>> = whole.into_iter().map(|said| said.unwrap().tokens).collect();

        let mut sequences = begin(&engine, &mut cache, 300, 3);
        sequences[0].sampling = greedy(3);
        sequences[2].sampling = greedy(0);
        let stop = whole[1][5];
        let first = whole[1].iter().position(|&token| token == stop).unwrap();
        let shortest = whole[0][..3].iter().position(|&token| token == stop).unwrap_or(3);
        let (mut shown, mut ended) = (vec![Vec::new(); 3], Vec::new());
        let said = engine
            .decode_batch(&cache, sequences, vec![], &[stop], &mut |nth, token| {
                match token {
                    Some(token) => shown[nth].push(token),
                    None => ended.push(nth),
                }
                true
            })
            .unwrap();
        let said: Vec<_> = said.into_iter().map(Result::unwrap).collect();
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
    let mut cache = trunk(&sound, 300);
    let said = begin(&sound, &mut cache, 300, 3);
    let said = sound.decode_batch(&cache, said, vec![], &[], &mut |_, _| true).unwrap();
    let said: Vec<Vec<u32>> = said.into_iter().map(|said| said.unwrap().tokens).collect();
    let broken = (100..200).find(|token| said.iter().all(|said| !said.contains(token))).unwrap();

    // Whoever reads a token that the others never say gets no number.
    let dir = tempfile::tempdir().unwrap();
    let mut model = Llama::fixture(TINY[0]);
    let name = "model.embed_tokens.weight";
    let mut rows: Vec<Vec<f32>> = model.tensors[name].to_vec2().unwrap();
    rows[broken as usize][3] = f32::NAN;
    model.tensors.insert(name.into(), Tensor::new(rows, &Device::Cpu).unwrap());
    let engine = engine(&model.write_folder(dir.path()), 64);
    let mut cache = trunk(&engine, 300);
    let mut sequences = begin(&engine, &mut cache, 300, 3);
    let mut logits = vec![0f32; sequences[1].logits.elem_count()];
    logits[broken as usize] = 1.0;
    sequences[1].logits = Tensor::new(logits, &Device::Cpu).unwrap();
    let found = engine.decode_batch(&cache, sequences, vec![], &[], &mut |_, _| true).unwrap();
    match &found[1] {
        Err(EngineError::NotFinite { position: 307, .. }) => {}
        other => panic!("{other:?}"),
    }
    for nth in [0, 2] {
        assert_eq!(found[nth].as_ref().unwrap().tokens, said[nth]);
    }

    let sequences = begin(&engine, &mut cache, 300, 3);
    let mut left = 4;
    let stopped = engine.decode_batch(&cache, sequences, vec![], &[], &mut |_, _| {
        left -= 1;
        left > 0
    });
    let stopped = stopped.unwrap();
    assert!(stopped.iter().all(|one| matches!(one, Err(EngineError::Interrupted))), "{stopped:?}");
}

#[test]
fn a_stop_keeps_the_branches_that_have_ended_by_themselves() {
    let engine = model(TINY[0]);
    let mut cache = trunk(&engine, 300);
    let mut sequences = begin(&engine, &mut cache, 300, 3);
    sequences[1].sampling = greedy(2);
    let alone = engine.decode_batch(&cache, sequences, vec![], &[], &mut |_, _| true).unwrap();
    let mut sequences = begin(&engine, &mut cache, 300, 3);
    sequences[1].sampling = greedy(2);
    // Asked to stop as soon as one has ended.
    let said = engine.decode_batch(&cache, sequences, vec![], &[], &mut |_, token| token.is_some()).unwrap();
    assert!(matches!((&said[0], &said[2]), (Err(EngineError::Interrupted), Err(EngineError::Interrupted))));
    assert_eq!(said[1].as_ref().unwrap(), alone[1].as_ref().unwrap());
}

#[test]
fn a_branch_grows_as_far_as_it_was_given_room_and_the_trunk_must_hold_what_it_shares() {
    let engine = model("gpt-oss-tiny");
    let mut cache = trunk(&engine, 300);
    read(&engine, &mut cache, 300, 1);
    let mut branch = cache.branch(300, 1).unwrap();
    let mut next = |cache: &Cache| engine.decoder().forward_branches(&[5], cache, vec![&mut branch], vec![]);
    assert!(next(&cache).is_ok());
    let error = next(&cache).unwrap_err().to_string();
    assert!(error.contains("308 of 308 tokens: 1 more do not fit"), "{error}");

    let error = cache.branch(308, 1).unwrap_err().to_string();
    assert!(error.contains("308 tokens of a cache that holds 307"), "{error}");
    let mut branch = cache.branch(300, 1).unwrap();
    cache.truncate(0).unwrap();
    let error =
        engine.decoder().forward_branches(&[5], &cache, vec![&mut branch], vec![]).unwrap_err().to_string();
    assert!(error.contains("a trunk of 0 tokens"), "{error}");
}
