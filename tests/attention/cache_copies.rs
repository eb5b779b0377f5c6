//! Decoding copies neither the KV cache nor a weight: no allocation is that large. rehearsal/results.md has the CUDA counterpart, the kernels and
//! copies per generated token.

use candle_core::{DType, Device};
use palimpsest_core::attention::NoObserver;
use palimpsest_core::model::{OpenModel, Phase};

use crate::fuzz::allocator::largest_of;
use crate::parity::fixture;

#[test]
fn a_token_is_decoded_without_a_copy_of_the_cache_or_of_a_weight() {
    let before = 2000;
    let tokens: Vec<u32> = (0..before + 2).map(|i| (i * 37 + i / 7 + 11) % 250).collect();
    let before = before as usize;
    for name in ["llama-tiny", "qwen3-tiny", "gemma3-tiny", "gemma4-tiny", "gpt-oss-tiny", "qwen35-text-tiny"]
    {
        let decoder = OpenModel::open(&[fixture(name)]).unwrap().load(&Device::Cpu, DType::F32).unwrap();
        let mut cache = decoder.cache(tokens.len()).unwrap();
        decoder.fill_cache(&tokens[..before], &mut cache, &mut NoObserver).unwrap();
        // The first token creates tables and buffers.
        let mut decode = |token| decoder.forward(&[token], 1, &mut cache, Phase::Decode, &mut NoObserver);
        decode(tokens[before]).unwrap();
        let (hidden, largest) = largest_of(|| decode(tokens[before + 1]));
        hidden.unwrap();
        let attentions = decoder.spec().layers.iter().filter_map(|layer| layer.attention());
        for attention in attentions.filter(|a| a.window.is_none()) {
            let keys = attention.kv_heads * before * attention.head_dim * DType::F32.size_in_bytes();
            assert!(largest < keys / 2, "{name}: {largest} bytes at once, keys are {keys}");
            // The largest buffer: one score per head and key.
            let scores = attention.heads * (before + 2) * DType::F32.size_in_bytes();
            assert!(largest <= scores, "{name}: {largest} bytes at once, scores are {scores}");
        }
    }
}
