//! Lower precision on the CPU: bf16 products, and caches in bf16 and f16.

use candle_core::DType;
use palimpsest::selftest::rule::{self, Numbers, root_mean_square};
use palimpsest_core::model::{FeedForwardSpec, cache_bytes};

use super::reference::{TokensFile, expected, of_real, sound_positions, traced};
use super::selected::INDEXED;
use super::{FORMATS, TINY, engine, engine_of, fixture, in_formats, numbers, prefill};

/// Bound on our RMS difference from f32 over transformers' own, both in bf16.
const OVER: f64 = 1.25;
/// Masses with only the cache in bf16, relative to f32 where not tiny.
const MASSES: f64 = 2e-3;

fn has_experts(name: &str) -> bool {
    let layers = &engine(&fixture(name), 64).decoder().spec().layers.clone();
    layers.iter().any(|layer| matches!(layer.feed_forward, FeedForwardSpec::Experts(_)))
}

#[test]
fn products_of_bf16_numbers_are_no_further_from_f32_than_transformers_in_bf16_is() {
    for name in TINY {
        let file = TokensFile::of(name);
        let (exact, theirs) = (expected(name, ""), expected(name, "_bf16"));
        let (ours, _) = traced(&engine_of(&fixture(name), 37, (DType::BF16, None)), &file);
        if has_experts(name) && !INDEXED.contains(&name) {
            // A rounding error can route a token to another expert. Rows choose other keys too, as often in transformers.
            let sound = sound_positions(&ours["logits"], &exact["logits"], 16);
            assert!(sound >= 15, "{name}: {sound} of 16 positions");
            continue;
        }
        for compared in rule::in_half(&ours, &exact, &theirs) {
            let allowed = compared.allowed / rule::OVER * OVER;
            println!("{name}: {} {:.2} of transformers' own", compared.what, compared.found / allowed * OVER);
            assert!(compared.found <= allowed, "{name}: {compared:?}");
        }
    }
}

/// Differences from `exact` masses, relative to their RMS.
fn relative(found: &Numbers, exact: &Numbers) -> f64 {
    let zeros = vec![0.0; exact["mass"].len()];
    root_mean_square(&found["mass"], &exact["mass"]) / root_mean_square(&exact["mass"], &zeros)
}

#[test]
fn a_cache_in_bf16_or_f16_alone_moves_masses_by_its_rounding() {
    for name in TINY.into_iter().filter(|name| !has_experts(name)) {
        let file = TokensFile::of(name);
        let (exact, _) = traced(&engine(&fixture(name), 37), &file);
        for (cache, allowed) in [(DType::BF16, MASSES), (DType::F16, MASSES / 8.0)] {
            let (found, _) = traced(&engine_of(&fixture(name), 37, (DType::F32, Some(cache))), &file);
            let off = relative(&found, &exact);
            println!("{name}, cache in {cache:?}: masses {off:.1e} relative");
            assert!(off < allowed, "{name}, cache in {cache:?}: {off:e}");
            let softmax =
                engine(&fixture(name), 37).decoder().spec().layers.iter().any(|l| l.attention().is_some());
            assert_eq!(off > 0.0, softmax, "{name}: the cache is not in {cache:?}");
        }
    }
}

#[test]
fn a_prompt_gives_the_same_bits_in_chunks_of_any_length_in_every_format() {
    for (name, formats) in in_formats(TINY) {
        let tokens = TokensFile::of(name).tokens;
        let bits = |chunk: usize| {
            let (logits, _) = prefill(&engine_of(&fixture(name), chunk, formats), &tokens, 12);
            logits.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        // Linear-attention layers sum their states in chunk order.
        let delta = engine(&fixture(name), 64).decoder().spec().layers.iter().any(|l| l.linear().is_some());
        if !delta {
            let whole = bits(1 << 20);
            assert!([7, 37, 64].into_iter().all(|chunk| bits(chunk) == whole), "{name} in {formats:?}");
        }
    }
}

#[test]
fn a_cache_of_fewer_bits_is_kept_in_them_and_planned_at_half_the_bytes() {
    let bytes = |formats| {
        let engine = engine_of(&fixture("llama-tiny"), 64, formats);
        let of = engine.decoder().formats();
        let kept = engine.decoder().cache(64).unwrap().dtype();
        assert_eq!((kept, of.cache), (formats.1.unwrap_or(formats.0), kept));
        let mixer = &engine.decoder().spec().layers[0].mixer;
        cache_bytes(mixer, 1000, 64, &of).unwrap()
    };
    let [whole, bf16, f16, half, wide] = FORMATS.map(bytes);
    assert_eq!([bf16, f16, half, wide], [whole / 2, whole / 2, whole / 2, whole]);
}

#[test]
fn quantised_weights_are_multiplied_in_bf16_where_the_model_is() {
    for name in ["gguf-llama", "gguf-gemma3", "gguf-qwen35-text"] {
        let path = fixture(name).join("model.gguf");
        let tokens: Vec<u32> = (0..100).map(|i| 3 + (i * 7919 % 61) as u32).collect();
        let logits = |formats| {
            numbers(&{
                let engine = engine_of(&path, 37, formats);
                let mut cache = engine.decoder().cache(200).unwrap();
                let mut nothing = palimpsest_core::attention::NoObserver;
                engine.prefill(&mut cache, &tokens, 12, &mut nothing, &mut |_| true).unwrap()
            })
        };
        let (exact, found) = (logits(FORMATS[0]), logits((DType::BF16, None)));
        let size = root_mean_square(&exact, &vec![0.0; exact.len()]);
        let off = root_mean_square(&found, &exact) / size;
        println!("{name}: logits {off:.1e} relative");
        assert!(off > 0.0 && off < 3e-2, "{name}: {off:e}");
    }
}

/// Files of the real models by reference name, fetched if needed; empty if skipped.
fn real() -> Vec<(&'static str, std::path::PathBuf)> {
    if crate::left_out::unless_all("SmolLM2-135M and Gemma 3 270M in fewer bits") {
        return Vec::new();
    }
    let store = palimpsest::models::ModelStore::open().unwrap();
    let named = [("smollm2-512", "smollm2-135m"), ("gemma3-512", "gemma3-270m")];
    named.map(|(name, model)| (name, store.resolve(model).unwrap().paths().remove(0))).into()
}

#[test]
fn real_models_in_bf16_are_no_further_from_f32_than_transformers_is() {
    for (name, path) in real() {
        let (exact, theirs) = (expected(name, ""), expected(name, "_bf16"));
        let ours = of_real(name, &engine_of(&path, 256, (DType::BF16, None)));
        for compared in rule::in_half(&ours, &exact, &theirs) {
            let allowed = compared.allowed / rule::OVER * OVER;
            println!("{name}: {} {:.2} of transformers' own", compared.what, compared.found / allowed * OVER);
            assert!(compared.found <= allowed, "{name}: {compared:?}");
        }
    }
}

#[test]
fn real_models_with_a_cache_in_bf16_alone_pay_the_masses_of_f32_within_its_rounding() {
    for (name, path) in real() {
        let exact = expected(name, "");
        for (cache, allowed) in [(DType::BF16, MASSES), (DType::F16, MASSES / 8.0)] {
            let found = of_real(name, &engine_of(&path, 256, (DType::F32, Some(cache))));
            let (off, logits) =
                (relative(&found, &exact), root_mean_square(&found["logits"], &exact["logits"]));
            println!("{name}, cache in {cache:?}: masses {off:.1e} relative, logits {logits:.1e}");
            assert!(off < allowed, "{name}, cache in {cache:?}: {off:e}");
        }
    }
}
