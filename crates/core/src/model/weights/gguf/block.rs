//! GGUF block types: codes, sizes and bit layouts (source: ggml's `ggml-common.h`, as read by the `gguf` Python package).
//!
//! The header reads type codes, the file and the loader dequantise, and the layers repack with `BlockType::unpack` into groups of 16 or 32
//! int8 quants with integer multiples of the block's scale and minimum, which represent every block type without loss.

use candle_core::quantized::GgmlDType;
use half::{bf16, f16};
use rayon::prelude::*;

use super::super::blocks::{BlocksError, E2M1_DOUBLED, expect, fp8_e4m3};
use super::i_quants;

const SUPER: usize = 256;
/// Maximum groups per block.
const MOST_GROUPS: usize = SUPER / 16;
/// Columns dequantised per task.
const TASK: usize = 64 * SUPER;

/// A supported GGUF element or block type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // ggml's names
#[allow(non_camel_case_types)] // as Candle writes them
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Mxfp4,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    NVFP4,
}

/// Storage of a block type, with ggml's code and name.
struct Layout {
    dtype: BlockType,
    code: u32,
    name: &'static str,
    columns: usize,
    bytes: usize,
    candle: Option<GgmlDType>,
}

const fn layout(
    dtype: BlockType,
    code: u32,
    name: &'static str,
    [columns, bytes]: [usize; 2],
    candle: Option<GgmlDType>,
) -> Layout {
    Layout { dtype, code, name, columns, bytes, candle }
}

/// In the order of [`BlockType`].
const LAYOUTS: [Layout; 26] = [
    layout(BlockType::F32, 0, "F32", [1, 4], Some(GgmlDType::F32)),
    layout(BlockType::F16, 1, "F16", [1, 2], Some(GgmlDType::F16)),
    layout(BlockType::BF16, 30, "BF16", [1, 2], Some(GgmlDType::BF16)),
    layout(BlockType::Q4_0, 2, "Q4_0", [32, 18], Some(GgmlDType::Q4_0)),
    layout(BlockType::Q4_1, 3, "Q4_1", [32, 20], Some(GgmlDType::Q4_1)),
    layout(BlockType::Q5_0, 6, "Q5_0", [32, 22], Some(GgmlDType::Q5_0)),
    layout(BlockType::Q5_1, 7, "Q5_1", [32, 24], Some(GgmlDType::Q5_1)),
    layout(BlockType::Q8_0, 8, "Q8_0", [32, 34], Some(GgmlDType::Q8_0)),
    layout(BlockType::Q2K, 10, "Q2_K", [SUPER, 84], Some(GgmlDType::Q2K)),
    layout(BlockType::Q3K, 11, "Q3_K", [SUPER, 110], Some(GgmlDType::Q3K)),
    layout(BlockType::Q4K, 12, "Q4_K", [SUPER, 144], Some(GgmlDType::Q4K)),
    layout(BlockType::Q5K, 13, "Q5_K", [SUPER, 176], Some(GgmlDType::Q5K)),
    layout(BlockType::Q6K, 14, "Q6_K", [SUPER, 210], Some(GgmlDType::Q6K)),
    layout(BlockType::Mxfp4, 39, "MXFP4", [32, 17], None),
    layout(BlockType::IQ1_S, 19, "IQ1_S", [SUPER, 50], None),
    layout(BlockType::IQ1_M, 29, "IQ1_M", [SUPER, 56], None),
    layout(BlockType::IQ2_XXS, 16, "IQ2_XXS", [SUPER, 66], None),
    layout(BlockType::IQ2_XS, 17, "IQ2_XS", [SUPER, 74], None),
    layout(BlockType::IQ2_S, 22, "IQ2_S", [SUPER, 82], None),
    layout(BlockType::IQ3_XXS, 18, "IQ3_XXS", [SUPER, 98], None),
    layout(BlockType::IQ3_S, 21, "IQ3_S", [SUPER, 110], None),
    layout(BlockType::IQ4_NL, 20, "IQ4_NL", [32, 18], None),
    layout(BlockType::IQ4_XS, 23, "IQ4_XS", [SUPER, 136], None),
    layout(BlockType::TQ1_0, 34, "TQ1_0", [SUPER, 54], None),
    layout(BlockType::TQ2_0, 35, "TQ2_0", [SUPER, 66], None),
    layout(BlockType::NVFP4, 40, "NVFP4", [64, 36], None),
];

/// Groups of a quantised type: weights that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) struct Groups {
    /// 16 or 32.
    pub columns: usize,
    /// Groups have a minimum besides the scale.
    pub mins: bool,
    /// Groups have integer scale codes relative to the block's scale.
    pub codes: bool,
    /// Quants are signed.
    pub signed: bool,
    /// Quants fit 4 bits (-8 to 7, or 0 to 15).
    pub nibbles: bool,
    /// Scale codes count multiples of 2^-`halvings`.
    pub halvings: u32,
}

impl Groups {
    /// Offset that makes all quants non-negative.
    pub fn added(self) -> u8 {
        match (self.signed, self.nibbles) {
            (false, _) => 0,
            (true, true) => 8,
            (true, false) => 128,
        }
    }
}

impl BlockType {
    const fn layout(self) -> &'static Layout {
        &LAYOUTS[self as usize]
    }

    /// The type of a code; the error is the name of an unsupported type in brackets, or empty.
    pub(super) fn from_code(code: u32) -> Result<Self, &'static str> {
        if let Some(layout) = LAYOUTS.iter().find(|layout| layout.code == code) {
            return Ok(layout.dtype);
        }
        Err(match code {
            4 | 5 => " (Q4_2 or Q4_3, withdrawn)",
            // Q8_1 and Q8_K hold intermediate activations; no converter writes weights in them.
            9 => " (Q8_1)",
            15 => " (Q8_K)",
            24..=28 => " (plain integers or F64)",
            41 => " (Q1_0)",
            _ => "",
        })
    }

    /// ggml's name (`Q4_K`).
    pub fn name(self) -> &'static str {
        self.layout().name
    }

    /// Elements per block; 1 for dense types.
    pub fn columns(self) -> usize {
        self.layout().columns
    }

    /// Bytes per block.
    pub fn bytes(self) -> usize {
        self.layout().bytes
    }

    /// True for dense types.
    pub fn is_dense(self) -> bool {
        self.columns() == 1
    }

    /// Candle's type; `None` for those that Candle does not support.
    pub fn candle(self) -> Option<GgmlDType> {
        self.layout().candle
    }

    /// Groups of a quantised type; `None` for a dense one, and for NVFP4, whose groups have scales in floating point.
    pub(in crate::model) fn groups(self) -> Option<Groups> {
        let (columns, mins) = match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::NVFP4 => return None,
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => (32, true),
            Self::Q3K | Self::Q6K | Self::IQ1_M | Self::IQ2_XS | Self::IQ2_S => (16, false),
            Self::Q2K => (16, true),
            _ => (32, false),
        };
        Some(Groups {
            columns,
            mins,
            codes: self.columns() > columns,
            signed: !mins,
            nibbles: matches!(
                self,
                Self::Q4_0 | Self::Q4_1 | Self::Q2K | Self::Q3K | Self::Q4K | Self::TQ1_0 | Self::TQ2_0
            ),
            halvings: match self {
                Self::IQ1_S | Self::IQ1_M | Self::IQ2_XXS | Self::IQ2_XS | Self::IQ2_S => 3,
                Self::IQ3_XXS => 2,
                _ => 0,
            },
        })
    }

    /// Unpacks one block and returns its scale d and minimum m: weight i of group g is
    /// `(d * codes[g] / 2^halvings) * quants[i] + m * min_codes[g]` ([`Groups::halvings`]). `quants`: (columns of the block); `codes`,
    /// `min_codes`: (groups of the block), 1 if a block is one group. `min_codes` is unchanged for types without minima, everything for
    /// types without groups.
    pub(in crate::model) fn unpack(
        self,
        block: &[u8],
        quants: &mut [i8],
        codes: &mut [i8],
        min_codes: &mut [i8],
    ) -> (f32, f32) {
        if self.columns() == 32 {
            codes[0] = 1;
            if let Some(min) = min_codes.first_mut() {
                *min = 1;
            }
        }
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::NVFP4 => (0.0, 0.0),
            Self::Q8_0 => {
                for (q, &byte) in quants.iter_mut().zip(&block[2..]) {
                    *q = byte.cast_signed();
                }
                (half(block, 0), 0.0)
            }
            Self::Q4_0 => {
                nibbles(&block[2..], quants, |nibble, _| nibble - 8);
                (half(block, 0), 0.0)
            }
            Self::Q4_1 => {
                nibbles(&block[4..], quants, |nibble, _| nibble);
                (half(block, 0), half(block, 2))
            }
            Self::Q5_0 => {
                let fifth = fifth_bits(&block[2..]);
                nibbles(&block[6..], quants, |nibble, i| (nibble | fifth(i)) - 16);
                (half(block, 0), 0.0)
            }
            Self::Q5_1 => {
                let fifth = fifth_bits(&block[4..]);
                nibbles(&block[8..], quants, |nibble, i| nibble | fifth(i));
                (half(block, 0), half(block, 2))
            }
            Self::Mxfp4 => {
                nibbles(&block[1..], quants, |nibble, _| E2M1_DOUBLED[nibble as usize]);
                (half_e8m0(block[0]), 0.0)
            }
            Self::Q2K => unpack_q2k(block, quants, codes, min_codes),
            Self::Q3K => unpack_q3k(block, quants, codes),
            Self::Q4K => {
                for (quants, bytes) in quants.chunks_exact_mut(64).zip(block[16..].chunks_exact(32)) {
                    nibbles(bytes, quants, |nibble, _| nibble);
                }
                codes_k(block, codes, min_codes)
            }
            Self::Q5K => {
                let (fifth, low) = block[16..].split_at(32);
                let pairs = quants.chunks_exact_mut(64).zip(low.chunks_exact(32)).enumerate();
                for (pair, (quants, bytes)) in pairs {
                    nibbles(bytes, quants, |nibble, i| {
                        nibble | (fifth[i % 32] >> (2 * pair + i / 32) & 1).cast_signed() << 4
                    });
                }
                codes_k(block, codes, min_codes)
            }
            Self::Q6K => unpack_q6k(block, quants, codes),
            Self::IQ4_NL => {
                nibbles(&block[2..], quants, |nibble, _| i_quants::IQ4[nibble as usize]);
                (half(block, 0), 0.0)
            }
            Self::IQ4_XS => unpack_iq4_xs(block, quants, codes),
            Self::IQ1_M => (i_quants::iq1_m(block, quants, codes), 0.0),
            Self::IQ1_S => with_d(i_quants::iq1_s, block, quants, codes),
            Self::IQ2_XXS => with_d(i_quants::iq2_xxs, block, quants, codes),
            Self::IQ2_XS => with_d(i_quants::iq2_xs, block, quants, codes),
            Self::IQ2_S => with_d(i_quants::iq2_s, block, quants, codes),
            Self::IQ3_XXS => with_d(i_quants::iq3_xxs, block, quants, codes),
            Self::IQ3_S => with_d(i_quants::iq3_s, block, quants, codes),
            Self::TQ1_0 => {
                codes.fill(1);
                i_quants::tq1_0(block, quants);
                (half(block, 52), 0.0)
            }
            Self::TQ2_0 => {
                codes.fill(1);
                pairs_of_bits(block, 0, quants, |pair, _| pair - 1);
                (half(block, 64), 0.0)
            }
        }
    }
}

/// The f32 values of `bytes` stored as `dtype`, in order. Returns an error unless `bytes` are whole blocks.
pub fn dequantise(dtype: BlockType, bytes: &[u8]) -> Result<Vec<f32>, BlocksError> {
    let blocks = bytes.len() / dtype.bytes();
    expect("bytes", bytes.len(), blocks * dtype.bytes(), || format!("{blocks} blocks of {}", dtype.name()))?;
    let count = blocks.checked_mul(dtype.columns()).ok_or_else(|| BlocksError::Size {
        size: format!("of {blocks} blocks of {} elements", dtype.columns()),
    })?;
    let mut out = vec![0f32; count];
    let blocks = TASK / dtype.columns();
    out.par_chunks_mut(TASK).zip(bytes.par_chunks(blocks * dtype.bytes())).for_each(
        |(out, bytes)| match dtype.groups() {
            Some(groups) => dequantise_groups(dtype, groups, bytes, out),
            None => read_values(dtype, bytes, out),
        },
    );
    Ok(out)
}

fn read_values(dtype: BlockType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        BlockType::F16 => {
            for (value, [a, b]) in out.iter_mut().zip(bytes.as_chunks().0) {
                *value = f16::from_le_bytes([*a, *b]).to_f32();
            }
        }
        BlockType::BF16 => {
            for (value, [a, b]) in out.iter_mut().zip(bytes.as_chunks().0) {
                *value = bf16::from_le_bytes([*a, *b]).to_f32();
            }
        }
        BlockType::NVFP4 => {
            for (out, block) in out.chunks_exact_mut(64).zip(bytes.chunks_exact(36)) {
                read_nvfp4(block, out);
            }
        }
        _ => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    }
}

/// Layout: four scales in E4M3 without a sign, of which 127 counts as 0, then 8 bytes of E2M1 for each 16 columns. The number for all scales
/// is a tensor of its own.
fn read_nvfp4(block: &[u8], out: &mut [f32]) {
    let (scales, codes) = block.split_at(4);
    let groups = out.chunks_exact_mut(16).zip(codes.chunks_exact(8)).zip(scales);
    for ((out, codes), &scale) in groups {
        let scale = match scale & 127 {
            127 => 0.0,
            code => fp8_e4m3(code) / 2.0,
        };
        let mut quants = [0; 16];
        nibbles(codes, &mut quants, |nibble, _| E2M1_DOUBLED[nibble as usize]);
        for (value, q) in out.iter_mut().zip(quants) {
            *value = scale * f32::from(q);
        }
    }
}

fn dequantise_groups(dtype: BlockType, groups: Groups, bytes: &[u8], out: &mut [f32]) {
    let mut quants = [0i8; SUPER];
    let (mut codes, mut min_codes) = ([0i8; MOST_GROUPS], [0i8; MOST_GROUPS]);
    let quants = &mut quants[..dtype.columns()];
    let unit = 1.0 / f32::from(1u8 << groups.halvings);
    for (block, out) in bytes.chunks_exact(dtype.bytes()).zip(out.chunks_exact_mut(dtype.columns())) {
        let (d, m) = dtype.unpack(block, quants, &mut codes, &mut min_codes);
        let of_groups = out.chunks_exact_mut(groups.columns).zip(quants.chunks_exact(groups.columns));
        for ((out, quants), (&code, &min_code)) in of_groups.zip(codes.iter().zip(&min_codes)) {
            let (scale, min) = (d * (f32::from(code) * unit), m * f32::from(min_code));
            for (value, &q) in out.iter_mut().zip(quants) {
                *value = scale * f32::from(q);
                if groups.mins {
                    *value += min;
                }
            }
        }
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Half an E8M0 scale, 2^(code - 128), for doubled quants; 255 gives 2^127, as in ggml.
fn half_e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 21), // 2^-128 and 2^-127 are subnormal
        1 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(code - 1) << 23),
    }
}

/// 4-bit quants: low halves first, then high halves. `quant` maps a nibble and its index to a quant.
#[inline]
fn nibbles(bytes: &[u8], quants: &mut [i8], quant: impl Fn(i8, usize) -> i8) {
    let half = quants.len() / 2;
    let (low, high) = quants.split_at_mut(half);
    for (i, ((low, high), &byte)) in low.iter_mut().zip(high).zip(bytes).enumerate() {
        *low = quant((byte & 15).cast_signed(), i);
        *high = quant((byte >> 4).cast_signed(), i + half);
    }
}

/// 32 fifth bits at the start of `bytes`: 16 if the bit is set.
fn fifth_bits(bytes: &[u8]) -> impl Fn(usize) -> i8 {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    move |i| if bits >> i & 1 == 1 { 16 } else { 0 }
}

/// Scale and minimum codes of a Q4_K or Q5_K block: d, dmin, then eight 6-bit codes of each in 12 bytes. The first four of both are the
/// low six bits of bytes 0-3 and 4-7; for the others, bytes 8-11 hold the low halves, and the top two bits of bytes 0-7 the high parts.
/// Minima are subtracted.
fn codes_k(block: &[u8], codes: &mut [i8], min_codes: &mut [i8]) -> (f32, f32) {
    let packed = &block[4..16];
    for i in 0..4 {
        let (scale, min, both) = (packed[i], packed[i + 4], packed[i + 8]);
        codes[i] = (scale & 63).cast_signed();
        min_codes[i] = (min & 63).cast_signed();
        codes[i + 4] = (both & 15 | scale >> 6 << 4).cast_signed();
        min_codes[i + 4] = (both >> 4 | min >> 6 << 4).cast_signed();
    }
    (half(block, 0), -half(block, 2))
}

/// 2-bit quants at byte `at`, low pairs first: each run of 32 bytes holds 4 runs of 32 quants. `quant` maps a pair and its index to a
/// quant.
fn pairs_of_bits(block: &[u8], at: usize, quants: &mut [i8], quant: impl Fn(i8, usize) -> i8) {
    for (i, q) in quants.iter_mut().enumerate() {
        let (run, shift, byte) = (i / 128, i % 128 / 32, i % 32);
        *q = quant((block[at + 32 * run + byte] >> (2 * shift) & 3).cast_signed(), i);
    }
}

/// Layout: 16 bytes of 4-bit scale and 4-bit minimum, 64 bytes of 2-bit quants, d, dmin. Minima are subtracted.
fn unpack_q2k(block: &[u8], quants: &mut [i8], codes: &mut [i8], min_codes: &mut [i8]) -> (f32, f32) {
    for ((code, min_code), &packed) in codes.iter_mut().zip(min_codes).zip(&block[..16]) {
        *code = (packed & 15).cast_signed();
        *min_code = (packed >> 4).cast_signed();
    }
    pairs_of_bits(block, 16, quants, |q, _| q);
    (half(block, 80), -half(block, 82))
}

/// Layout: 32 bytes of third bits (unset: minus 4), 64 bytes of 2-bit quants, 16 6-bit scales (8 bytes of low halves, 4 of high pairs), d.
fn unpack_q3k(block: &[u8], quants: &mut [i8], codes: &mut [i8]) -> (f32, f32) {
    let (low, high) = block[96..108].split_at(8);
    for (i, code) in codes.iter_mut().enumerate().take(MOST_GROUPS) {
        let bits = low[i % 8] >> (4 * (i / 8)) & 15 | (high[i % 4] >> (2 * (i / 4)) & 3) << 4;
        *code = bits.cast_signed() - 32;
    }
    pairs_of_bits(block, 32, quants, |q, i| q - (!block[i % 32] >> (i / 32) & 1).cast_signed() * 4);
    (half(block, 108), 0.0)
}

/// Layout: 128 bytes of low halves, 64 bytes of high pairs, 16 signed scales, d. Quants are 6 bits, minus 32.
fn unpack_q6k(block: &[u8], quants: &mut [i8], codes: &mut [i8]) -> (f32, f32) {
    for (code, &packed) in codes.iter_mut().zip(&block[192..208]) {
        *code = packed.cast_signed();
    }
    pairs_of_bits(block, 128, quants, |high, i| {
        let (run, within) = (i / 128, i % 128);
        let low = block[64 * run + within % 64] >> (4 * (within / 64)) & 15;
        (low.cast_signed() | high << 4) - 32
    });
    (half(block, 208), 0.0)
}

/// A block that begins with its scale, and is otherwise unpacked by `rest`.
fn with_d(
    rest: fn(&[u8], &mut [i8], &mut [i8]),
    block: &[u8],
    quants: &mut [i8],
    codes: &mut [i8],
) -> (f32, f32) {
    rest(block, quants, codes);
    (half(block, 0), 0.0)
}

/// Layout: d, upper pairs of the eight 6-bit scales, their low halves, 4-bit quants. Scales are minus 32.
fn unpack_iq4_xs(block: &[u8], quants: &mut [i8], codes: &mut [i8]) -> (f32, f32) {
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (g, (quants, bytes)) in quants.chunks_exact_mut(32).zip(block[8..].chunks_exact(16)).enumerate() {
        let bits = block[4 + g / 2] >> (4 * (g % 2)) & 15 | ((high >> (2 * g) & 3) as u8) << 4;
        codes[g] = bits.cast_signed() - 32;
        nibbles(bytes, quants, |nibble, _| i_quants::IQ4[nibble as usize]);
    }
    (half(block, 0), 0.0)
}
