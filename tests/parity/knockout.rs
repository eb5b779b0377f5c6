//! Blocked paths match transformers with those keys masked.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use palimpsest_core::attention::{Hole, Knockout, LayerHoles, LayerKind, NoObserver};
use palimpsest_core::engine::{Backend, Branch, Engine, Event, Request, Reuse, Task};
use palimpsest_core::model::{Cache, FeedForwardSpec, LayerSpec, Pass, Phase};
use safetensors::SafeTensors;
use serde_json::{Value as Json, json};

use super::trace::{shown, trace};
use super::{FORMATS, TINY, answering, apart, engine, engine_of, fixture, in_formats, numbers, session};

type Tensors = std::collections::HashMap<String, Tensor>;

fn read(path: &Path) -> Tensors {
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

/// A checkpoint's reference with blocked paths, and its tokens file.
fn reference(name: &str) -> (Tensors, Json) {
    let path = fixture("knockout").join(format!("{name}.safetensors"));
    let bytes = std::fs::read(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    let mut file: Json =
        serde_json::from_slice(&std::fs::read(fixture(name).join("tokens.json")).unwrap()).unwrap();
    for key in ["knockouts", "top_keys"] {
        file[key] = serde_json::from_str(&metadata[key]).unwrap();
    }
    (read(&path), file)
}

/// Output of `palimpsest trace` for a tokens file.
fn traced(name: &str, file: &Json) -> Tensors {
    generating(name, file, 0)
}

/// Same with `--generate`.
fn generating(name: &str, file: &Json, tokens: usize) -> Tensors {
    let generate = tokens.to_string();
    let dir = tempfile::tempdir().unwrap();
    let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("out.safetensors"));
    std::fs::write(&tokens, file.to_string()).unwrap();
    let folder = fixture(name);
    let args = ["--model", shown(&folder), "--tokens", shown(&tokens), "--out", shown(&out), "--chunk", "37"];
    let (code, _, err) = trace(&[&args[..], &["--generate", &generate, "--allow-longer"]].concat());
    assert_eq!(code, 0, "{name}: {err}");
    read(&out)
}

fn off(found: &Tensors, expected: &Tensors, key: &str) -> f32 {
    assert_eq!(found[key].dims(), expected[key].dims(), "{key}");
    apart(&numbers(&found[key]), &numbers(&expected[key]))
}

#[test]
fn logits_masses_and_largest_keys_are_those_of_transformers_with_the_keys_masked() {
    for name in TINY {
        let (expected, file) = reference(name);
        let found = traced(name, &file);
        for (key, tolerance) in
            [("logits", 1e-3), ("mass", 1e-4), ("sink", 1e-4), ("top_weights", 1e-4), ("delta_signed", 1e-4)]
        {
            assert_eq!(found.contains_key(key), expected.contains_key(key), "{name}: {key}");
            if expected.contains_key(key) {
                let off = off(&found, &expected, key);
                assert!(off < tolerance, "{name}: {key} off by {off:e}");
            }
        }
        let keys = |tensors: &Tensors| tensors["top_keys"].flatten_all().unwrap().to_vec1::<u32>().unwrap();
        let (ours, theirs) = (keys(&found), keys(&expected));
        let weights = numbers(&expected["top_weights"]);
        let k = file["top_keys"].as_u64().unwrap() as usize;
        let mut told_apart = 0;
        for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            // Keys of equal weight up to rounding may swap; the last one's rival is unknown.
            let alike = |j: usize| (weights[i] - weights[j]).abs() < 1e-5;
            let (first, last) = (i % k == 0, i % k + 1 == k);
            if !last && (first || !alike(i - 1)) && !alike(i + 1) {
                assert_eq!(ours, theirs, "{name}: entry {i}");
                told_apart += 1;
            }
        }
        assert!(told_apart * 10 > ours.len() * 5, "{name}: {told_apart} of {}", ours.len());
    }
}

#[test]
fn another_layer_other_rows_other_keys_and_no_knockout_at_all_give_other_numbers() {
    for name in TINY {
        let (expected, mut file) = reference(name);
        // After `new`, and within every window of the query.
        file["spans"]["other"] = json!([120, 130]);
        let softmax = |layer: u64| {
            let spec = engine(&fixture(name), 64).decoder().spec().clone();
            spec.layers.get(layer as usize).is_some_and(|layer| layer.attention().is_some())
        };
        let mut planted = vec![("none", json!([]))];
        for (what, key, value) in [("rows", "rows", "tail"), ("keys", "keys", "other")] {
            let mut knockouts = file["knockouts"].clone();
            knockouts[0][key] = json!(value);
            // `tail` sees itself only through `old`.
            if key == "rows" {
                knockouts[0]["keys"] = json!("neighbour");
            }
            planted.push((what, knockouts));
        }
        let first = file["knockouts"][0]["layers"][0].as_u64().unwrap();
        if let Some(other) = [first + 1, first + 2].into_iter().find(|&layer| softmax(layer)) {
            let mut knockouts = file["knockouts"].clone();
            knockouts[0]["layers"] = json!([other, other + 1]);
            planted.push(("layer", knockouts));
        }
        for (what, knockouts) in planted {
            let mut file = file.clone();
            file["knockouts"] = knockouts;
            let off = off(&traced(name, &file), &expected, "logits");
            assert!(off > 1e-2, "{name}: with other {what} the logits differ by {off:e} only");
        }
    }
}

#[test]
fn what_cannot_be_blocked_is_refused_before_the_weights_are_read() {
    let refused = |name: &str, knockouts: Json| {
        let dir = tempfile::tempdir().unwrap();
        let (tokens, out) = (dir.path().join("tokens.json"), dir.path().join("out.safetensors"));
        let mut file = reference(name).1;
        file["knockouts"] = knockouts;
        std::fs::write(&tokens, file.to_string()).unwrap();
        let folder = fixture(name);
        let args = ["--model", shown(&folder), "--tokens", shown(&tokens), "--out", shown(&out)];
        let (code, _, err) = trace(&args);
        assert!(code == 1 && !out.exists(), "{err}");
        err
    };
    let err = refused("llama-tiny", json!([{"rows": "query", "keys": "older"}]));
    assert!(err.contains("`older`") && err.contains("neighbour") && err.contains("tokens.json"), "{err}");
    let err = refused("llama-tiny", json!([{"rows": "query", "keys": "old", "layers": [1, 9]}]));
    assert!(err.contains("1..9") && err.contains("0..3"), "{err}");
    let err = refused("llama-tiny", json!([{"rows": "all", "keys": "all"}]));
    assert!(err.contains("row 0") && err.contains("layer 0"), "{err}");
    // With a window of 23 the first row of `new` sees only its neighbour.
    let err = refused("gemma3-tiny", json!([{"rows": "query", "keys": "tail"}]));
    assert!(err.contains("row 139") && err.contains("window"), "{err}");
    let err = refused("qwen35-text-tiny", json!([{"rows": "query", "keys": "old"}]));
    assert!(err.contains("layer 0") && err.contains("linear") && err.contains("@2..3"), "{err}");
    // Neither later keys nor keys outside a window.
    let err = refused("llama-tiny", json!([{"rows": "old", "keys": "query"}]));
    assert!(err.contains("`old->query` blocks nothing") && !err.contains("window"), "{err}");
    let err = refused("gemma3-tiny", json!([{"rows": "query", "keys": "old", "layers": [0, 2]}]));
    assert!(err.contains("blocks nothing") && err.contains("window"), "{err}");
    // No token is generated.
    let err = refused("llama-tiny", json!([{"rows": "each", "keys": "old"}]));
    assert!(err.contains("`each`") && err.contains("--generate"), "{err}");
    let err = refused("llama-tiny", json!([{"rows": "query", "keys": "old", "heads": [1]}]));
    assert!(err.contains("heads"), "{err}");
}

/// The last full-attention layer, and its index among the softmax layers; `None` if all have windows.
fn whole_layer(name: &str) -> Option<(usize, usize)> {
    let kinds = engine(&fixture(name), 64).decoder().spec().layer_kinds();
    let at = kinds.iter().rposition(|kind| matches!(kind, LayerKind::Softmax { window: None, .. }))?;
    Some((at, kinds[..at].iter().filter(|kind| **kind != LayerKind::Linear).count()))
}

#[test]
fn a_knockout_of_the_last_rows_holds_for_all_generated_tokens_unless_it_is_of_those_rows_only() {
    const NEW: usize = 4;
    for name in TINY {
        let Some((layer, place)) = whole_layer(name) else {
            // No row of the answer sees `old`.
            assert!(["mistral-tiny", "phi3-longrope-tiny"].contains(&name), "{name}");
            continue;
        };
        let mut file: Json =
            serde_json::from_slice(&std::fs::read(fixture(name).join("tokens.json")).unwrap()).unwrap();
        let n = file["tokens"].as_array().unwrap().len();
        let old = file["spans"].as_object().unwrap().keys().position(|span| span == "old").unwrap();
        assert_eq!(file["spans"]["query"][1], n, "the query ends the prompt");
        file["rows"] = json!(["query", "answer", "each"]);
        let mut run = |rows: &str, only: bool| {
            file["knockouts"] =
                json!([{"rows": rows, "keys": "old", "layers": [layer, layer + 1], "only": only}]);
            let found = generating(name, &file, NEW);
            let of = |tensor: &Tensor| -> Vec<f32> {
                let heads: Vec<Vec<Vec<f32>>> = tensor.get(place).unwrap().to_vec3().unwrap();
                let rows = heads[0].len();
                (0..rows).map(|row| heads.iter().map(|rows| rows[row][old]).sum()).collect()
            };
            let generated: Vec<u32> = found["generated"].to_vec1().unwrap();
            let (named, each) = (of(&found["mass"]), of(&found["mass_each"]));
            (generated, named, each, found)
        };
        // 1. Rows up to the prompt's end: blocked for every generated token, like the named rows.
        let (generated, named, each, found) = run("query", false);
        assert_eq!((named.as_slice(), each.as_slice()), (&[0.0; 2][..], &[0.0; NEW][..]), "{name}");
        // 2. `only`: blocked for the first generated token, predicted by the prompt's last position, and no later one.
        let (_, named, each, _) = run("query", true);
        assert!(named[0] == 0.0 && each[0] == 0.0, "{name}: {named:?} {each:?}");
        assert!(each[1..].iter().all(|mass| *mass > 0.0), "{name}: {each:?}");
        // 3. Rows of generated tokens alone, by either name.
        for rows in ["answer", "each"] {
            let (_, named, each, _) = run(rows, false);
            assert!(named[0] > 0.0, "{name}: the question still sees it");
            assert_eq!((named[1], each.as_slice()), (0.0, &[0.0; NEW][..]), "{name}: {rows}");
        }
        // 4. One pass over prompt and answer with the same rows blocked predicts the same tokens with the same masses.
        let mut tokens: Vec<u32> = serde_json::from_value(file["tokens"].clone()).unwrap();
        tokens.extend(&generated[..NEW - 1]);
        let mut whole = file.clone();
        whole["spans"]["blocked"] = json!([file["spans"]["query"][0], tokens.len()]);
        for i in 0..NEW {
            whole["spans"][format!("at {i}")] = json!([n - 1 + i, n + i]);
        }
        whole["rows"] = json!((0..NEW).map(|i| format!("at {i}")).collect::<Vec<_>>());
        whole["knockouts"] =
            json!([{"rows": "blocked", "keys": "old", "layers": [layer, layer + 1], "only": true}]);
        (whole["tokens"], whole["logits"]) = (json!(tokens), json!(NEW));
        let whole = traced(name, &whole);
        assert_eq!(whole["logits"].argmax(1).unwrap().to_vec1::<u32>().unwrap(), generated, "{name}");
        let spans = found["mass_each"].dim(3).unwrap();
        let off = apart(&numbers(&found["mass_each"]), &numbers(&whole["mass"].narrow(3, 0, spans).unwrap()));
        assert!(off < 1e-5, "{name}: masses of generated tokens are off by {off:e}");
    }
}

/// `keys` hidden from all tokens from `from` on, at the last softmax layer.
fn hidden(engine: &Engine, from: usize, keys: std::ops::Range<usize>) -> LayerHoles {
    let kinds = engine.decoder().spec().layer_kinds();
    let at = engine.decoder().spec().layers.iter().rposition(|layer| layer.attention().is_some()).unwrap();
    LayerHoles::at_softmax(&(at..at + 1), &kinds, vec![Hole { rows: from..usize::MAX, keys }])
}

fn tokens(from: usize, l: usize) -> Vec<u32> {
    (from..from + l).map(|i| 3 + (i * 7919 % 61) as u32).collect()
}

/// Prefills `own` after the cached tokens and decodes `n` greedy tokens, with keys hidden from all of them.
fn continued(engine: &Engine, cache: &mut Cache, own: &[u32], holes: &LayerHoles, n: usize) -> Vec<u32> {
    let mut nothing = NoObserver;
    let mut pass = Pass::from(&mut nothing).hiding(holes);
    let mut logits = engine.prefill(cache, own, 1, pass.again(), &mut |_| true).unwrap();
    let mut said = Vec::new();
    while said.len() < n {
        let likeliest = logits.argmax(1).unwrap().to_vec1::<u32>().unwrap();
        let decoder = engine.decoder();
        let hidden = decoder.forward(&likeliest, 1, cache, Phase::Decode, pass.again()).unwrap();
        logits = decoder.logits(&hidden, Phase::Decode).unwrap();
        said.extend(likeliest);
    }
    said
}

#[test]
fn generated_tokens_alone_and_in_a_batch_are_blocked_as_a_whole_pass_over_them_would_be() {
    const SHARED: usize = 300;
    const NEW: usize = 6;
    for name in TINY {
        let engine = engine(&fixture(name), 64);
        let shared = tokens(0, SHARED);
        let own: Vec<Vec<u32>> = vec![tokens(1000, 9), tokens(2000, 1), tokens(3000, 30)];
        // Different holes for each, and one without.
        let holes =
            [hidden(&engine, SHARED, 5..290), LayerHoles::default(), hidden(&engine, SHARED + 3, 280..299)];
        let mut cache = engine.decoder().cache(SHARED + 400).unwrap();
        engine.fill_cache(&mut cache, &shared, &mut NoObserver, &mut |_| true).unwrap();
        cache.mark().unwrap();
        let mut said = |nth: usize| {
            assert_eq!(cache.truncate(SHARED).unwrap(), SHARED);
            continued(&engine, &mut cache, &own[nth], &holes[nth], NEW)
        };
        let alone: Vec<Vec<u32>> = (0..own.len()).map(&mut said).collect();
        // 1. In a batch the same tokens.
        let branch = |(own, holes): (&Vec<u32>, &LayerHoles)| Branch {
            tokens: own.clone(),
            knockouts: holes.clone(),
            tasks: vec![answering(NEW, &[])],
            ..Branch::default()
        };
        let branches = own.iter().zip(&holes).map(branch).collect();
        let request = Request { prefix: shared.clone().into(), reuse: Reuse::Prefix, branches };
        let mut session = session(&engine, SHARED + 400, (own.len(), 400));
        let together = session.answers(request, &mut |_, _, _| true);
        for (nth, measured) in together.into_iter().flatten().enumerate() {
            assert_eq!(measured.unwrap().generated.tokens, alone[nth], "{name}, branch {nth}");
        }
        // 2. Holes do not leak into the next branch: the plain branch again, after a blocked one.
        said(0);
        assert_eq!(said(1), alone[1], "{name}");
        // 3. One pass over all of it gives the logits of the same steps.
        for nth in 0..own.len() {
            let whole = [&shared[..], &own[nth], &alone[nth][..NEW - 1]].concat();
            let mut cache = engine.decoder().cache(whole.len()).unwrap();
            let mut nothing = NoObserver;
            let pass = Pass::from(&mut nothing).hiding(&holes[nth]);
            let logits = engine.prefill(&mut cache, &whole, NEW, pass, &mut |_| true).unwrap();
            let best: Vec<u32> = logits.argmax(1).unwrap().to_vec1().unwrap();
            assert_eq!(best, alone[nth], "{name}, {nth} as a whole");
        }
    }
}

#[test]
fn the_device_kernel_blocks_the_same_in_half_precision() {
    let holes: Knockout = "query->new@0..1".parse().unwrap();
    let engine = super::engine_in(&fixture("llama-tiny"), 64, DType::F16);
    let exact = super::engine(&fixture("llama-tiny"), 64);
    let file = super::reference::TokensFile::of("llama-tiny");
    let holes =
        LayerHoles::new(&[holes], &file.keys(), file.tokens.len(), &engine.decoder().spec().layer_kinds())
            .unwrap();
    let logits = |engine: &Engine, holes: &LayerHoles| {
        let mut cache = engine.decoder().cache(file.tokens.len()).unwrap();
        let mut nothing = NoObserver;
        let pass = Pass::from(&mut nothing).hiding(holes);
        let hidden = engine.prefill(&mut cache, &file.tokens, 12, pass, &mut |_| true).unwrap();
        numbers(&hidden.to_dtype(DType::F32).unwrap())
    };
    let (found, expected) = (logits(&engine, &holes), logits(&exact, &holes));
    let plain = logits(&exact, &LayerHoles::default());
    assert!(apart(&found, &expected) < 0.05, "{:e}", apart(&found, &expected));
    assert!(apart(&plain, &expected) > 0.1, "{:e}", apart(&plain, &expected));
}

/// Keys 20 to 59 hidden from some rows inside a prefix, and from everything after it.
fn hidden_inside(engine: &Engine, rows: std::ops::Range<usize>, prefix: usize) -> LayerHoles {
    let kinds = engine.decoder().spec().layer_kinds();
    let holes = [rows, prefix..usize::MAX].map(|rows| Hole { rows, keys: 20..60 });
    LayerHoles::at_softmax(&(0..kinds.len()), &kinds, holes.into())
}

#[test]
fn readings_that_hide_keys_from_rows_inside_their_prefix_share_what_is_read_again_of_it() {
    let mut differing = 0;
    const SHARED: usize = 300;
    for name in TINY {
        let engine = engine(&fixture(name), 64);
        let prefix = tokens(0, SHARED);
        let questions = [tokens(1000, 20), tokens(2000, 30)];
        let forced: Arc<[u32]> = [7, 8, 9].into();
        let mut session = session(&engine, SHARED + 60, (1, 0));
        let mut read = |holes: &LayerHoles| {
            let branch = |question: &Vec<u32>| Branch {
                tokens: question.clone(),
                knockouts: holes.clone(),
                tasks: vec![Task::Force(Arc::clone(&forced))],
                ..Branch::default()
            };
            let branches = questions.iter().map(branch).collect();
            let request = Request { prefix: prefix.clone().into(), reuse: Reuse::Longest, branches };
            let mut found = vec![Vec::new(); questions.len()];
            session.run(request, &mut |nth, _, event| {
                match event {
                    Event::Logits(_, logits) => found[nth].extend(numbers(&logits)),
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
                true
            });
            (found, session.take_usage().0)
        };
        let plain = LayerHoles::default();
        let [early, late] = [100..160, 200..240].map(|rows| hidden_inside(&engine, rows, SHARED));
        let before = read(&plain).0;
        let (mut changed, mut apart_alone) = (Vec::new(), Vec::new());
        // The plain passes in between find an unmodified cache.
        for holes in [&late, &early, &plain, &late] {
            let (found, tokens) = read(holes);
            for (found, question) in found.iter().zip(&questions) {
                let all = [&prefix[..], question, &forced[..2]].concat();
                let mut cache = engine.decoder().cache(all.len()).unwrap();
                let mut nothing = NoObserver;
                let pass = Pass::from(&mut nothing).hiding(holes);
                let alone = engine.prefill(&mut cache, &all, 3, pass, &mut |_| true).unwrap();
                let off = apart(found, &numbers(&alone));
                assert!(off < 1e-4, "{name}: off by {off:e}");
                apart_alone.push(numbers(&alone));
            }
            // The part of the prefix visible to both questions is read once.
            let tails = 20 + 30 + 2 * 2;
            assert!(tokens >= tails && tokens < 2 * SHARED + tails, "{name}: {tokens} tokens");
            changed.push(found);
        }
        assert_eq!(changed[2], before, "{name}");
        assert_eq!(changed[0], changed[3], "{name}");
        // Other rows matter exactly where they do in separate passes: windows may see neither.
        let alone = apart(&apart_alone[0], &apart_alone[questions.len()]);
        let together = apart(&changed[0][0], &changed[1][0]);
        assert_eq!(together > 1e-3, alone > 1e-3, "{name}: {together} together, {alone} alone");
        differing += usize::from(alone > 1e-3);
    }
    assert!(
        differing > TINY.len() / 2,
        "of {differing} models alone it shows that other rows are other readings"
    );
}

#[test]
fn readings_at_once_are_what_each_would_be_by_itself_and_leave_the_cache_as_it_was() {
    const SHARED: usize = 300;
    const KEEP: usize = 40;
    for (name, formats) in in_formats(TINY) {
        // Three prefills of 50 tokens at once.
        let engine = engine_of(&fixture(name), 160, formats);
        // A rounding error can route a token to another expert.
        let experts = |layer: &LayerSpec| matches!(layer.feed_forward, FeedForwardSpec::Experts(_));
        if formats != FORMATS[0] && engine.decoder().spec().layers.iter().any(experts) {
            continue;
        }
        let mut cache = engine.decoder().cache(SHARED + 60).unwrap();
        let shared = tokens(0, SHARED);
        engine.fill_cache(&mut cache, &shared, &mut NoObserver, &mut |_| true).unwrap();
        cache.mark().unwrap();
        let own = tokens(1000, 50);
        let holes: Vec<LayerHoles> = [0..1, 5..290, 280..299, 17..18, 1..SHARED]
            .map(|keys| if keys == (0..1) { LayerHoles::default() } else { hidden(&engine, SHARED, keys) })
            .into();
        // The last position's logits predict a token that is not read.
        let forced: Arc<[u32]> = own[own.len() - KEEP + 1..].iter().copied().chain([5]).collect();
        let branch = |holes: &LayerHoles| Branch {
            tokens: own[..own.len() - KEEP + 1].to_vec(),
            knockouts: holes.clone(),
            tasks: vec![Task::Force(Arc::clone(&forced))],
            ..Branch::default()
        };
        let mut session = session(&engine, SHARED + 60, (1, 0));
        let mut readings = |read: usize| {
            let branches = holes.iter().map(branch).collect();
            let request = Request { prefix: shared.clone().into(), reuse: Reuse::Prefix, branches };
            let mut found: Vec<Vec<f32>> = vec![Vec::new(); holes.len()];
            session.run(request, &mut |nth, _, event| {
                match event {
                    Event::Logits(at, logits) => {
                        assert_eq!(found[nth].len(), at * logits.dim(1).unwrap(), "in order");
                        found[nth].extend(numbers(&logits));
                    }
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
                true
            });
            assert_eq!(session.take_usage(), (read, 0), "{name}");
            found
        };
        let found = readings(SHARED + 5 * 50);
        assert_eq!(readings(5 * 50), found, "{name}: the cache is as it was");
        for (nth, holes) in holes.iter().enumerate() {
            let mut nothing = NoObserver;
            let pass = Pass::from(&mut nothing).hiding(holes);
            let alone = engine.prefill(&mut cache, &own, KEEP, pass, &mut |_| true).unwrap();
            let off = apart(&found[nth], &numbers(&alone));
            // The last bit of a sum may change the rounding to a shorter format, and a weight is rounded relative to the largest of the
            // keys in the same block.
            let within = match formats {
                (DType::F32, None) => 1e-4,
                (DType::F32, Some(_)) => 5e-2,
                _ => 0.3,
            };
            assert!(off < within, "{name} in {formats:?}: reading {nth} is off by {off:e}");
            assert_eq!(cache.truncate(SHARED).unwrap(), SHARED);
        }
        let off = apart(&found[0], &found[1]);
        assert!(off > 1e-3, "{name}: what is hidden makes no difference: {off:e}");
    }
}
