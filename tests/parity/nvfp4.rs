//! Folders in NVFP4 give the numbers of their dequantised weights.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use palimpsest_core::model::weights::blocks::fp8_e4m3;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value as Json, json};

use super::checkpoint::Llama;
use super::{apart, engine, numbers, prefill};

const GROUP: usize = 16;
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// As a writer stores a quantised weight.
struct Writer {
    config: Json,
    codes: &'static str,
    number: &'static str,
    /// The number divides the scales.
    divides: bool,
}

fn nearest(codes: std::ops::Range<u8>, value: impl Fn(u8) -> f32, wanted: f32) -> u8 {
    let distance = |code: u8| (value(code) - wanted).abs();
    codes.min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap()
}

type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

/// The stored tensors of a weight, and its dequantised values.
fn quantised(name: &str, weight: &Tensor, writer: &Writer) -> (Vec<Stored>, Tensor) {
    let (rows, cols) = weight.dims2().unwrap();
    let values = numbers(weight);
    let most = |values: &[f32]| values.iter().fold(0f32, |most, x| most.max(x.abs()));
    // The largest scale is the largest of E4M3.
    let unit = most(&values) / 6.0 / 448.0;
    let number = if writer.divides { 1.0 / unit } else { unit };
    let (mut blocks, mut scales, mut made) = (Vec::new(), Vec::new(), Vec::new());
    for group in values.chunks(GROUP) {
        let scale = nearest(1..127, fp8_e4m3, most(group) / 6.0 / unit);
        let factor = if writer.divides { fp8_e4m3(scale) / number } else { fp8_e4m3(scale) * number };
        let code = |x: f32| nearest(0..16, |code| E2M1[usize::from(code)] * factor, x);
        let codes: Vec<u8> = group.iter().map(|&x| code(x)).collect();
        made.extend(codes.iter().map(|&code| E2M1[usize::from(code)] * factor));
        blocks.extend(codes.chunks(2).map(|pair| pair[0] | pair[1] << 4));
        scales.push(scale);
    }
    let one = |number: f32| number.to_le_bytes().to_vec();
    let stem = name.strip_suffix(".weight").unwrap();
    let stored = vec![
        (format!("{name}{}", writer.codes), Dtype::U8, vec![rows, cols / 2], blocks),
        (format!("{name}_scale"), Dtype::F8_E4M3, vec![rows, cols / GROUP], scales),
        (format!("{name}{}", writer.number), Dtype::F32, vec![], one(number)),
        // For activations and the cache, which are not rounded.
        (format!("{stem}.input_scale"), Dtype::F32, vec![], one(3.0)),
        (format!("{stem}.k_scale"), Dtype::F32, vec![], one(5.0)),
    ];
    (stored, Tensor::from_vec(made, (rows, cols), &Device::Cpu).unwrap())
}

/// Writes the folder of the quantised model and that of its values.
fn write(dir: &Path, writer: &Writer) -> [PathBuf; 2] {
    let mut model = Llama::random(64, false, true);
    let mut stored: Vec<Stored> = Vec::new();
    for (name, tensor) in &mut model.tensors {
        if tensor.rank() == 2 && name.contains("_proj") {
            let (parts, values) = quantised(name, tensor, writer);
            stored.extend(parts);
            *tensor = values;
        } else {
            let bytes = numbers(tensor).into_iter().flat_map(f32::to_le_bytes).collect();
            stored.push((name.clone(), Dtype::F32, tensor.dims().to_vec(), bytes));
        }
    }
    let plain = model.write_folder(&dir.join("plain"));
    model.config["quantization_config"] = writer.config.clone();
    let folder = model.write_folder(&dir.join("nvfp4"));
    let views = stored.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(folder.join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    [folder, plain]
}

#[test]
fn a_quantised_folder_gives_the_logits_of_its_values_for_both_writers() {
    let tokens: Vec<u32> = (0..60u32).map(|i| (i * 37 + i * i * 11 + 5) % 120).collect();
    for writer in [
        Writer {
            config: json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                "transform_config": {}}),
            codes: "_packed",
            number: "_global_scale",
            divides: true,
        },
        Writer {
            config: json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            codes: "",
            number: "_scale_2",
            divides: false,
        },
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [found, expected] =
            write(dir.path(), &writer).map(|folder| prefill(&engine(&folder, 64), &tokens, 16).0);
        assert_eq!(apart(&found, &expected), 0.0, "{}", writer.config);
    }
}
