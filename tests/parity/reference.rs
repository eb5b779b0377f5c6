//! The engine against Hugging Face transformers on tiny checkpoints, and against itself in other cuts.

use candle_core::{Device, Tensor};
use palimpsest::attention::{MassObserver, Masses, NoObserver};
use palimpsest::engine::{Engine, EngineError};
use palimpsest::prompt::Span;
use serde::Deserialize;

use super::{TINY, apart, decode, engine, fixture, greedy, numbers, prefill};

/// The tolerances against transformers.
const LOGITS: f32 = 1e-3;
const MASSES: f32 = 1e-4;
/// And between two cuts of the same prompt.
const CUTS: f32 = 1e-4;

const CHUNKS: [usize; 5] = [1, 7, 37, 64, 151];

#[derive(Deserialize)]
pub struct TokensFile {
    pub tokens: Vec<u32>,
    spans: serde_json::Map<String, serde_json::Value>,
    rows: Vec<String>,
}

impl TokensFile {
    pub fn of(name: &str) -> Self {
        serde_json::from_slice(&std::fs::read(fixture(name).join("tokens.json")).unwrap()).unwrap()
    }

    pub fn observer(&self) -> MassObserver {
        let keys: Vec<Span> = (self.spans.iter())
            .map(|(label, range)| {
                let [start, end]: [usize; 2] = serde_json::from_value(range.clone()).unwrap();
                Span::new(label.clone(), start..end)
            })
            .collect();
        let row = |label: &String| keys.iter().find(|s| &s.label == label).unwrap().clone();
        MassObserver::new(self.rows.iter().map(row).collect(), keys.clone(), self.tokens.len()).unwrap()
    }
}

pub fn reference(name: &str, tensor: &str) -> Tensor {
    let path = fixture(name).join("reference.safetensors");
    candle_core::safetensors::load(path, &Device::Cpu).unwrap().remove(tensor).unwrap()
}

/// Logits of the last 16 positions and masses.
fn traced(engine: &Engine, file: &TokensFile) -> (Vec<f32>, Vec<f32>) {
    let mut observer = file.observer();
    let mut cache = engine.decoder().cache(file.tokens.len()).unwrap();
    let logits = engine.prefill(&mut cache, &file.tokens, 16, &mut observer, &mut |_| true).unwrap();
    let Masses { layers, mass, sink, .. } = observer.finish().unwrap();
    assert_eq!((layers, sink), (vec![0, 1, 2], None));
    (numbers(&logits), mass.into_raw_vec_and_offset().0)
}

#[test]
fn logits_and_masses_are_those_of_transformers_and_of_each_other_at_every_chunk_size() {
    for name in TINY {
        let file = TokensFile::of(name);
        let (logits, masses) = (numbers(&reference(name, "logits")), numbers(&reference(name, "mass")));
        let cuts = CHUNKS.map(|chunk| traced(&engine(&fixture(name), chunk), &file));
        for (chunk, (l, m)) in CHUNKS.iter().zip(&cuts) {
            let (l, m) = (apart(l, &logits), apart(m, &masses));
            assert!(l < LOGITS && m < MASSES, "{name}, chunk {chunk}: logits off by {l:e}, masses by {m:e}");
        }
        for (chunk, (l, m)) in CHUNKS.iter().zip(&cuts) {
            let (l, m) = (apart(l, &cuts[4].0), apart(m, &cuts[4].1));
            assert!(l < CUTS && m < CUTS, "{name}, chunk {chunk} against whole: {l:e}, {m:e}");
        }
    }
}

#[test]
fn an_observer_changes_no_bit_of_the_logits() {
    for name in TINY {
        let file = TokensFile::of(name);
        let engine = engine(&fixture(name), 37);
        let (unobserved, _) = prefill(&engine, &file.tokens, 16);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&traced(&engine, &file).0), bits(&unobserved));
    }
}

#[test]
fn the_greedy_continuation_is_that_of_transformers_and_the_same_again_after_rolling_back() {
    for name in TINY {
        let tokens = TokensFile::of(name).tokens;
        let engine = engine(&fixture(name), 64);
        let mut cache = engine.decoder().cache(tokens.len() + 64).unwrap();
        let logits = engine.prefill(&mut cache, &tokens, 1, &mut NoObserver, &mut |_| true).unwrap();
        let logits = logits.squeeze(0).unwrap();
        let mark = cache.mark().unwrap();
        let expected: Vec<u32> = reference(name, "greedy").to_vec1().unwrap();
        for round in 0..2 {
            let mut shown = Vec::new();
            let generated = engine
                .decode(&mut cache, &logits, &greedy(64), &[], &mut |token| {
                    shown.push(token);
                    true
                })
                .unwrap();
            assert_eq!(generated.tokens, expected, "{name}, round {round}");
            assert_eq!(shown, expected);
            cache.roll_back(&mark).unwrap();
            assert_eq!(cache.len(), tokens.len());
        }
        // The first 20 tokens, up to but without a stop token.
        let stop = expected[20];
        let first = expected.iter().position(|&t| t == stop).unwrap();
        let stopped = engine.decode(&mut cache, &logits, &greedy(64), &[stop], &mut |_| true).unwrap();
        assert_eq!(stopped.tokens, expected[..first]);
    }
}

#[test]
fn decoding_after_a_prefill_gives_the_logits_of_the_whole_prefill() {
    for name in TINY {
        let tokens = TokensFile::of(name).tokens;
        let engine = engine(&fixture(name), 64);
        let (whole, _) = prefill(&engine, &tokens, 20);
        let (_, mut cache) = prefill(&engine, &tokens[..131], 1);
        let difference = apart(&decode(&engine, &mut cache, &tokens[131..]), &whole);
        assert!(difference < CUTS, "{name}: off by {difference:e}");
    }
}

#[test]
fn a_suffix_after_a_rolled_back_prefix_gives_the_same_bits_each_time_and_the_whole_prefills_logits() {
    let tokens = TokensFile::of(TINY[0]).tokens;
    let engine = engine(&fixture(TINY[0]), 64);
    let (whole, _) = prefill(&engine, &tokens, 10);
    let (_, mut cache) = prefill(&engine, &tokens[..100], 1);
    let mark = cache.mark().unwrap();
    assert_eq!(mark.tokens(), 100);
    let mut suffix = |tokens: &[u32]| {
        cache.roll_back(&mark).unwrap();
        numbers(&engine.prefill(&mut cache, tokens, 10, &mut NoObserver, &mut |_| true).unwrap())
    };
    let first = suffix(&tokens[100..]);
    let other: Vec<u32> = tokens[100..].iter().rev().copied().collect();
    assert!(apart(&suffix(&other), &first) > 0.1, "another suffix gives other logits");
    assert_eq!(suffix(&tokens[100..]), first, "what was there in between leaves no trace");
    let difference = apart(&first, &whole);
    assert!(difference < CUTS, "off by {difference:e}");
}

#[test]
fn a_full_cache_is_an_error_that_says_so_in_prefill_and_in_decoding() {
    let tokens = TokensFile::of(TINY[0]).tokens;
    let engine = engine(&fixture(TINY[0]), 64);
    let mut cache = engine.decoder().cache(tokens.len() + 3).unwrap();
    let logits = engine.prefill(&mut cache, &tokens, 1, &mut NoObserver, &mut |_| true).unwrap();
    let logits = logits.squeeze(0).unwrap();
    // The last token chosen needs no room: nothing is predicted after it.
    assert_eq!(engine.decode(&mut cache, &logits, &greedy(4), &[], &mut |_| true).unwrap().tokens.len(), 4);
    assert_eq!(cache.truncate(tokens.len()).unwrap(), tokens.len());
    let error = engine.decode(&mut cache, &logits, &greedy(5), &[], &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("154 of 154 tokens: 1 more do not fit"), "{error}");
    let mut cache = engine.decoder().cache(100).unwrap();
    let error =
        engine.prefill(&mut cache, &tokens, 1, &mut NoObserver, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("holds 64 of 100 tokens: 64 more do not fit"), "{error}");
}

#[test]
fn a_token_outside_the_vocabulary_an_empty_prompt_and_a_caller_who_stops_are_errors() {
    let engine = engine(&fixture(TINY[0]), 2);
    let mut cache = engine.decoder().cache(10).unwrap();
    let mut read = |tokens: &[u32], go_on: bool| {
        cache.truncate(0).unwrap();
        engine.prefill(&mut cache, tokens, 1, &mut NoObserver, &mut |_| go_on)
    };
    let error = read(&[1, 266, 267], true).unwrap_err().to_string();
    assert!(error.contains("token id 267") && error.contains("267"), "{error}");
    assert!(matches!(read(&[], true), Err(EngineError::EmptyPrompt)));
    assert!(matches!(read(&[1, 2, 3], false), Err(EngineError::Interrupted)));
    assert!(read(&[1, 2, 3], true).is_ok());
}
