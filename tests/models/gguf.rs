//! GGUF: contents are read back, and faults are rejected by name.

use std::path::{Path, PathBuf};

use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::{DType, Device};
use palimpsest_core::model::weights::gguf::{BlockType, GgufError, GgufFile, Header, split_parts};
use palimpsest_core::model::weights::gguf_tokenizer::tokenizer_fields;

use super::blocks::{bytes, floats, reference};
use super::gguf_bytes::{Gguf, Meta, Tensor};

fn parse(gguf: &Gguf) -> Result<Header, GgufError> {
    Header::parse(&gguf.bytes(), Path::new("test.gguf"))
}

/// Error message for a modified small file.
fn refusal(change: impl FnOnce(&mut Gguf)) -> String {
    let mut gguf = Gguf::small();
    change(&mut gguf);
    let message = parse(&gguf).expect_err("the file is wrong").to_string();
    assert!(message.contains("test.gguf"), "the message names the file: {message}");
    message
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn values_and_tensors_come_out_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    for version in [2, 3] {
        let mut gguf = Gguf::small();
        gguf.version = version;
        let path = write(dir.path(), "small.gguf", &gguf.bytes());
        let file = GgufFile::open(&[&path]).unwrap();
        assert_eq!(file.architecture().unwrap(), "llama");
        assert_eq!(file.require::<u32>("llama.block_count").unwrap(), 2);
        assert_eq!(file.require::<usize>("llama.block_count").unwrap(), 2);
        assert_eq!(file.require::<f32>("llama.rope.freq_base").unwrap(), 10_000.0);
        assert_eq!(file.require::<&[String]>("tokenizer.ggml.tokens").unwrap(), ["a", "b", "ab"]);
        assert_eq!(file.get::<u32>("llama.absent").unwrap(), None);

        let info = file.tensor_info("plain").unwrap();
        assert_eq!((info.shape.as_slice(), info.dtype), (&[2, 4][..], BlockType::F32));
        let plain = file.tensor("plain", &Device::Cpu, DType::F32).unwrap();
        assert_eq!(plain.to_vec2::<f32>().unwrap(), [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]);
        assert_eq!(file.tensor_bytes("packed").unwrap().len(), 18);
        assert_eq!(file.tensor("packed", &Device::Cpu, DType::F32).unwrap().dims(), [32]);
    }
}

#[test]
fn a_missing_or_mistyped_key_and_a_missing_tensor_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "small.gguf", &Gguf::small().bytes());
    let file = GgufFile::open(&[&path]).unwrap();
    assert!(file.require::<u32>("llama.absent").unwrap_err().to_string().contains("\"llama.absent\""));
    let error = file.require::<u32>("general.architecture").unwrap_err().to_string();
    assert!(error.contains("the text \"llama\"") && error.contains("an integer"), "{error}");
    assert!(file.tensor_bytes("absent").unwrap_err().to_string().contains("no tensor \"absent\""));
}

#[test]
fn an_integer_out_of_range_is_refused_not_wrapped() {
    let mut gguf = Gguf::small();
    gguf.metadata.push(("big", Meta::Raw(10, (1_u64 << 40).to_le_bytes().to_vec())));
    gguf.metadata.push(("negative", Meta::Raw(5, (-1_i32).to_le_bytes().to_vec())));
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "small.gguf", &gguf.bytes());
    let file = GgufFile::open(&[&path]).unwrap();
    assert!(file.require::<u32>("big").unwrap_err().to_string().contains("is the integer 1099511627776"));
    assert_eq!(file.require::<u64>("big").unwrap(), 1 << 40);
    assert!(file.require::<u32>("negative").unwrap_err().to_string().contains("is the integer -1"));
    assert_eq!(file.require::<i32>("negative").unwrap(), -1);
}

#[test]
fn a_file_of_another_kind_or_version_is_refused_by_name() {
    assert!(refusal(|gguf| gguf.magic = *b"PK\x03\x04").contains("not a GGUF file"));
    assert!(refusal(|gguf| gguf.version = 1).contains("version 1 (of August 2023"));
    assert!(refusal(|gguf| gguf.version = 4).contains("version 4"));
    assert!(refusal(|gguf| gguf.version = 3_u32.swap_bytes()).contains("big-endian"));
    let empty = Header::parse(&[], Path::new("test.gguf")).unwrap_err();
    assert!(empty.to_string().contains("not a GGUF file"));
}

#[test]
fn counts_that_cannot_fit_are_refused_before_anything_is_allocated() {
    assert!(
        refusal(|gguf| gguf.tensor_count = Some(u64::MAX)).contains("claims 18446744073709551615 tensors")
    );
    assert!(refusal(|gguf| gguf.metadata_count = Some(1 << 50)).contains("metadata values"));
    let huge_array = [8_u32.to_le_bytes().as_slice(), (1_u64 << 60).to_le_bytes().as_slice()].concat();
    assert!(
        refusal(|gguf| gguf.metadata.push(("huge", Meta::Raw(9, huge_array)))).contains("elements of huge")
    );
    let huge_text = (1_u64 << 62).to_le_bytes().to_vec();
    assert!(
        refusal(|gguf| gguf.metadata.push(("long", Meta::Raw(8, huge_text)))).contains("cut short: long")
    );
}

#[test]
fn faulty_metadata_is_refused_with_its_key() {
    assert!(
        refusal(|gguf| gguf.metadata.push(("odd", Meta::Raw(13, vec![]))))
            .contains("\"odd\" has the unknown type 13")
    );
    assert!(refusal(|gguf| gguf.metadata.push(("maybe", Meta::Raw(7, vec![2])))).contains("neither 0 nor 1"));
    assert!(
        refusal(|gguf| gguf.metadata.push(("llama.block_count", Meta::U32(3)))).contains("appears twice")
    );
    let not_utf8 = [2_u64.to_le_bytes().as_slice(), &[0xff, 0xfe]].concat();
    assert!(
        refusal(|gguf| gguf.metadata.push(("bytes", Meta::Raw(8, not_utf8))))
            .contains("bytes is not valid UTF-8")
    );
    let one_array = [9_u32.to_le_bytes().as_slice(), 1_u64.to_le_bytes().as_slice()].concat();
    let nested = [one_array.repeat(50), vec![0; 12]].concat();
    assert!(refusal(|gguf| gguf.metadata.push(("deep", Meta::Raw(9, nested)))).contains("nests arrays"));
    for alignment in [0, 1, 12, 1 << 20] {
        let message = refusal(|gguf| gguf.metadata.push(("general.alignment", Meta::U32(alignment))));
        assert!(message.contains(&format!("general.alignment is {alignment}")), "{message}");
    }
}

#[test]
fn faulty_tensors_are_refused_with_their_name() {
    let tensor = |dims: &[u64], code, offset| {
        let added = Tensor { name: "added", dims: dims.to_vec(), code, offset };
        refusal(|gguf| gguf.tensors.push(added))
    };
    assert!(tensor(&[4], 0, 1 << 40).contains("cut short: tensor \"added\""));
    assert!(tensor(&[4], 0, u64::MAX - 31).contains("cut short: tensor \"added\""));
    assert!(tensor(&[4], 0, 4).contains("not a multiple of the alignment 32"));
    assert!(tensor(&[4096], 0, 0).contains("needs 16384 bytes"));
    assert!(tensor(&[1 << 40, 1 << 40], 0, 0).contains("impossible shape"));
    assert!(tensor(&[33], 2, 0).contains("not a multiple of the 32 in a Q4_0 block"));
    assert!(tensor(&[0], 0, 0).contains("a dimension of length 0"));
    assert!(tensor(&[], 0, 0).contains("0 dimensions"));
    assert!(tensor(&[1; 5], 0, 0).contains("5 dimensions"));
    let unreadable = tensor(&[32], 41, 0);
    assert!(unreadable.contains("type 41 (Q1_0)") && unreadable.contains("Q4_0"), "{unreadable}");
    assert!(tensor(&[32], 999, 0).contains("type 999,"));
    assert!(tensor(&[48], 39, 0).contains("not a multiple of the 32 in a MXFP4 block"));
    assert!(refusal(|gguf| gguf.tensors[1].name = "plain").contains("tensor \"plain\" appears twice"));
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = Gguf::small().bytes();
    for length in 0..bytes.len() {
        assert!(Header::parse(&bytes[..length], Path::new("test.gguf")).is_err(), "cut to {length} bytes");
    }
    assert!(Header::parse(&bytes, Path::new("test.gguf")).is_ok());
}

#[test]
fn every_type_that_cannot_be_read_is_refused_by_name_with_those_that_can() {
    for (code, name) in [(9, "Q8_1"), (15, "Q8_K"), (41, "Q1_0")] {
        let message = refusal(|gguf| gguf.tensors[1].code = code);
        let parts = [&format!("\"packed\" is stored as type {code} ({name})"), "Q2_K to Q6_K", "MXFP4"];
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

/// Readable GGUF type codes.
const CODES: [(u32, BlockType); 26] = [
    (0, BlockType::F32),
    (1, BlockType::F16),
    (2, BlockType::Q4_0),
    (3, BlockType::Q4_1),
    (6, BlockType::Q5_0),
    (7, BlockType::Q5_1),
    (8, BlockType::Q8_0),
    (10, BlockType::Q2K),
    (11, BlockType::Q3K),
    (12, BlockType::Q4K),
    (13, BlockType::Q5K),
    (14, BlockType::Q6K),
    (30, BlockType::BF16),
    (39, BlockType::Mxfp4),
    (19, BlockType::IQ1_S),
    (29, BlockType::IQ1_M),
    (16, BlockType::IQ2_XXS),
    (17, BlockType::IQ2_XS),
    (22, BlockType::IQ2_S),
    (18, BlockType::IQ3_XXS),
    (21, BlockType::IQ3_S),
    (20, BlockType::IQ4_NL),
    (23, BlockType::IQ4_XS),
    (34, BlockType::TQ1_0),
    (35, BlockType::TQ2_0),
    (40, BlockType::NVFP4),
];

#[test]
fn a_stack_of_any_type_is_read_whole_or_entry_by_entry_with_the_same_values() {
    let dir = tempfile::tempdir().unwrap();
    let reference = reference();
    for (code, dtype) in CODES {
        let (blocks, values) = {
            let of_type = &reference["ggml"][dtype.name()];
            (bytes(&of_type["blocks"]), floats(&of_type["values"]))
        };
        // Two experts: the blocks, and the blocks again with the first and last swapped.
        let size = dtype.bytes();
        let mut other = blocks.clone();
        let (first, rest) = other.split_at_mut(size);
        let last = rest.len() - size;
        first.swap_with_slice(&mut rest[last..]);
        let rows = if dtype.is_dense() { 4 } else { blocks.len() / size };
        let cols = values.len() / rows;

        let mut gguf = Gguf::small();
        gguf.data = [blocks, other.clone()].concat();
        let dims = vec![cols as u64, rows as u64, 2];
        gguf.tensors = vec![Tensor { name: "stack", dims, code, offset: 0 }];
        let file = GgufFile::open(&[&write(dir.path(), "stack.gguf", &gguf.bytes())]).unwrap();
        let info = file.tensor_info("stack").unwrap();
        assert_eq!((info.shape.as_slice(), info.dtype), (&[2, rows, cols][..], dtype));

        assert_eq!(file.part_bytes("stack", 1).unwrap(), other);
        let numbers = |tensor: candle_core::Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let whole = numbers(file.tensor("stack", &Device::Cpu, DType::F32).unwrap());
        let parts = [0, 1].map(|index| file.tensor_part("stack", index, &Device::Cpu, DType::F32).unwrap());
        assert_eq!(parts[1].dims(), [rows, cols]);
        assert_eq!(whole, parts.map(numbers).concat(), "{dtype:?}");
        assert_eq!(whole[..values.len()], values, "{dtype:?}");
        // Compare with Candle's dequantisation, for the types it supports.
        if let Some(known) = dtype.candle() {
            let bytes = file.tensor_bytes("stack").unwrap();
            let theirs = qtensor_from_ggml(known, bytes, vec![2, rows, cols], &Device::Cpu).unwrap();
            assert_eq!(numbers(theirs.dequantize(&Device::Cpu).unwrap()), whole, "{dtype:?}");
        }
        let error = file.tensor_part("stack", 2, &Device::Cpu, DType::F32).unwrap_err().to_string();
        assert!(error.contains("\"stack\"") && error.contains("no entry 2"), "{error}");
    }
}

#[test]
fn a_vector_has_no_entries() {
    let dir = tempfile::tempdir().unwrap();
    let file = GgufFile::open(&[&write(dir.path(), "small.gguf", &Gguf::small().bytes())]).unwrap();
    assert!(file.part_bytes("packed", 0).unwrap_err().to_string().contains("no entry 0"));
}

/// Two parts of a split file.
fn split() -> [Gguf; 2] {
    let tagged = |number: u32, name| {
        let mut gguf = Gguf::small();
        gguf.metadata.push(("split.count", Meta::Raw(2, 2_u16.to_le_bytes().to_vec())));
        gguf.metadata.push(("split.no", Meta::Raw(2, (number as u16).to_le_bytes().to_vec())));
        gguf.metadata.push(("split.tensors.count", Meta::Raw(5, 2_i32.to_le_bytes().to_vec())));
        gguf.tensors.truncate(1);
        gguf.tensors[0].name = name;
        gguf
    };
    [tagged(0, "first"), tagged(1, "second")]
}

#[test]
fn a_split_file_is_found_whole_from_any_part() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = split();
    let paths = [
        write(dir.path(), "m-00001-of-00002.gguf", &first.bytes()),
        write(dir.path(), "m-00002-of-00002.gguf", &second.bytes()),
    ];
    for path in &paths {
        assert_eq!(split_parts(path).unwrap(), paths);
        let file = GgufFile::open(&[path]).unwrap();
        assert_eq!(file.tensors().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(file.tensor_bytes("second").unwrap().len(), 32);
    }
}

#[test]
fn later_parts_need_only_their_split_metadata_and_the_first_needs_no_tensors() {
    // As written by llama.cpp's gguf-split, the first with --no-tensor-first-split.
    let dir = tempfile::tempdir().unwrap();
    let [mut first, second] = split();
    first.tensors.clear();
    first.data.clear();
    let mut parts = [first, second.clone(), second];
    parts[2].tensors[0].name = "third";
    for (number, part) in parts.iter_mut().enumerate() {
        part.metadata.retain(|(key, _)| number == 0 || key.starts_with("split."));
        for (key, value) in &mut part.metadata {
            match *key {
                "split.count" => *value = Meta::Raw(2, 3_u16.to_le_bytes().to_vec()),
                "split.no" => *value = Meta::Raw(2, (number as u16).to_le_bytes().to_vec()),
                _ => {}
            }
        }
        write(dir.path(), &format!("Some-Model-8B.Q4_K_M-{:05}-of-00003.gguf", number + 1), &part.bytes());
    }
    let file = GgufFile::open(&[dir.path().join("Some-Model-8B.Q4_K_M-00002-of-00003.gguf")]).unwrap();
    assert_eq!(file.paths().count(), 3);
    assert_eq!(file.architecture().unwrap(), "llama");
    assert_eq!(file.tensors().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["second", "third"]);
    assert_eq!(file.tensor("third", &Device::Cpu, DType::F32).unwrap().dims(), [2, 4]);
}

#[test]
fn a_split_file_with_a_missing_double_or_misplaced_part_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = split();
    let one = write(dir.path(), "m-00001-of-00002.gguf", &first.bytes());
    assert!(GgufFile::open(&[&one]).unwrap_err().to_string().contains("part 2 of 2 is missing"));
    let alone = write(dir.path(), "renamed.gguf", &first.bytes());
    assert!(GgufFile::open(&[&alone]).unwrap_err().to_string().contains("one of 2, but 1 were given"));
    let two = write(dir.path(), "m-00002-of-00002.gguf", &second.bytes());
    assert!(GgufFile::open(&[&two, &one]).unwrap_err().to_string().contains("stands at place 1"));
    let [_, mut same] = split();
    same.tensors[0].name = "first";
    let two = write(dir.path(), "m-00002-of-00002.gguf", &same.bytes());
    assert!(
        GgufFile::open(&[&one, &two]).unwrap_err().to_string().contains("tensor \"first\" appears twice")
    );
}

#[test]
fn the_tokenizer_fields_come_out_and_faulty_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = |gguf: &Gguf| GgufFile::open(&[write(dir.path(), "t.gguf", &gguf.bytes())]).unwrap();
    let fields = tokenizer_fields(&open(&Gguf::small())).unwrap();
    assert_eq!((fields.model.as_str(), fields.tokens.len(), fields.merges.len()), ("gpt2", 3, 1));
    assert_eq!((fields.bos, fields.eos, fields.chat_template), (Some(1), None, None));

    let mut short = Gguf::small();
    let one_type = [5_u32.to_le_bytes().as_slice(), &1_u64.to_le_bytes(), &1_i32.to_le_bytes()].concat();
    short.metadata.push(("tokenizer.ggml.token_type", Meta::Raw(9, one_type)));
    assert!(tokenizer_fields(&open(&short)).unwrap_err().to_string().contains("1 entries for 3 tokens"));
}
