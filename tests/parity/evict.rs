//! Evictions keep the keys that KVPress 0.5.5 keeps (`tests/reference/kvpress_reference.py`), and what they keep is of the cache.

use std::collections::HashMap;

use candle_core::{Device, Result, Tensor};
use palimpsest_core::attention::{Event, LayerHoles, NoObserver, Observer, Point, Wanted};
use palimpsest_core::engine::Engine;
use palimpsest_core::evict::Eviction;
use palimpsest_core::model::KeyValues;
use palimpsest_core::span::Span;

use super::{engine, fixture};

const MODELS: [&str; 3] = ["llama-tiny", "qwen3-tiny", "gemma3-nested-tiny"];
pub const POLICIES: [&str; 11] = [
    "streaming",
    "knorm",
    "snapkv",
    "h2o",
    "tova",
    "expected-attention",
    "kvzap",
    "random",
    "least-attended",
    "oldest",
    "oracle",
];

/// The kept ones of the first `eviction.at` of `tokens`, all of which are read.
fn chosen(engine: &Engine, tokens: &[u32], eviction: &Eviction) -> Result<LayerHoles> {
    let decoder = engine.decoder();
    let mut cache = decoder.cache(tokens.len()).unwrap();
    let mut collector = eviction.collector(tokens.len(), decoder);
    // Hybrids give the same bits only where chunks end at borders.
    let (before, rows) = tokens.split_at(engine.border(eviction.first_row().unwrap_or(eviction.at)));
    engine.fill_cache(&mut cache, before, &mut NoObserver, &mut |_| true).unwrap();
    engine.fill_cache(&mut cache, rows, &mut collector, &mut |_| true).unwrap();
    eviction.choose(&cache, &collector, decoder, tokens)
}

fn eviction(evict: &str, at: usize) -> Eviction {
    let spans = vec![
        Span::new("bos", 0..1),
        Span::new("session[0]", 1..at / 3).with_role("old"),
        Span::new("session[1]", at / 3..at / 2),
        Span::new("session[2]", at / 2..at - 3).with_role("new"),
        Span::new("session[2].turn[1]", at / 2 + 2..at / 2 + 9).as_overlay(),
        Span::new("query", at..at + 5).with_role("query"),
    ];
    Eviction { evict: evict.parse().unwrap(), at, spans, seed: 1 }
}

fn references() -> HashMap<String, Tensor> {
    candle_core::safetensors::load(fixture("kvpress.safetensors"), &Device::Cpu).unwrap()
}

/// Kept positions by layer that evicts and key/value head.
fn positions(holes: &LayerHoles, layers: usize) -> Vec<Vec<Vec<u32>>> {
    let kept = (0..layers).filter_map(|layer| holes.of(layer).kept().cloned());
    kept.map(|kept| kept.heads.iter().map(|head| head.positions.clone()).collect()).collect()
}

#[test]
fn kept_keys_are_those_of_kvpress() {
    let references = references();
    for name in MODELS {
        let tokens: Vec<u32> = references[&format!("{name}.tokens")].to_vec1().unwrap();
        for chunk in [37, 512] {
            let engine = engine(&fixture(name), chunk);
            let layers = engine.decoder().spec().layers.len();
            for policy in &POLICIES[..6] {
                for share in ["0.25", "0.5"] {
                    let eviction = eviction(&format!("{policy}:{share}"), tokens.len());
                    let found = positions(&chosen(&engine, &tokens, &eviction).unwrap(), layers);
                    let expected: Vec<Vec<Vec<u32>>> =
                        references[&format!("{name}.{policy}.{share}.kept")].to_vec3().unwrap();
                    let scores = references.get(&format!("{name}.{policy}.scores"));
                    let scores: Option<Vec<Vec<Vec<f32>>>> = scores.map(|scores| scores.to_vec3().unwrap());
                    assert_eq!(found.len(), expected.len(), "{name} {policy}: layers");
                    for (layer, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        assert_eq!(found.len(), expected.len());
                        for (head, (found, expected)) in found.iter().zip(expected).enumerate() {
                            assert_eq!(found.len(), expected.len());
                            let but = |a: &[u32], b: &[u32]| {
                                a.iter().filter(|key| !b.contains(key)).copied().collect::<Vec<u32>>()
                            };
                            let (more, less) = (but(found, expected), but(expected, found));
                            // Keys whose scores are equal up to rounding may swap.
                            for (more, less) in more.iter().zip(&less) {
                                let scores = &scores.as_ref().unwrap()[layer][head];
                                let (a, b) = (scores[*more as usize], scores[*less as usize]);
                                let about = format!(
                                    "{name} {policy}:{share} in chunks of {chunk}, layer {layer}, head {head}"
                                );
                                assert!((a - b).abs() < 1e-6, "{about}: {more} for {less}, {a} for {b}");
                                println!("{about}: {more} for {less}, {a} for {b}");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Keys and values of the layers that evict, as the last chunk sees them.
#[derive(Default)]
struct Seen(HashMap<usize, (Tensor, Tensor)>);

impl Observer for Seen {
    fn wants(&self, _point: Point<'_>) -> Wanted<'_> {
        Wanted::inputs(true)
    }

    fn observe(&mut self, event: Event<'_>) -> Result<()> {
        if let Event::Attention { site, k, v, .. } = event {
            self.0.insert(site.layer, (k.copy()?, v.copy()?));
        }
        Ok(())
    }
}

#[test]
fn every_policy_keeps_its_budget_of_the_caches_own_keys_at_full_attention_layers_alone() {
    for name in ["llama-tiny", "gemma3-tiny", "gemma4-tiny", "qwen35-text-tiny", "gpt-oss-tiny"] {
        let engine = engine(&fixture(name), 64);
        let decoder = engine.decoder();
        let specs = &decoder.spec().layers;
        let tokens: Vec<u32> = (0..120).map(|i| i * 37 % 263).collect();
        let mut seen = Seen::default();
        let mut cache = decoder.cache(tokens.len()).unwrap();
        engine.fill_cache(&mut cache, &tokens, &mut seen, &mut |_| true).unwrap();
        let full = |layer: usize| specs[layer].attention().is_some_and(|spec| spec.window.is_none());
        // A layer that shares keys has none of its own to evict.
        let shares = |layer: usize| {
            specs[layer].attention().is_some_and(|spec| matches!(spec.key_values, KeyValues::Of(_)))
        };
        let evicting: Vec<usize> = (0..specs.len()).filter(|&layer| full(layer) && !shares(layer)).collect();
        for (policy, question) in POLICIES.iter().flat_map(|policy| [(policy, ""), (policy, "@question")]) {
            for (keep, budget) in [("0.3", 30), ("7", 7), ("0.001", 1)] {
                let about = format!("{name} {policy}:{keep}{question}");
                let eviction = eviction(&format!("{policy}:{keep}{question}"), 100);
                let holes = chosen(&engine, &tokens, &eviction).unwrap();
                let shares = eviction.shares(&holes, decoder);
                assert_eq!(shares.layers, evicting, "{about}");
                for layer in 0..specs.len() {
                    let holes = holes.of(layer);
                    assert_eq!(holes.kept().is_some(), full(layer), "{about}, layer {layer}");
                    let Some(kept) = holes.kept() else { continue };
                    assert_eq!(kept.from, 100);
                    for (head, of_head) in kept.heads.iter().enumerate() {
                        let positions = &of_head.positions;
                        assert!(positions.is_sorted() && positions.iter().all(|position| *position < 100));
                        let whole = ["least-attended", "oldest", "oracle"].contains(policy);
                        assert!(
                            positions.len() == budget || (whole && positions.len() <= budget.max(4)),
                            "{about}"
                        );
                        let (k, v) = &seen.0[&layer];
                        let places = Tensor::new(&positions[..], &Device::Cpu).unwrap();
                        for (all, kept) in [(k, &of_head.k), (v, &of_head.v)] {
                            let expected = all.get(head).unwrap().index_select(&places, 0).unwrap();
                            assert!(
                                kept.is_contiguous() && kept.dims()[..2] == [1, positions.len()],
                                "{about}"
                            );
                            let numbers = |of: &Tensor| of.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                            assert_eq!(numbers(kept), numbers(&expected), "{about}");
                        }
                        let Some(l) = evicting.iter().position(|other| *other == layer) else { continue };
                        for (s, span) in eviction.spans.iter().enumerate() {
                            let inside =
                                positions.iter().filter(|at| span.range().contains(&(**at as usize)));
                            let share = inside.count() as f32 / span.len() as f32;
                            let told = shares.shares[[l, head, s]];
                            assert!(
                                told == share || (told.is_nan() && span.start >= 100),
                                "{about}: {told} {share}"
                            );
                        }
                    }
                }
            }
            // Nothing goes under a budget of all.
            for keep in ["1.0", "100", "4000"] {
                let eviction = eviction(&format!("{policy}:{keep}{question}"), 100);
                let holes = chosen(&engine, &tokens, &eviction).unwrap();
                assert!(holes.is_empty());
                let shares = eviction.shares(&holes, decoder).shares;
                assert!(shares.iter().all(|share| *share == 1.0 || share.is_nan()));
                assert!(shares.iter().any(|share| *share == 1.0));
            }
        }
    }
}

#[test]
fn a_history_that_is_too_short_for_a_policy_is_refused_with_its_numbers() {
    let engine = engine(&fixture("llama-tiny"), 64);
    let tokens: Vec<u32> = (0..90).collect();
    let refused = |evict: &str, at: usize| {
        let eviction = Eviction { at, spans: Vec::new(), ..eviction(evict, 100) };
        chosen(&engine, &tokens, &eviction).map(drop).map_err(|error| error.to_string())
    };
    for (evict, at, numbers) in [("snapkv:0.5", 64, "64 rows to read"), ("expected-attention:1", 4, "4 keys")]
    {
        let message = refused(evict, at).unwrap_err();
        assert!(
            message.contains(evict) && message.contains(numbers) && message.contains("streaming"),
            "{message}"
        );
    }
    // With the question, there are 90 rows.
    assert_eq!(refused("snapkv:0.5@question", 64), Ok(()));
    assert_eq!(refused("snapkv:0.5", 65), Ok(()));
    assert_eq!(refused("tova:0.5", 2), Ok(()));
}

#[test]
fn a_policy_that_sees_the_question_scores_by_its_rows() {
    let engine = engine(&fixture("llama-tiny"), 64);
    let history: Vec<u32> = (0..100).collect();
    let (one, other): (Vec<u32>, Vec<u32>) = ((200..240).collect(), (10..50).rev().collect());
    let kept = |evict: &str, question: &[u32]| {
        let tokens = [&history[..], question].concat();
        positions(&chosen(&engine, &tokens, &eviction(evict, 100)).unwrap(), 3)
    };
    for policy in ["snapkv", "h2o", "tova", "expected-attention"] {
        let (plain, seeing) = (format!("{policy}:0.7"), format!("{policy}:0.7@question"));
        assert_eq!(kept(&plain, &one), kept(&plain, &other), "{policy}");
        assert_ne!(kept(&seeing, &one), kept(&seeing, &other), "{policy}");
    }
}
