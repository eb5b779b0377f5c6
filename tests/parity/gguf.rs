//! GGUF files give the numbers of the safetensors that they were converted from.

use candle_core::DType;
use candle_core::quantized::GgmlDType;

use super::checkpoint::Llama;
use super::reference::TokensFile;
use super::{LLAMA, apart, decode, engine, engine_in, fixture, greedy, prefill};

/// Between two files with the same weights.
const SAME: f32 = 1e-4;
/// Between products with quantised and with dequantised weights, both of f32 activations.
const DECODE: f32 = 1e-3;

fn tokens() -> Vec<u32> {
    (0..60u32).map(|i| (i * 37 + i * i * 11 + 5) % 120).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn an_f32_gguf_gives_the_logits_of_its_safetensors_with_either_rotary_scaling() {
    let dir = tempfile::tempdir().unwrap();
    for name in LLAMA {
        let tokens = TokensFile::of(name).tokens;
        let path = Llama::fixture(name).write_gguf(&dir.path().join("f32.gguf"), GgmlDType::F32);
        let (expected, _) = prefill(&engine(&fixture(name), 64), &tokens, 16);
        let engine = engine(&path, 64);
        let (found, _) = prefill(&engine, &tokens, 16);
        assert!(apart(&found, &expected) < SAME, "{name}: off by {:e}", apart(&found, &expected));
        let (_, mut cache) = prefill(&engine, &tokens[..tokens.len() - 16], 1);
        let decoded = decode(&engine, &mut cache, &tokens[tokens.len() - 16..]);
        assert!(
            apart(&decoded, &expected) < SAME,
            "{name}: decoding is off by {:e}",
            apart(&decoded, &expected)
        );
    }
}

#[test]
fn biases_of_queries_and_keys_are_put_back_in_order_like_their_weights() {
    let dir = tempfile::tempdir().unwrap();
    let model = Llama::random(64, true, true);
    let (expected, _) = prefill(&engine(&model.write_folder(&dir.path().join("hf")), 64), &tokens(), 16);
    let path = model.write_gguf(&dir.path().join("f32.gguf"), GgmlDType::F32);
    let (found, _) = prefill(&engine(&path, 64), &tokens(), 16);
    assert!(apart(&found, &expected) < SAME, "off by {:e}", apart(&found, &expected));
}

#[test]
fn quantised_prefill_equals_dequantised_safetensors_and_decoding_equals_prefill_for_every_repacked_type() {
    let dir = tempfile::tempdir().unwrap();
    for (dtype, tied) in [
        (GgmlDType::Q4_0, true),
        (GgmlDType::Q4_1, false),
        (GgmlDType::Q5_0, false),
        (GgmlDType::Q5_1, true),
        (GgmlDType::Q8_0, true),
        (GgmlDType::F16, false),
    ] {
        let model = Llama::random(64, tied, false);
        let folder = model.rounded(dtype).write_folder(&dir.path().join(format!("{dtype:?}")));
        let (expected, _) = prefill(&engine(&folder, 64), &tokens(), 16);
        let engine = engine(&model.write_gguf(&dir.path().join("model.gguf"), dtype), 64);
        let (found, _) = prefill(&engine, &tokens(), 16);
        assert!(apart(&found, &expected) < SAME, "{dtype:?}: off by {:e}", apart(&found, &expected));
        let (_, mut cache) = prefill(&engine, &tokens()[..44], 1);
        let decoded = decode(&engine, &mut cache, &tokens()[44..]);
        let difference = apart(&decoded, &found);
        assert!(difference < DECODE, "{dtype:?}: decoding is off by {difference:e}");
    }
}

#[test]
fn block_types_that_are_not_repacked_prefill_exactly_and_decode_within_candles_rounding_of_activations() {
    // Candle's quantised product rounds activations to 8 bits in groups of 256, so a thousandth is out of reach there:
    // a tenth of the largest logit at worst, and the same direction.
    const WORST: f32 = 0.1;
    const COSINE: f64 = 0.999;
    let dir = tempfile::tempdir().unwrap();
    for dtype in [GgmlDType::Q4K, GgmlDType::Q6K] {
        let model = Llama::random(256, false, false);
        let folder = model.rounded(dtype).write_folder(&dir.path().join(format!("{dtype:?}")));
        let (expected, _) = prefill(&engine(&folder, 64), &tokens(), 16);
        let engine = engine(&model.write_gguf(&dir.path().join("model.gguf"), dtype), 64);
        let (found, _) = prefill(&engine, &tokens(), 16);
        assert!(apart(&found, &expected) < SAME, "{dtype:?}: off by {:e}", apart(&found, &expected));
        let (_, mut cache) = prefill(&engine, &tokens()[..44], 1);
        let decoded = decode(&engine, &mut cache, &tokens()[44..]);
        let largest = found.iter().fold(0f32, |most, x| most.max(x.abs()));
        let difference = apart(&decoded, &found) / largest;
        assert!(difference < WORST, "{dtype:?}: decoding is off by {difference:e} of {largest}");
        assert!(cosine(&decoded, &found) > COSINE, "{dtype:?}: cosine {}", cosine(&decoded, &found));
    }
}

#[test]
fn a_quantised_file_runs_in_half_precision_on_the_cpu_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = Llama::random(64, true, false).write_gguf(&dir.path().join("model.gguf"), GgmlDType::Q8_0);
    let (expected, _) = prefill(&engine(&path, 64), &tokens(), 1);
    for (dtype, tolerance) in [(DType::BF16, 0.5), (DType::F16, 0.05)] {
        let engine = engine_in(&path, 64, dtype);
        let mut cache = engine.decoder().cache(80).unwrap();
        let mut none = palimpsest::attention::NoObserver;
        let logits = engine.prefill(&mut cache, &tokens(), 1, &mut none, &mut |_| true).unwrap();
        let difference = apart(&super::numbers(&logits), &expected);
        assert!(difference < tolerance, "{dtype:?}: off by {difference}");
        let logits = logits.squeeze(0).unwrap();
        let generated = engine.decode(&mut cache, &logits, &greedy(8), &[], &mut |_| true).unwrap();
        assert_eq!(generated.tokens.len(), 8);
    }
}
