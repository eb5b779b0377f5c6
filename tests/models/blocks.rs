//! Block formats of weights decode as in torch, transformers and gguf (tests/fixtures/blocks.json).

use palimpsest_core::model::weights::BlockType;
use palimpsest_core::model::weights::blocks::{e8m0, fp8_block_scaled, fp8_e4m3, mxfp4, nvfp4};
use palimpsest_core::model::weights::gguf::dequantise;
use serde_json::Value;

pub fn reference() -> Value {
    serde_json::from_str(include_str!("../fixtures/blocks.json")).unwrap()
}

pub fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

pub fn floats(hex: &Value) -> Vec<f32> {
    bytes(hex).as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}

/// Equal numbers (either zero), or both NaN.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()))
}

const TYPES: [BlockType; 26] = [
    BlockType::F32,
    BlockType::F16,
    BlockType::BF16,
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q8_0,
    BlockType::Q2K,
    BlockType::Q3K,
    BlockType::Q4K,
    BlockType::Q5K,
    BlockType::Q6K,
    BlockType::Mxfp4,
    BlockType::IQ1_S,
    BlockType::IQ1_M,
    BlockType::IQ2_XXS,
    BlockType::IQ2_XS,
    BlockType::IQ2_S,
    BlockType::IQ3_XXS,
    BlockType::IQ3_S,
    BlockType::IQ4_NL,
    BlockType::IQ4_XS,
    BlockType::TQ1_0,
    BlockType::TQ2_0,
    BlockType::NVFP4,
];

#[test]
fn every_type_of_gguf_has_the_values_that_the_gguf_package_gives_it() {
    let reference = reference();
    for dtype in TYPES {
        let (stored, expected) = {
            let of_type = &reference["ggml"][dtype.name()];
            (bytes(&of_type["blocks"]), floats(&of_type["values"]))
        };
        let found = dequantise(dtype, &stored).unwrap();
        assert!(same(&found, &expected), "{}: {:?} for {:?}", dtype.name(), &found[..4], &expected[..4]);
    }
}

#[test]
fn long_tensors_are_the_values_of_their_blocks_one_after_another() {
    // More than one task's worth, so that every task border is crossed.
    let reference = reference();
    for dtype in TYPES {
        let of_type = &reference["ggml"][dtype.name()];
        let (stored, expected) = (bytes(&of_type["blocks"]), floats(&of_type["values"]));
        let times = 40_000 / expected.len() + 1;
        let found = dequantise(dtype, &stored.repeat(times)).unwrap();
        assert!(same(&found, &expected.repeat(times)), "{}", dtype.name());
    }
}

#[test]
fn types_have_the_block_sizes_that_candle_gives_them_and_half_a_block_is_refused() {
    for dtype in TYPES {
        if let Some(candle) = dtype.candle() {
            assert_eq!(
                (dtype.columns(), dtype.bytes()),
                (candle.block_size(), candle.type_size()),
                "{dtype:?}"
            );
        }
        let error = dequantise(dtype, &vec![0; 3 * dtype.bytes() - 1]).unwrap_err().to_string();
        assert!(error.contains(dtype.name()), "{error}");
    }
}

#[test]
fn all_256_codes_of_e4m3_have_torchs_values() {
    let expected = floats(&reference()["e4m3"]);
    let found: Vec<f32> = (0..=255).map(fp8_e4m3).collect();
    assert!(same(&found, &expected), "{found:?}");
    assert_eq!(found.iter().filter(|value| value.is_nan()).count(), 2);
    assert!(found[128].is_sign_negative() && found[128] == 0.0);
}

#[test]
fn e8m0_codes_are_powers_of_two_from_minus_127_to_127_and_255_is_no_number() {
    for code in 0..=254 {
        assert_eq!(f64::from(e8m0(code)), 2f64.powi(i32::from(code) - 127), "{code}");
    }
    assert!(e8m0(255).is_nan());
}

#[test]
fn fp8_weights_are_multiplied_by_the_scale_of_their_block_as_transformers_does() {
    let reference = &reference()["fp8"];
    let (codes, scales) = (bytes(&reference["codes"]), floats(&reference["scales"]));
    let found = fp8_block_scaled(&codes, &scales, 6, 8, (2, 4)).unwrap();
    assert!(same(&found, &floats(&reference["values"])), "{found:?}");
}

#[test]
fn fp8_blocks_at_the_edges_may_be_cut_short() {
    let (rows, cols, block) = (5, 7, (2, 3));
    let codes: Vec<u8> = (0..35).map(|i| i * 3).collect();
    let scales: Vec<f32> = (0..9).map(|i| 0.5 + i as f32).collect();
    let found = fp8_block_scaled(&codes, &scales, rows, cols, block).unwrap();
    for row in 0..rows {
        for col in 0..cols {
            let scale = scales[row / block.0 * 3 + col / block.1];
            assert_eq!(found[row * cols + col], fp8_e4m3(codes[row * cols + col]) * scale, "({row}, {col})");
        }
    }
    // A block may be larger than the weight.
    assert_eq!(fp8_block_scaled(&codes, &[2.0], 5, 7, (128, 128)).unwrap()[34], fp8_e4m3(102) * 2.0);
}

#[test]
fn mxfp4_groups_have_the_values_that_transformers_gives_them() {
    let reference = &reference()["mxfp4"];
    let found = mxfp4(&bytes(&reference["blocks"]), &bytes(&reference["scales"])).unwrap();
    assert!(same(&found, &floats(&reference["values"])), "{:?}", &found[..32]);
}

#[test]
fn mxfp4_holds_its_sixteen_values_low_half_first_at_the_smallest_and_largest_scale() {
    const VALUES: [f64; 16] =
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    let codes = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0];
    for (scale, exponent) in [(0, -127), (1, -126), (127, 0), (254, 127)] {
        let found = mxfp4(&codes, &[scale]).unwrap();
        for (found, value) in found.iter().zip(VALUES) {
            // 3 * 2^127 and above are infinite in f32.
            assert_eq!(*found, (value * 2f64.powi(exponent)) as f32, "scale {scale}, value {value}");
        }
    }
    assert!(mxfp4(&codes, &[255]).unwrap().iter().all(|value| value.is_nan()));
}

#[test]
fn nvfp4_groups_have_the_values_that_compressed_tensors_gives_them() {
    let reference = &reference()["nvfp4"];
    let (blocks, scales) = (bytes(&reference["blocks"]), bytes(&reference["scales"]));
    let number = floats(&reference["number"])[0];
    let found = nvfp4(&blocks, &scales, |scale| scale / number).unwrap();
    assert!(same(&found, &floats(&reference["values"])), "{:?}", &found[..16]);
}

#[test]
fn lengths_that_do_not_agree_are_refused_with_both_numbers() {
    let refusal = |found: Result<Vec<f32>, _>| match found {
        Err(palimpsest_core::model::weights::BlocksError::Length { found, expected, .. }) => {
            (found, expected)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(mxfp4(&[0; 31], &[0; 2])), (31, 32));
    assert_eq!(refusal(nvfp4(&[0; 15], &[0; 2], |scale| scale)), (15, 16));
    assert_eq!(refusal(fp8_block_scaled(&[0; 5], &[1.0], 2, 3, (2, 3))), (5, 6));
    assert_eq!(refusal(fp8_block_scaled(&[0; 6], &[1.0], 2, 3, (2, 2))), (1, 2));
    assert!(fp8_block_scaled(&[], &[], usize::MAX, 2, (2, 2)).is_err());
    assert!(fp8_block_scaled(&[0; 6], &[1.0], 2, 3, (0, 2)).is_err());
    assert_eq!(fp8_block_scaled(&[], &[], 0, 3, (2, 2)).unwrap(), [0f32; 0]);
}
