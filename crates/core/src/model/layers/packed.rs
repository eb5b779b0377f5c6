//! Quantised weights packed for decode ([`packed_matmul`]): 4 bits per weight where possible, else 8.
//!
//! A weight is `scale * quant + min` with a scale and minimum per group of 16 or 32 columns, as in all quantised GGUF types. Packing is
//! lossless: [`PackedWeight::dequantise`] equals the file's reader. Made by the loader, held by [`super::Projection`].
//!
//! [`packed_matmul`]: super::packed_matmul

use half::{bf16, f16};
use rayon::prelude::*;

use crate::model::weights::BlockType;
use crate::model::weights::gguf::block::Groups;

/// Offset that makes all codes of scales and minima non-negative.
pub(super) const CODE_OFFSET: u8 = 128;

/// Output rows per panel; their weights of one column are adjacent, one cache line of bytes.
pub(super) const PANEL: usize = 64;

/// A quantised (out, in) matrix.
#[derive(Debug)]
pub struct PackedWeight {
    pub(super) dtype: BlockType,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) groups: Groups,
    /// 4-bit quants: (panels, in / 8, rows of a panel), 8 columns per word, first column lowest. 8-bit: (panels, in / 4, rows of a panel).
    /// Offset to be non-negative ([`Groups::added`]).
    pub(super) quants: Vec<u32>,
    pub(super) scales: Factors,
    pub(super) mins: Option<Factors>,
}

/// Scales or minima: a half-precision number per block, for some types times a small integer per group.
#[derive(Debug)]
pub(super) struct Factors {
    /// (panels, in / block / 2, rows of a panel); f16 bits (MXFP4: bf16), first block in the low half.
    pub halves: Vec<u32>,
    /// (panels, in / group / 4, rows of a panel), one byte each, offset by [`CODE_OFFSET`]; empty if a block is one group.
    pub codes: Vec<u32>,
}

impl Factors {
    fn zeros(panels: usize, blocks: usize, codes: usize) -> Self {
        let words = |n: usize, per_word: usize| vec![0; panels * n.div_ceil(per_word) * PANEL];
        Factors { halves: words(blocks, 2), codes: words(codes, 4) }
    }

    /// Splits into panels: halves and codes.
    fn panels(&mut self, panels: usize) -> Vec<(&mut [u32], &mut [u32])> {
        let (halves, codes) = (self.halves.len() / panels.max(1), self.codes.len() / panels.max(1));
        let mut codes: Vec<&mut [u32]> = self.codes.chunks_exact_mut(codes.max(1)).collect();
        codes.resize_with(panels, Default::default);
        self.halves.chunks_exact_mut(halves.max(1)).zip(codes).collect()
    }
}

/// Writes `bits` as entry `i`, `32 / width` to a word, for row `row` of a panel.
fn put(words: &mut [u32], width: usize, i: usize, row: usize, bits: u32) {
    let per_word = 32 / width;
    if let Some(word) = words.get_mut(i / per_word * PANEL + row) {
        *word |= bits << (width * (i % per_word));
    }
}

impl PackedWeight {
    /// Packs a GGUF tensor of (rows, cols); `None` if the type is dense or `bytes` are not full blocks.
    pub fn from_blocks(dtype: BlockType, bytes: &[u8], rows: usize, cols: usize) -> Option<Self> {
        let groups = dtype.groups()?;
        let block = dtype.columns();
        let blocks = rows.checked_mul(cols)? / block;
        if rows == 0
            || cols == 0
            || !cols.is_multiple_of(block)
            || blocks.checked_mul(dtype.bytes())? != bytes.len()
        {
            return None;
        }
        let (panels, row_blocks, in_block) = (rows.div_ceil(PANEL), cols / block, block / groups.columns);
        let width = if groups.nibbles { 4 } else { 8 };
        let codes = if groups.codes { row_blocks * in_block } else { 0 };
        let mut quants = vec![0u32; panels * PANEL * cols * width / 32];
        let mut scales = Factors::zeros(panels, row_blocks, codes);
        let mut mins = groups.mins.then(|| Factors::zeros(panels, row_blocks, codes));
        let mut of_mins = mins.as_mut().map_or_else(Vec::new, |mins| mins.panels(panels));
        of_mins.resize_with(panels, Default::default);
        let half = |x: f32| match dtype {
            BlockType::Mxfp4 => bf16::from_f32(x).to_bits(),
            _ => f16::from_f32(x).to_bits(),
        };
        quants
            .par_chunks_exact_mut(PANEL * cols * width / 32)
            .zip(scales.panels(panels))
            .zip(of_mins)
            .zip(bytes.par_chunks(PANEL * row_blocks * dtype.bytes()))
            .for_each(|(((quants, scales), mins), bytes)| {
                let mut factors = [scales, mins];
                let mut of_block = [0i8; 256];
                let (mut codes, mut min_codes) = ([0i8; 16], [0i8; 16]);
                for (i, bytes) in bytes.chunks_exact(dtype.bytes()).enumerate() {
                    let (row, b) = (i / row_blocks, i % row_blocks);
                    let (d, m) = dtype.unpack(bytes, &mut of_block[..block], &mut codes, &mut min_codes);
                    for (c, &q) in of_block[..block].iter().enumerate() {
                        let bits = q.wrapping_add_unsigned(groups.added()).cast_unsigned();
                        put(quants, width, b * block + c, row, u32::from(bits));
                    }
                    for ((halves, of_groups), (number, codes)) in
                        factors.iter_mut().zip([(d, &codes), (m, &min_codes)])
                    {
                        put(halves, 16, b, row, u32::from(half(number)));
                        for (g, &code) in codes[..in_block].iter().enumerate() {
                            let bits = code.wrapping_add_unsigned(CODE_OFFSET).cast_unsigned();
                            put(of_groups, 8, b * in_block + g, row, u32::from(bits));
                        }
                    }
                }
            });
        Some(PackedWeight { dtype, rows, cols, groups, quants, scales, mins })
    }

    /// Packed size of a (rows, cols) weight; `None` for a dense type.
    pub fn bytes(dtype: BlockType, rows: u64, cols: u64) -> Option<u64> {
        let groups = dtype.groups()?;
        let elements = rows.checked_next_multiple_of(PANEL as u64)?.checked_mul(cols)?;
        let codes = if groups.codes { (cols / groups.columns as u64).div_ceil(4) } else { 0 };
        let factors = ((cols / dtype.columns() as u64).div_ceil(2) + codes) * if groups.mins { 2 } else { 1 };
        let panel_rows = rows.checked_next_multiple_of(PANEL as u64)?;
        Some(elements / if groups.nibbles { 2 } else { 1 } + panel_rows * factors * 4)
    }

    /// Output rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
}

#[cfg(test)]
pub(super) mod tests {
    use candle_core::quantized::QTensor;
    use candle_core::{Device, Tensor};

    use super::*;
    use crate::model::weights::gguf;

    /// All packable types.
    pub const TYPES: [BlockType; 22] = [
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
    ];

    /// Random weights (rows, cols) and their dequantised values, by Candle if it supports the type.
    pub fn blocks(dtype: BlockType, rows: usize, cols: usize) -> (Vec<u8>, Tensor) {
        let device = Device::Cpu;
        if let Some(candle) = dtype.candle() {
            let weight = Tensor::randn(0f32, 1.0, (rows, cols), &device).unwrap();
            let weight = QTensor::quantize(&weight, candle).unwrap();
            return (weight.data().unwrap().into_owned(), weight.dequantize(&device).unwrap());
        }
        // Bytes of all values, but that of the scale's exponent.
        let (at, exponent) = match dtype {
            BlockType::Mxfp4 => (0, 120),
            BlockType::IQ1_M => (55, 0x20),
            BlockType::TQ1_0 => (53, 0x20),
            BlockType::TQ2_0 => (65, 0x20),
            _ => (1, 0x20),
        };
        let block = |block: usize| {
            let byte = move |i| (block * 31 + i * i * 37 + i / 7) as u8;
            (0..dtype.bytes()).map(move |i| if i == at { exponent + (block % 8) as u8 } else { byte(i) })
        };
        let bytes: Vec<u8> = (0..rows * cols / dtype.columns()).flat_map(block).collect();
        let values = gguf::dequantise(dtype, &bytes).unwrap();
        (bytes, Tensor::from_vec(values, (rows, cols), &device).unwrap())
    }

    pub fn packed(dtype: BlockType, bytes: &[u8], rows: usize, cols: usize) -> PackedWeight {
        PackedWeight::from_blocks(dtype, bytes, rows, cols).unwrap()
    }

    /// Random weights, packed.
    pub fn random(dtype: BlockType, rows: usize, cols: usize) -> PackedWeight {
        packed(dtype, &blocks(dtype, rows, cols).0, rows, cols)
    }

    #[test]
    fn every_type_is_dequantised_to_the_bits_of_the_reader_of_files_in_whole_and_in_part() {
        for dtype in TYPES {
            for (rows, cols) in [(1, dtype.columns()), (200, 768)] {
                let (bytes, _) = blocks(dtype, rows, cols);
                let expected = gguf::dequantise(dtype, &bytes).unwrap();
                let weight = packed(dtype, &bytes, rows, cols);
                for part in [0..rows, 64.min(rows)..rows, 0..64.min(rows), 64.min(rows)..128.min(rows)] {
                    let found = weight.dequantise(part.clone());
                    assert_eq!(found.len(), cols * part.len());
                    for (i, found) in found.into_iter().enumerate() {
                        let (column, row) = (i / part.len(), part.start + i % part.len());
                        let expected = expected[row * cols + column];
                        assert!(found == expected, "{dtype:?} ({row}, {column}): {found}, not {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_packed_weight_takes_the_bytes_that_are_foretold() {
        for dtype in TYPES {
            for (rows, cols) in [(1, 256), (64, 768), (200, 512)] {
                let weight = random(dtype, rows, cols);
                let of = |f: &Factors| f.halves.len() + f.codes.len();
                let found = weight.quants.len() + of(&weight.scales) + weight.mins.as_ref().map_or(0, of);
                let foretold = PackedWeight::bytes(dtype, rows as u64, cols as u64);
                assert_eq!(foretold, Some(4 * found as u64), "{dtype:?}");
            }
        }
        assert_eq!(PackedWeight::bytes(BlockType::F16, 64, 32), None);
    }

    #[test]
    fn dense_types_and_bytes_that_are_not_whole_rows_of_blocks_are_not_packed() {
        for (dtype, bytes, rows, cols, whole) in [
            (BlockType::F16, 64, 1, 32, false),
            (BlockType::Q4_0, 18, 1, 32, true),
            (BlockType::Q4_0, 17, 1, 32, false),
            (BlockType::Q4_0, 18, 2, 16, false),
            (BlockType::Q4_0, 0, 0, 32, false),
            (BlockType::Q4K, 144, 8, 32, false),
            (BlockType::Q4_0, 0, usize::MAX, 32, false),
        ] {
            let found = PackedWeight::from_blocks(dtype, &vec![0; bytes], rows, cols);
            assert_eq!(found.is_some(), whole, "{dtype:?} ({rows}, {cols}) of {bytes} bytes");
        }
    }
}
