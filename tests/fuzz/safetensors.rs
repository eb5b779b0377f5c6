//! Safetensors folders, mutated and generated: headers, shards and the index.

use std::path::Path;

use candle_core::{DType, Device};
use palimpsest_core::model::weights::safetensors::{INDEX_FILE, SafetensorsFolder};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView, serialize};

use super::allocator::largest_of;
use super::{apply, cases, edits};

const INDEX: &str = r#"{"metadata": {"total_size": 1}, "weight_map": {"w": "one.safetensors", "w_scale_inv": "two.safetensors"}}"#;

fn file(tensors: &[(&str, Dtype, &[usize], usize)]) -> Vec<u8> {
    let zeros = [0u8; 4096];
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), &zeros[..*bytes]).unwrap())
    });
    serialize(views, None).unwrap()
}

/// A valid file with every kind of weight that is assembled from two tensors.
fn valid() -> Vec<u8> {
    file(&[
        ("w", Dtype::F8_E4M3, &[6, 4], 24),
        ("w_scale_inv", Dtype::F32, &[3, 1], 12),
        ("x_blocks", Dtype::U8, &[2, 1, 2, 16], 64),
        ("x_scales", Dtype::U8, &[2, 1, 2], 4),
        ("y", Dtype::BF16, &[5], 10),
        ("z_packed", Dtype::U8, &[2, 16], 32),
        ("z_scale", Dtype::F8_E4M3, &[2, 2], 4),
        ("z_global_scale", Dtype::F32, &[1], 4),
    ])
}

/// Opens the folder and reads everything it declares, in every way; the largest allocation must stay small.
fn check_folder(dir: &Path) -> Result<(), TestCaseError> {
    let ((), largest) = largest_of(|| {
        let Ok(folder) = SafetensorsFolder::open(dir) else { return };
        for name in folder.names() {
            let _ = folder.tensor(name, &Device::Cpu, DType::F32);
            let _ = folder.tensor_part(name, 1, &Device::Cpu, DType::F32);
            let scales = format!("{name}_scale_inv");
            let _ = folder.fp8_tensor(name, &scales, (2, 4), &Device::Cpu, DType::F32);
            let _ = folder.mxfp4_tensor(name.trim_end_matches("_blocks"), 0, &Device::Cpu, DType::F32);
            if let Some(parts) = folder.nvfp4_parts(name.trim_end_matches("_packed")) {
                let _ = folder.nvfp4_tensor(&parts, &Device::Cpu, DType::F32);
            }
        }
    });
    // Files are a few kilobytes; reading and parsing one takes a multiple.
    prop_assert!(largest <= 1 << 20, "{largest} bytes at once");
    Ok(())
}

#[test]
fn the_files_that_are_mutated_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), valid()).unwrap();
    let folder = SafetensorsFolder::open(dir.path()).unwrap();
    folder.fp8_tensor("w", "w_scale_inv", (2, 4), &Device::Cpu, DType::F32).unwrap();
    folder.mxfp4_tensor("x", 1, &Device::Cpu, DType::F32).unwrap();
    folder.nvfp4_tensor(&folder.nvfp4_parts("z").unwrap(), &Device::Cpu, DType::F32).unwrap();
    let dir = tempfile::tempdir().unwrap();
    shards(dir.path(), INDEX.as_bytes());
    assert_eq!(SafetensorsFolder::open(dir.path()).unwrap().names().count(), 2);
}

fn shards(dir: &Path, index: &[u8]) {
    std::fs::write(dir.join("one.safetensors"), file(&[("w", Dtype::U8, &[4], 4)])).unwrap();
    std::fs::write(dir.join("two.safetensors"), file(&[("w_scale_inv", Dtype::F32, &[1], 4)])).unwrap();
    std::fs::write(dir.join(INDEX_FILE), index).unwrap();
}

/// Text that is often an index.
fn index_like() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        "[a-z./]{0,12}",
        Just("one.safetensors".to_string()),
        Just("../two.safetensors".to_string())
    ];
    let map = prop::collection::hash_map(prop_oneof!["[a-z_]{0,8}", Just("w".to_string())], name, 0..6);
    prop_oneof![
        map.prop_map(|map| serde_json::json!({ "weight_map": map }).to_string().into_bytes()),
        prop::collection::vec(any::<u8>(), 0..256),
    ]
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_mutated_file_panics_or_allocates_absurdly(edits in edits()) {
        let mut bytes = valid();
        apply(&mut bytes, &edits);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("model.safetensors"), &bytes).unwrap();
        check_folder(dir.path())?;
    }

    #[test]
    fn no_random_header_panics_or_allocates_absurdly(
        shape in prop::collection::vec(super::number(), 0..5),
        offsets in (super::number(), super::number()),
        dtype in prop::sample::select(vec!["F32", "BF16", "U8", "F4", "F6_E2M3", "F8_E4M3", "F8_E8M0", "C64", "odd"]),
        claim in prop::option::of(super::number()),
        rest in prop::collection::vec(any::<u8>(), 0..128),
    ) {
        let zero_first = if rest.len() % 2 == 0 { [&[0], shape.as_slice()].concat() } else { shape };
        let tensor = serde_json::json!({ "dtype": dtype, "shape": zero_first, "data_offsets": [offsets.0, offsets.1] });
        let empty = serde_json::json!({ "dtype": dtype, "shape": zero_first, "data_offsets": [0, 0] });
        for header in [serde_json::json!({ "w": tensor }), serde_json::json!({ "w": empty, "w_scale_inv": empty })] {
            let header = header.to_string();
            let length = claim.unwrap_or(header.len() as u64);
            let bytes = [&length.to_le_bytes(), header.as_bytes(), &rest].concat();
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("model.safetensors"), &bytes).unwrap();
            check_folder(dir.path())?;
        }
    }

    #[test]
    fn no_mutated_or_random_index_panics_or_allocates_absurdly(edits in edits(), random in prop::option::of(index_like())) {
        let mut bytes = random.unwrap_or_else(|| INDEX.as_bytes().to_vec());
        apply(&mut bytes, &edits);
        let dir = tempfile::tempdir().unwrap();
        shards(dir.path(), &bytes);
        check_folder(dir.path())?;
    }
}
