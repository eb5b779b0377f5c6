//! Safetensors folders: single-file, sharded, and every fault.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use palimpsest_core::model::weights::safetensors::{INDEX_FILE, SafetensorsFolder};
use safetensors::tensor::{Dtype, TensorView};

use super::blocks::{bytes, floats, reference};

/// A shard with one f32 tensor [2] per name, with elements 1 and 2.
fn shard(names: &[&str]) -> Vec<u8> {
    let data: Vec<u8> = [1.0_f32, 2.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    let views = names.iter().map(|name| (*name, TensorView::new(Dtype::F32, vec![2], &data).unwrap()));
    safetensors::tensor::serialize(views, None).unwrap()
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), bytes).unwrap();
}

fn refusal(dir: &Path) -> String {
    SafetensorsFolder::open(dir).expect_err("the folder is wrong").to_string()
}

const INDEX: &str = r#"{"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;

#[test]
fn a_single_file_gives_its_tensors_in_the_type_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "model.safetensors", shard(&["a", "b"]));
    let folder = SafetensorsFolder::open(dir.path()).unwrap();
    assert_eq!(folder.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((folder.shape("a"), folder.dtype("a")), (Some(&[2][..]), Some(Dtype::F32)));
    let tensor = folder.tensor("b", &Device::Cpu, DType::BF16).unwrap();
    assert_eq!(tensor.dtype(), DType::BF16);
    assert_eq!(tensor.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap(), [1.0, 2.0]);
    let error = folder.tensor("c", &Device::Cpu, DType::F32).unwrap_err().to_string();
    assert!(error.contains("no tensor \"c\""), "{error}");
}

#[test]
fn shards_are_read_with_an_index_and_without() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "one.safetensors", shard(&["a"]));
    write(dir.path(), "two.safetensors", shard(&["b"]));
    for index in [None, Some(INDEX)] {
        if let Some(index) = index {
            write(dir.path(), INDEX_FILE, index);
        }
        let folder = SafetensorsFolder::open(dir.path()).unwrap();
        assert_eq!(folder.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(folder.paths().count(), 2);
        let tensor = folder.tensor("b", &Device::Cpu, DType::F32).unwrap();
        assert_eq!(tensor.to_vec1::<f32>().unwrap(), [1.0, 2.0]);
    }
}

#[test]
fn a_folder_without_weights_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refusal(dir.path()).contains("holds no *.safetensors"));
}

#[test]
fn an_index_that_names_a_missing_shard_is_refused_with_shard_and_tensor() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), INDEX_FILE, INDEX);
    write(dir.path(), "one.safetensors", shard(&["a"]));
    let message = refusal(dir.path());
    assert!(message.contains("\"two.safetensors\"") && message.contains("\"b\""), "{message}");
}

#[test]
fn an_index_that_disagrees_with_its_shards_or_leads_outside_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "one.safetensors", shard(&["a"]));
    write(dir.path(), "two.safetensors", shard(&["c"]));
    write(dir.path(), INDEX_FILE, INDEX);
    assert!(refusal(dir.path()).contains("places the tensor \"b\" in \"two.safetensors\""));
    write(dir.path(), INDEX_FILE, r#"{"weight_map": {"a": "../one.safetensors"}}"#);
    assert!(refusal(dir.path()).contains("not the name of a file in its folder"));
    write(dir.path(), INDEX_FILE, r#"{"weight_map": {}}"#);
    assert!(refusal(dir.path()).contains("weight_map is empty"));
    write(dir.path(), INDEX_FILE, "not json");
    assert!(refusal(dir.path()).contains("no index"));
}

#[test]
fn a_tensor_in_two_shards_is_refused_with_both_files() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "one.safetensors", shard(&["a", "b"]));
    write(dir.path(), "two.safetensors", shard(&["b"]));
    let message = refusal(dir.path());
    assert!(message.contains("one.safetensors") && message.contains("two.safetensors"), "{message}");
}

/// A file with the single-element tensor `a`.
fn one(number: f32) -> Vec<u8> {
    let data = number.to_le_bytes();
    let view = TensorView::new(Dtype::F32, vec![1], &data).unwrap();
    safetensors::tensor::serialize([("a", view)], None).unwrap()
}

#[test]
fn of_two_sets_of_weights_one_is_taken_and_told_where_they_agree_and_none_where_they_differ() {
    const SINGLE: &str = "model.safetensors";
    const SHARD: &str = "model-00001-of-00001.safetensors";
    const INDEX: &str = r#"{"weight_map": {"a": "model-00001-of-00001.safetensors"}}"#;
    const COPY: &str = "consolidated.safetensors";
    const SIDE: &str = "model-mtp.safetensors";
    // Files with their number, whether there is an index, and the expected file; `None` if ambiguous.
    for (files, indexed, taken) in [
        (&[(SINGLE, 1.0)][..], false, Some(SINGLE)),
        (&[(SHARD, 1.0)], true, Some(SHARD)),
        (&[(SHARD, 1.0)], false, Some(SHARD)),
        // transformers reads the single file, most others the index.
        (&[(SINGLE, 2.0), (SHARD, 1.0)], true, None),
        (&[(SINGLE, 2.0), (SHARD, 1.0)], false, None),
        (&[(SINGLE, 1.0), (SHARD, 1.0)], true, Some(SHARD)),
        (&[(SINGLE, 1.0), (SHARD, 1.0)], false, Some(SINGLE)),
        // Saved again as one file, with the old index left behind.
        (&[(SINGLE, 1.0)], true, Some(SINGLE)),
        // Files with the makers' own names (mlx-vlm, vllm 40765), and beside the model (mlx-vlm 1192, mlx-swift-lm 408).
        (&[(COPY, 2.0), (SHARD, 1.0)], true, Some(SHARD)),
        (&[(COPY, 2.0), (SHARD, 1.0)], false, Some(SHARD)),
        (&[(COPY, 2.0), (SINGLE, 1.0)], false, Some(SINGLE)),
        (&[(COPY, 1.0)], false, Some(COPY)),
        (&[(SIDE, 2.0), (SHARD, 1.0)], true, Some(SHARD)),
        (&[("adapter_model.safetensors", 2.0), (SINGLE, 1.0)], false, Some(SINGLE)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, number)| write(dir.path(), name, one(*number)));
        if indexed {
            write(dir.path(), INDEX_FILE, INDEX);
        }
        let Some(taken) = taken else {
            let message = refusal(dir.path());
            assert!(
                message.contains(SINGLE) && message.contains(SHARD) && message.contains("\"a\""),
                "{message}"
            );
            continue;
        };
        let folder = SafetensorsFolder::open(dir.path()).unwrap();
        let number = folder.tensor("a", &Device::Cpu, DType::F32).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(number, [1.0], "{files:?}");
        let left: Vec<&str> = files.iter().map(|(name, _)| *name).filter(|name| *name != taken).collect();
        assert_eq!(folder.left().collect::<Vec<_>>(), left, "{files:?}");
    }
    // A truncated file is not a second model.
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), SINGLE, &one(2.0)[..20]);
    write(dir.path(), SHARD, one(1.0));
    write(dir.path(), INDEX_FILE, INDEX);
    assert_eq!(SafetensorsFolder::open(dir.path()).unwrap().left().collect::<Vec<_>>(), [SINGLE]);
}

#[test]
fn every_truncation_and_a_header_longer_than_the_file_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let whole = shard(&["a", "b"]);
    for length in 0..whole.len() {
        write(dir.path(), "model.safetensors", &whole[..length]);
        assert!(refusal(dir.path()).contains("model.safetensors is not a complete safetensors file"));
    }
    for claim in [whole.len() as u64, 1 << 20, u64::MAX] {
        let mut longer = whole.clone();
        longer[..8].copy_from_slice(&claim.to_le_bytes());
        write(dir.path(), "model.safetensors", &longer);
        assert!(refusal(dir.path()).contains(&format!("claims a header of {claim} bytes")));
    }
}

/// A folder with one file of these tensors.
fn folder(dir: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> SafetensorsFolder {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap()));
    write(dir, "model.safetensors", safetensors::tensor::serialize(views, None).unwrap());
    SafetensorsFolder::open(dir).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn a_view_gives_the_stored_bytes_and_an_entry_of_a_stack_gives_its_part() {
    let dir = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..12u16).flat_map(|i| half::bf16::from_f32(f32::from(i)).to_le_bytes()).collect();
    let folder =
        folder(dir.path(), &[("a", Dtype::U8, &[1], vec![9]), ("x", Dtype::BF16, &[3, 2, 2], data.clone())]);
    let view = folder.view("x").unwrap();
    assert_eq!((view.dtype, view.shape, view.bytes), (Dtype::BF16, &[3, 2, 2][..], data.as_slice()));
    let part = folder.view_part("x", 2).unwrap();
    assert_eq!((part.dtype, part.shape, part.bytes), (Dtype::BF16, &[2, 2][..], &data[16..]));
    let part = folder.tensor_part("x", 1, &Device::Cpu, DType::F32).unwrap();
    assert_eq!(part.to_vec2::<f32>().unwrap(), [[4.0, 5.0], [6.0, 7.0]]);
    let error = folder.tensor_part("x", 3, &Device::Cpu, DType::F32).unwrap_err().to_string();
    assert!(error.contains("\"x\"") && error.contains("no entry 3"), "{error}");
    assert!(folder.view("y").unwrap_err().to_string().contains("no tensor \"y\""));
}

#[test]
fn fp8_weights_and_stacks_of_them_are_multiplied_by_their_scales_in_any_float_type() {
    let dir = tempfile::tempdir().unwrap();
    let reference = &reference()["fp8"];
    let (codes, scales) = (bytes(&reference["codes"]), floats(&reference["scales"]));
    let expected = floats(&reference["values"]);
    let f32s = |scales: &[f32]| scales.iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<u8>>();
    let powers = [0.5f32, 1.0, 2.0, 4.0, 8.0, 16.0];
    let bf16s = powers.iter().flat_map(|&scale| half::bf16::from_f32(scale).to_le_bytes()).collect();
    let f16s = powers.iter().flat_map(|&scale| half::f16::from_f32(scale).to_le_bytes()).collect();
    let folder = folder(
        dir.path(),
        &[
            ("w", Dtype::F8_E4M3, &[6, 8], codes.clone()),
            ("w.f32", Dtype::F32, &[3, 2], f32s(&scales)),
            ("w.powers", Dtype::F32, &[3, 2], f32s(&powers)),
            ("w.bf16", Dtype::BF16, &[3, 2], bf16s),
            ("w.f16", Dtype::F16, &[3, 2], f16s),
            ("w.e8m0", Dtype::F8_E8M0, &[3, 2], (126..132).collect()),
            ("w.wrong", Dtype::F32, &[2, 3], f32s(&scales)),
            ("w.integer", Dtype::I32, &[3, 2], f32s(&scales)),
            ("stack", Dtype::F8_E4M3, &[2, 6, 8], codes.repeat(2)),
        ],
    );
    let read = |name: &str, scales: &str| folder.fp8_tensor(name, scales, (2, 4), &Device::Cpu, DType::F32);
    let whole = read("w", "w.f32").unwrap();
    assert_eq!((whole.dims(), numbers(&whole)), (&[6, 8][..], expected));
    let by_powers = numbers(&read("w", "w.powers").unwrap());
    for other in ["w.bf16", "w.f16", "w.e8m0"] {
        assert_eq!(numbers(&read("w", other).unwrap()), by_powers, "{other}");
    }

    let refusal = |name: &str, scales: &str| read(name, scales).unwrap_err().to_string();
    assert!(
        refusal("w", "w.wrong")
            .contains("\"w.wrong\" is stored as F32 of shape [2, 3] where a float type of shape [3, 2]")
    );
    assert!(refusal("w", "w.integer").contains("\"w.integer\" is stored as I32"));
    for other in ["w.f32", "stack"] {
        assert!(refusal(other, "w.f32").contains("where F8_E4M3 of shape [out, in] was expected"));
    }
    assert!(refusal("w", "none").contains("no tensor \"none\""));
    assert!(folder.fp8_tensor("w", "w.f32", (0, 4), &Device::Cpu, DType::F32).is_err());
}

#[test]
fn mxfp4_weights_are_read_expert_by_expert() {
    let dir = tempfile::tempdir().unwrap();
    let reference = &reference()["mxfp4"];
    let (blocks, scales) = (bytes(&reference["blocks"]), bytes(&reference["scales"]));
    let folder = folder(
        dir.path(),
        &[
            ("up_blocks", Dtype::U8, &[2, 3, 4, 16], blocks.clone()),
            ("up_scales", Dtype::U8, &[2, 3, 4], scales.clone()),
            ("odd_blocks", Dtype::U8, &[2, 3, 4, 16], blocks),
            ("odd_scales", Dtype::U8, &[2, 4, 3], scales),
        ],
    );
    let expected = floats(&reference["values"]);
    for (expert, expected) in expected.chunks(3 * 128).enumerate() {
        let found = folder.mxfp4_tensor("up", expert, &Device::Cpu, DType::F32).unwrap();
        assert_eq!((found.dims(), numbers(&found).as_slice()), (&[3, 128][..], expected));
    }
    let error = folder.mxfp4_tensor("odd", 0, &Device::Cpu, DType::F32).unwrap_err().to_string();
    assert!(
        error.contains("\"odd_scales\" is stored as U8 of shape [4, 3] where U8 of shape [3, 4]"),
        "{error}"
    );
    assert!(
        folder
            .mxfp4_tensor("up", 2, &Device::Cpu, DType::F32)
            .unwrap_err()
            .to_string()
            .contains("no entry 2")
    );
}

#[test]
fn nvfp4_weights_are_read_by_the_names_of_both_writers() {
    let dir = tempfile::tempdir().unwrap();
    let reference = &reference()["nvfp4"];
    let (blocks, scales) = (bytes(&reference["blocks"]), bytes(&reference["scales"]));
    let number = floats(&reference["number"])[0];
    let one = |number: f32| number.to_le_bytes().to_vec();
    let folder = folder(
        dir.path(),
        &[
            ("divided_packed", Dtype::U8, &[4, 32], blocks.clone()),
            ("divided_scale", Dtype::F8_E4M3, &[4, 4], scales.clone()),
            ("divided_global_scale", Dtype::F32, &[1], one(number)),
            ("times", Dtype::U8, &[4, 32], blocks.clone()),
            ("times_scale", Dtype::F8_E4M3, &[4, 4], scales.clone()),
            ("times_scale_2", Dtype::F32, &[], one(0.25)),
            ("odd_packed", Dtype::U8, &[4, 32], blocks.clone()),
            ("odd_scale", Dtype::F8_E4M3, &[2, 8], scales.clone()),
            ("odd_global_scale", Dtype::F32, &[1], one(number)),
            ("two_packed", Dtype::U8, &[4, 32], blocks),
            ("two_scale", Dtype::F8_E4M3, &[4, 4], scales),
            ("two_global_scale", Dtype::F32, &[2], [one(number), one(number)].concat()),
            ("plain", Dtype::F32, &[1], one(number)),
        ],
    );
    let read = |name: &str| folder.nvfp4_tensor(&folder.nvfp4_parts(name).unwrap(), &Device::Cpu, DType::F32);
    let divided = read("divided").unwrap();
    let expected = floats(&reference["values"]);
    assert_eq!((divided.dims(), numbers(&divided)), (&[4, 64][..], expected.clone()));
    for (times, divided) in numbers(&read("times").unwrap()).into_iter().zip(expected) {
        // Both rounded to f32 after each operation.
        let expected = divided * number * 0.25;
        assert!((times - expected).abs() <= 4e-7 * expected.abs(), "{times}, not {expected}");
    }
    assert_eq!(folder.nvfp4_parts("plain"), None);
    let refusal = |name: &str| read(name).unwrap_err().to_string();
    assert!(
        refusal("odd")
            .contains("\"odd_scale\" is stored as F8_E4M3 of shape [2, 8] where F8_E4M3 of shape [4, 4]")
    );
    assert!(refusal("two").contains("where one number of a float type was expected"));
}
