//! Block formats of safetensors: block-scaled FP8, MXFP4 and NVFP4. Pure functions from bytes to f32 that validate lengths before allocating.
//!
//! Sources: FP8 E4M3 ("FN": no infinities) of Micikevicius et al., "FP8 formats for deep learning"; E2M1 and E8M0 of the OCP
//! Microscaling Formats specification 1.0; the layouts of transformers' `FineGrainedFP8` and `Mxfp4` quantisers and of
//! compressed-tensors' `NVFP4PackedCompressor`.

use rayon::prelude::*;

/// Elements per scale in MXFP4.
pub const MXFP4_GROUP: usize = 32;
/// Elements per scale in NVFP4.
pub const NVFP4_GROUP: usize = 16;
/// E2M1 values doubled, so that all are integers; codes 0 to 7 are positive.
pub(in crate::model) const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// E2M1 values. Code 8 is -0.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
const E4M3: [f32; 256] = e4m3_values();

/// Bytes, scales and shape do not match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // said by the names
pub enum BlocksError {
    #[error("has {found} {what} where {of} takes {expected}; the file is corrupt or of another layout")]
    Length { what: &'static str, of: String, found: usize, expected: usize },
    #[error("has the impossible size {size}; the file or its config is corrupt")]
    Size { size: String },
}

/// Value of an FP8 E4M3 code (`torch.float8_e4m3fn`); 0x7f and 0xff are NaN.
pub fn fp8_e4m3(code: u8) -> f32 {
    E4M3[usize::from(code)]
}

/// Value of an E8M0 code: 2^(code - 127); 255 is NaN.
pub fn e8m0(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        0 => f32::from_bits(1 << 22), // 2^-127, a subnormal f32
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// Dequantises a (rows, cols) weight of E4M3 codes. `scales`: (ceil(rows / block.0), ceil(cols / block.1)), row-major, one per block
/// of `block` (rows, columns); edge blocks may be partial. Returns an error if lengths do not match the shape.
pub fn fp8_block_scaled(
    weights: &[u8],
    scales: &[f32],
    rows: usize,
    cols: usize,
    block: (usize, usize),
) -> Result<Vec<f32>, BlocksError> {
    let size = |what: &str, (a, b): (usize, usize)| BlocksError::Size { size: format!("{what} ({a}, {b})") };
    if block.0 == 0 || block.1 == 0 {
        return Err(size("of a block,", block));
    }
    let count = rows.checked_mul(cols).ok_or_else(|| size("of a weight,", (rows, cols)))?;
    let (scale_rows, scale_cols) = (rows.div_ceil(block.0), cols.div_ceil(block.1));
    expect("bytes", weights.len(), count, || format!("a weight of ({rows}, {cols})"))?;
    // Cannot overflow: at most rows * cols.
    expect("scales", scales.len(), scale_rows * scale_cols, || {
        format!("a weight of ({rows}, {cols}) in blocks of ({}, {})", block.0, block.1)
    })?;
    let mut out = vec![0f32; count];
    if count > 0 {
        out.par_chunks_mut(cols).zip(weights.par_chunks(cols)).enumerate().for_each(|(row, (out, codes))| {
            let scales = &scales[row / block.0 * scale_cols..][..scale_cols];
            for ((out, codes), scale) in out.chunks_mut(block.1).zip(codes.chunks(block.1)).zip(scales) {
                for (value, &code) in out.iter_mut().zip(codes) {
                    *value = fp8_e4m3(code) * scale;
                }
            }
        });
    }
    Ok(out)
}

/// Dequantises MXFP4 groups of safetensors: 16 bytes per group, element 2i in the low and 2i + 1 in the high half of byte i, and one
/// E8M0 scale per group. Returns 32 elements per group, in order, or an error if there are not 16 bytes per scale.
pub fn mxfp4(blocks: &[u8], scales: &[u8]) -> Result<Vec<f32>, BlocksError> {
    e2m1(blocks, scales, MXFP4_GROUP, e8m0)
}

/// Dequantises NVFP4 groups of safetensors: 8 bytes per group of 16, in the order of [`mxfp4`], and one E4M3 scale per group, from which
/// `factor` makes the factor of the group.
pub fn nvfp4(
    blocks: &[u8],
    scales: &[u8],
    factor: impl Fn(f32) -> f32 + Sync,
) -> Result<Vec<f32>, BlocksError> {
    e2m1(blocks, scales, NVFP4_GROUP, |code| factor(fp8_e4m3(code)))
}

fn e2m1(
    blocks: &[u8],
    scales: &[u8],
    group: usize,
    factor: impl Fn(u8) -> f32 + Sync,
) -> Result<Vec<f32>, BlocksError> {
    // An overflow would be a length mismatch.
    let bytes = scales.len().saturating_mul(group / 2);
    expect("bytes", blocks.len(), bytes, || format!("{} groups", scales.len()))?;
    let mut out = vec![0f32; scales.len() * group];
    let groups = out.par_chunks_exact_mut(group).zip(blocks.par_chunks_exact(group / 2)).zip(scales);
    groups.with_min_len(256).for_each(|((out, bytes), &scale)| {
        let scale = factor(scale);
        for (pair, &byte) in out.chunks_exact_mut(2).zip(bytes) {
            pair[0] = E2M1[usize::from(byte & 15)] * scale;
            pair[1] = E2M1[usize::from(byte >> 4)] * scale;
        }
    });
    Ok(out)
}

pub(super) fn expect(
    what: &'static str,
    found: usize,
    expected: usize,
    of: impl FnOnce() -> String,
) -> Result<(), BlocksError> {
    if found == expected { Ok(()) } else { Err(BlocksError::Length { what, of: of(), found, expected }) }
}

const fn e4m3_values() -> [f32; 256] {
    let mut values = [0f32; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = (code as u32 >> 3 & 15, code as u32 & 7);
        let size = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            (0, _) => mantissa as f32 / 512.0,
            // (8 + mantissa) * 2^(exponent - 10)
            _ => (8 + mantissa) as f32 * f32::from_bits((exponent + 117) << 23),
        };
        values[code] = if code < 128 { size } else { -size };
        code += 1;
    }
    values
}
