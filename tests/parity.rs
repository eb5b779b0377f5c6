//! Parity with Hugging Face transformers, and of the engine with itself.

mod bad_models;
mod batch;
pub mod checkpoint;
mod compare;
mod cuts;
mod each;
mod evict;
mod evictions;
mod facade;
mod formats;
mod gguf;
mod heads;
pub mod induction;
mod knockout;
mod measures;
mod nvfp4;
mod own_text;
pub mod reference;
mod released;
pub mod routes;
mod selected;
mod serving;
pub mod subject;
mod thread;
mod trace;

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use palimpsest::chat::Sampling;
use palimpsest_core::attention::NoObserver;
use palimpsest_core::engine::memory_plan::Branches;
use palimpsest_core::engine::thread::Limits;
use palimpsest_core::engine::{Engine, Generate, Session, Task};
use palimpsest_core::model::{Cache, OpenModel, Phase};

/// Checkpoints made by `tests/reference/hf_reference.py tiny`, of every architecture and released layout.
pub const TINY: [&str; 50] = [
    "llama-tiny",
    "llama3-rope-tiny",
    "llama-old-config-tiny",
    "smollm3-tiny",
    "qwen2-tiny",
    "qwen2-sharded-tiny",
    "qwen3-tiny",
    "qwen3-moe-tiny",
    "qwen3-moe-unnormalised-tiny",
    "qwen35-text-tiny",
    "qwen35-nested-tiny",
    "qwen35-moe-text-tiny",
    "qwen35-moe-nested-tiny",
    "qwen3-next-tiny",
    "gpt-oss-tiny",
    "gpt-oss-mxfp4-tiny",
    "glm4-moe-tiny",
    "glm4-moe-qk-norm-tiny",
    "minimax-m2-tiny",
    "minimax-m2-fp8-tiny",
    "gemma3-tiny",
    "gemma3-nested-tiny",
    "gemma4-tiny",
    "gemma4-moe-nested-tiny",
    "gemma4-unified-nested-tiny",
    "mistral-tiny",
    "mistral3-nested-tiny",
    "phi3-tiny",
    "phi3-longrope-tiny",
    "granite-tiny",
    "olmo3-tiny",
    "olmo3-old-config-tiny",
    "exaone4-tiny",
    "exaone4-global-tiny",
    "lfm2-tiny",
    "lfm2-old-config-tiny",
    "lfm2-moe-tiny",
    "lfm3-tiny",
    "lfm3-ungated-tiny",
    "granite-hybrid-tiny",
    "granite-hybrid-moe-tiny",
    "granite-hybrid-dense-tiny",
    "nemotron-h-tiny",
    "nemotron-h-moe-tiny",
    "deepseek-v2-tiny",
    "deepseek-v3-tiny",
    "glm4-moe-lite-tiny",
    "mistral4-nested-tiny",
    "deepseek-v32-tiny",
    "glm-moe-dsa-tiny",
];
/// The llama architecture.
pub const LLAMA: [&str; 2] = [TINY[0], TINY[1]];

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub fn engine_in(path: &Path, chunk: usize, dtype: DType) -> Engine {
    engine_of(path, chunk, (dtype, None))
}

/// Dtype of weights and products, and of the KV cache if different.
pub type Formats = (DType, Option<DType>);

/// All CPU combinations with f32 or bf16 products.
pub const FORMATS: [Formats; 5] = [
    (DType::F32, None),
    (DType::F32, Some(DType::BF16)),
    (DType::F32, Some(DType::F16)),
    (DType::BF16, None),
    (DType::BF16, Some(DType::F32)),
];

/// Every kind of layer and of weights, for tests in all formats.
pub const OF_ALL_KINDS: [&str; 10] = [
    "llama-tiny",
    "gemma3-tiny",
    "gemma4-tiny",
    "gpt-oss-tiny",
    "qwen35-text-tiny",
    "deepseek-v2-tiny",
    "deepseek-v32-tiny",
    "gguf-llama",
    "gguf-gemma3",
    "gguf-gpt-oss-mxfp4",
];

/// Models with their formats: all formats for [`OF_ALL_KINDS`], f32 for the others.
pub fn in_formats<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<(&'a str, Formats)> {
    let of = |name: &'a str| {
        let formats = if OF_ALL_KINDS.contains(&name) { &FORMATS[..] } else { &FORMATS[..1] };
        formats.iter().map(move |&formats| (name, formats))
    };
    names.into_iter().flat_map(of).collect()
}

pub fn engine_of(path: &Path, chunk: usize, (dtype, cache): Formats) -> Engine {
    let model = OpenModel::open(&[path.to_owned()]).unwrap().caching_in(cache);
    Engine::new(model.load(&Device::Cpu, dtype).unwrap(), chunk)
}

pub fn engine(path: &Path, chunk: usize) -> Engine {
    engine_in(path, chunk, DType::F32)
}

/// Logits of the last `keep` positions, and the cache with room for 80 more tokens.
pub fn prefill(engine: &Engine, tokens: &[u32], keep: usize) -> (Vec<f32>, Cache) {
    let mut cache = engine.decoder().cache(tokens.len() + 80).unwrap();
    let logits = engine.prefill(&mut cache, tokens, keep, &mut NoObserver, &mut |_| true).unwrap();
    (numbers(&logits), cache)
}

/// Logits after each of `tokens`, decoded one at a time.
pub fn decode(engine: &Engine, cache: &mut Cache, tokens: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    for &token in tokens {
        let decoder = engine.decoder();
        let hidden = decoder.forward(&[token], 1, cache, Phase::Decode, &mut NoObserver).unwrap();
        logits.extend(numbers(&decoder.logits(&hidden, Phase::Decode).unwrap()));
    }
    logits
}

/// A session with a cache of `context` tokens that generates `count` answers of up to `tokens` tokens together.
pub fn session(engine: &Engine, context: usize, (count, tokens): (usize, usize)) -> Session {
    let cache = engine.decoder().cache(context).unwrap();
    Session::new(engine.clone(), cache, Limits::of_branches(context, Branches { count, tokens }))
}

/// A greedy answer of at most `max_new_tokens` tokens that ends at a token of `stop`.
pub fn answering(max_new_tokens: usize, stop: &[u32]) -> Task {
    Task::Generate(Box::new(Generate::new(greedy(max_new_tokens), stop.to_vec())))
}

pub fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Maximum absolute difference; NaN on either side counts as infinite.
pub fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most, x| if x.is_nan() { f32::INFINITY } else { most.max(x) })
}

pub fn greedy(max_new_tokens: usize) -> Sampling {
    Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens }
}
