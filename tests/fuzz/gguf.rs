//! GGUF files, mutated and generated.

use std::path::Path;

use candle_core::{DType, Device};
use palimpsest_core::model::arch;
use palimpsest_core::model::weights::GgufFile;
use palimpsest_core::model::weights::gguf::Header;
use palimpsest_core::model::weights::gguf_tokenizer::tokenizer_fields;
use proptest::prelude::*;

use super::allocator::largest_of;
use super::{apply, cases, edits};
use crate::models::gguf_bytes::{Gguf, Meta, Tensor};

/// A valid file with typical contents: llama sizes, a vocabulary, an expert stack in MXFP4, a weight in IQ1_S.
fn valid() -> Vec<u8> {
    let mut gguf = Gguf::small();
    for (key, number) in [
        ("llama.embedding_length", 8),
        ("llama.context_length", 64),
        ("llama.feed_forward_length", 32),
        ("llama.attention.head_count", 2),
        ("llama.attention.head_count_kv", 1),
        ("general.alignment", 32),
    ] {
        gguf.metadata.push((key, Meta::U32(number)));
    }
    gguf.metadata.push(("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5)));
    gguf.tensors.push(Tensor { name: "stack", dims: vec![32, 1, 2], code: 39, offset: 64 });
    gguf.tensors.push(Tensor { name: "token_embd.weight", dims: vec![8, 3], code: 1, offset: 128 });
    gguf.tensors.push(Tensor { name: "small", dims: vec![256, 1], code: 19, offset: 192 });
    gguf.data.resize(192 + 50, 0);
    gguf.bytes()
}

fn check_header(bytes: &[u8]) -> Result<(), TestCaseError> {
    let (parsed, largest) = largest_of(|| Header::parse(bytes, Path::new("fuzz.gguf")));
    // Every item in memory corresponds to bytes of the file; hash tables round up.
    prop_assert!(largest <= 64 * bytes.len().max(256), "{largest} bytes at once");
    if let Ok(header) = parsed {
        for tensor in &header.tensors {
            prop_assert!(tensor.range.start <= tensor.range.end && tensor.range.end <= bytes.len());
        }
    }
    Ok(())
}

#[test]
fn the_file_that_is_mutated_is_valid() {
    assert_eq!(Header::parse(&valid(), Path::new("fuzz.gguf")).unwrap().tensors.len(), 5);
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_mutated_header_panics_or_allocates_absurdly(edits in edits()) {
        let mut bytes = valid();
        apply(&mut bytes, &edits);
        check_header(&bytes)?;
    }

    #[test]
    fn no_random_bytes_after_the_magic_panic_or_allocate_absurdly(
        version in 2..=3u32,
        counts in prop::option::of((0..4u64, 0..4u64)),
        rest in prop::collection::vec(any::<u8>(), 0..512),
    ) {
        let mut bytes = [b"GGUF".as_slice(), &version.to_le_bytes()].concat();
        if let Some((tensors, metadata)) = counts {
            bytes.extend([tensors, metadata].into_iter().flat_map(u64::to_le_bytes));
        }
        bytes.extend(rest);
        check_header(&bytes)?;
    }

    #[test]
    fn no_mutated_file_makes_its_reader_the_tokenizer_fields_or_the_architecture_panic(edits in edits()) {
        let mut bytes = valid();
        apply(&mut bytes, &edits);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fuzz.gguf");
        std::fs::write(&path, &bytes).unwrap();
        let ((), largest) = largest_of(|| {
            let Ok(file) = GgufFile::open(&[&path]) else { return };
            let _ = tokenizer_fields(&file);
            let _ = arch::from_gguf(&file, "fuzz.gguf");
            for info in file.tensors() {
                let _ = file.tensor(&info.name, &Device::Cpu, DType::F32);
                let _ = file.tensor_part(&info.name, info.shape[0] - 1, &Device::Cpu, DType::F32);
            }
        });
        // A block of 18 bytes becomes 32 numbers of 4 bytes; a layer description is larger than the number that requests it.
        prop_assert!(largest <= 8 << 20, "{largest} bytes at once");
    }
}
