//! A prompt's bits do not depend on its chunks or its cache: the server chunks and shares prompts differently from the runner.

use palimpsest_core::attention::NoObserver;
use palimpsest_core::engine::Engine;
use palimpsest_core::model::Cache;

use super::{TINY, decode, engine, fixture, numbers};

/// Quantised files; the others cover experts and states.
const GGUF: [&str; 4] = ["gguf-llama", "gguf-gemma3", "gguf-gpt-oss-mxfp4", "gguf-qwen35-text"];
/// Longer than a runner's chunk, any window, and attention's key blocks.
const TOKENS: usize = 1290;

fn tokens() -> Vec<u32> {
    (0..TOKENS).map(|i| 3 + (i * 7919 % 61) as u32).collect()
}

/// Logits of the last three positions, and of tokens decoded after them.
fn outcome(engine: &Engine, cache: &mut Cache, rest: &[u32]) -> (Vec<f32>, Vec<f32>) {
    let logits = engine.prefill(cache, rest, 3, &mut NoObserver, &mut |_| true).unwrap();
    (numbers(&logits), decode(engine, cache, &[5, 17, 9]))
}

#[test]
fn bits_do_not_depend_on_where_a_prompt_is_cut_or_on_the_size_of_the_cache() {
    let tokens = tokens();
    for name in TINY.into_iter().chain(GGUF) {
        let path = fixture(name);
        let file = path.join("model.gguf");
        let engine = engine(if file.exists() { &file } else { &path }, 1024);
        let decoder = engine.decoder();
        let whole = outcome(&engine, &mut decoder.cache(TOKENS + 3).unwrap(), &tokens);
        for (cuts, capacity) in [
            (vec![256, 512, 768, 1024], TOKENS + 3),
            (vec![64, 1280], 4096),
            (vec![2, 5, 9, 40, 133, 190, 700, 701 + 2, 1285], 1 << 14),
        ] {
            let mut cache = decoder.cache(capacity).unwrap();
            for cut in cuts {
                let cut = engine.border(cut);
                if cut > cache.len() {
                    let part = &tokens[cache.len()..cut];
                    engine.fill_cache(&mut cache, part, &mut NoObserver, &mut |_| true).unwrap();
                }
            }
            let rest = &tokens[cache.len()..];
            assert_eq!(outcome(&engine, &mut cache, rest), whole, "{name}, capacity {capacity}");
        }
        // From a mark in the middle, in a cache forked there, and in an enlarged one.
        let mut trunk = decoder.cache(700).unwrap();
        engine.fill_cache(&mut trunk, &tokens[..640], &mut NoObserver, &mut |_| true).unwrap();
        trunk.mark().unwrap();
        let more: Vec<u32> = tokens[..50].to_vec();
        engine.fill_cache(&mut trunk, &more, &mut NoObserver, &mut |_| true).unwrap();
        let mut fork = trunk.fork(640, 2000).unwrap();
        assert_eq!(fork.len(), 640);
        assert_eq!(outcome(&engine, &mut fork, &tokens[640..]), whole, "{name}, forked");
        assert_eq!(trunk.truncate(640).unwrap(), 640);
        trunk.enlarge(3000).unwrap();
        assert_eq!(outcome(&engine, &mut trunk, &tokens[640..]), whole, "{name}, enlarged");
    }
}

#[test]
fn no_chunk_of_a_long_prompt_is_a_token_by_itself() {
    let engine = engine(&fixture(TINY[0]), 64);
    let tokens = tokens();
    let mut read = Vec::new();
    let mut cache = engine.decoder().cache(200).unwrap();
    engine
        .prefill(&mut cache, &tokens[..129], 1, &mut NoObserver, &mut |n| {
            read.push(n);
            true
        })
        .unwrap();
    assert_eq!(read, [64, 63, 2]);
}
