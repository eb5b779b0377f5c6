//! Safetensors folders: single, sharded, and every way in which they can be wrong.

use std::path::Path;

use candle_core::{DType, Device};
use palimpsest::model::weights::safetensors::{INDEX_FILE, SafetensorsFolder};
use safetensors::tensor::{Dtype, TensorView};

/// A shard with one f32 tensor [2] a name: its elements are 1 and 2.
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
