//! GGUF files match the safetensors they were converted from.

use std::collections::BTreeSet;
use std::path::PathBuf;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use palimpsest_core::attention::NoObserver;
use palimpsest_core::engine::Engine;
use palimpsest_core::model::arch::ARCHITECTURES;
use palimpsest_core::model::{Kept, OpenModel};

use super::checkpoint::Llama;
use super::reference::{TokensFile, assert_f32, expected, traced};
use super::{LLAMA, apart, decode, engine, engine_in, fixture, greedy, prefill};

/// Between two files with the same weights.
const SAME: f32 = 1e-4;
/// Between products with quantised and with dequantised weights, both with f32 activations.
const DECODE: f32 = 1e-3;

fn tokens() -> Vec<u32> {
    (0..60u32).map(|i| (i * 37 + i * i * 11 + 5) % 120).collect()
}

/// Files written by llama.cpp's converter from tiny checkpoints, each with its reference fixture: its own, or another if the converter
/// cannot express it.
fn converted() -> Vec<(PathBuf, String)> {
    let mut found: Vec<(PathBuf, String)> = std::fs::read_dir(fixture(""))
        .unwrap()
        .filter_map(|entry| {
            let folder = entry.unwrap().path();
            let name = folder.file_name()?.to_str()?.to_owned();
            let tiny = format!("{}-tiny", name.strip_prefix("gguf-")?);
            let own = folder.join("reference.safetensors").exists();
            Some((folder.join("model.gguf"), if own { name } else { tiny }))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn files_of_llama_cpps_converter_give_the_numbers_of_transformers_for_every_architecture() {
    let converted = converted();
    let mut seen = BTreeSet::new();
    for (path, name) in &converted {
        let file = TokensFile::of(name);
        let engine = engine(path, 37);
        seen.insert(engine.decoder().spec().architecture);
        let (found, _) = traced(&engine, &file);
        assert_f32(&format!("{name} from GGUF"), &found, &expected(name, ""));
        let (_, mut cache) = prefill(&engine, &file.tokens[..100], 1);
        let (whole, _) = prefill(&engine, &file.tokens, 51);
        let difference = apart(&decode(&engine, &mut cache, &file.tokens[100..]), &whole);
        assert!(difference < SAME, "{name} from GGUF: decoding is off by {difference:e}");
    }
    let named = ARCHITECTURES.iter().filter(|architecture| architecture.gguf.is_some());
    let lacking: Vec<&str> =
        named.map(|architecture| architecture.hf[0]).filter(|name| !seen.contains(name)).collect();
    assert!(lacking.is_empty(), "architectures without a converted file: {lacking:?}");
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
    for (dtype, tied, hidden) in [
        (GgmlDType::Q4_0, true, 64),
        (GgmlDType::Q4_1, false, 64),
        (GgmlDType::Q5_0, false, 64),
        (GgmlDType::Q5_1, true, 64),
        (GgmlDType::Q8_0, true, 64),
        (GgmlDType::Q2K, true, 256),
        (GgmlDType::Q3K, false, 256),
        (GgmlDType::Q4K, false, 256),
        (GgmlDType::Q5K, true, 256),
        (GgmlDType::Q6K, false, 256),
        (GgmlDType::F16, false, 64),
    ] {
        let model = Llama::random(hidden, tied, false);
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
fn a_model_of_which_only_quantised_weights_are_kept_gives_the_same_bits_in_prefill_and_decoding() {
    let dir = tempfile::tempdir().unwrap();
    for (dtype, tied, hidden) in
        [(GgmlDType::Q4_1, true, 64), (GgmlDType::Q4_0, false, 64), (GgmlDType::Q6K, false, 256)]
    {
        let model = Llama::random(hidden, tied, false);
        let path = model.write_gguf(&dir.path().join("model.gguf"), dtype);
        let results = [Kept::Dense, Kept::Quantised].map(|kept| {
            let model = OpenModel::open(std::slice::from_ref(&path)).unwrap().keeping(kept);
            let engine = Engine::new(model.load(&Device::Cpu, DType::F32).unwrap(), 16);
            let (logits, mut cache) = prefill(&engine, &tokens()[..44], 16);
            (logits, decode(&engine, &mut cache, &tokens()[44..]))
        });
        assert!(results[0] == results[1], "{dtype:?}");
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
        let logits = engine.prefill(&mut cache, &tokens(), 1, &mut NoObserver, &mut |_| true).unwrap();
        let difference = apart(&super::numbers(&logits), &expected);
        assert!(difference < tolerance, "{dtype:?}: off by {difference}");
        let logits = logits.squeeze(0).unwrap();
        let how = (&greedy(8), &[][..]);
        let generated = engine.decode(&mut cache, &logits, how, &mut NoObserver, &mut |_| true).unwrap();
        assert_eq!(generated.tokens.len(), 8);
    }
}
