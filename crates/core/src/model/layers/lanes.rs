//! From the bits of packed weights to registers of f32, one lane an output row.
//!
//! Shared by [`packed_matmul`](super::packed_matmul), which multiplies them, and by [`PackedWeight::dequantise`], so that both see the same
//! numbers. All of it is always inlined, so that it is compiled with the instructions that the caller was dispatched for.

use pulp::Simd;

use super::packed::{CODE_OFFSET, Factors, PANEL, PackedWeight};
use crate::model::weights::BlockType;

/// The bits of 2^23, an f32 whose last bit counts ones: a small whole number put there is that number, once 2^23 is subtracted.
const WHOLE: u32 = 0x4b00_0000;

/// The layout of a matrix's quants: `BITS` of a word each, the first column in the lowest.
pub(super) struct Quants<S: Simd, const PER_WORD: usize> {
    simd: S,
    mask: S::u32s,
    whole: S::u32s,
    /// 2^23 and what was added to the quants so that none is below zero.
    offset: S::f32s,
}

impl<S: Simd, const PER_WORD: usize> Quants<S, PER_WORD> {
    /// Bits of a quant.
    pub const BITS: u32 = 32 / PER_WORD as u32;

    /// Of quants to which `added` was added.
    #[inline(always)]
    pub fn new(simd: S, added: u8) -> Self {
        Quants {
            simd,
            mask: simd.splat_u32s((1 << Self::BITS) - 1),
            whole: simd.splat_u32s(WHOLE),
            offset: simd.splat_f32s(f32::from_bits(WHOLE) + f32::from(added)),
        }
    }

    /// Quant `i` of each of the words.
    #[inline(always)]
    pub fn get(&self, words: S::u32s, i: usize) -> S::f32s {
        let simd = self.simd;
        let bits = simd.wrapping_dyn_shr_u32s(words, simd.splat_u32s(Self::BITS * i as u32));
        let bits = simd.or_u32s(simd.and_u32s(bits, self.mask), self.whole);
        simd.sub_f32s(simd.transmute_f32s_u32s(bits), self.offset)
    }
}

/// The scales or minima of a panel.
pub(super) struct FactorsOf<'a, S: Simd> {
    simd: S,
    /// (blocks / 2, registers of a panel)
    halves: &'a [S::u32s],
    /// (groups / 4, registers of a panel)
    codes: &'a [S::u32s],
    quants: Quants<S, 4>,
    /// Groups of a block, as a power of two: a division a group would take as long as the group.
    in_block: u32,
    /// Halves are bf16.
    bf16: bool,
}

impl<'a, S: Simd> FactorsOf<'a, S> {
    /// The factors of panel `panel` of `weight`, among all `factors`.
    #[inline(always)]
    pub fn new(simd: S, factors: &'a Factors, weight: &PackedWeight, panel: usize) -> Self {
        let panels = weight.rows.div_ceil(PANEL);
        let (halves, codes) = (factors.halves.len() / panels, factors.codes.len() / panels);
        FactorsOf {
            simd,
            halves: S::as_simd_u32s(&factors.halves[panel * halves..][..halves]).0,
            codes: S::as_simd_u32s(&factors.codes[panel * codes..][..codes]).0,
            quants: Quants::new(simd, CODE_OFFSET),
            in_block: (weight.dtype.columns() / weight.groups.columns).trailing_zeros(),
            bf16: weight.dtype == BlockType::Mxfp4,
        }
    }

    /// The factors of group `group` for register `register` of output rows.
    #[inline(always)]
    pub fn get(&self, group: usize, register: usize) -> S::f32s {
        let (simd, registers) = (self.simd, PANEL / S::F32_LANES);
        let block = group >> self.in_block;
        let words = self.halves[block / 2 * registers + register];
        let words = simd.wrapping_dyn_shr_u32s(words, simd.splat_u32s(16 * (block % 2) as u32));
        let half = if self.bf16 { shifted_left(simd, words, 16) } else { from_f16(simd, words) };
        let half = simd.transmute_f32s_u32s(half);
        if self.codes.is_empty() {
            return half;
        }
        simd.mul_f32s(half, self.quants.get(self.codes[group / 4 * registers + register], group % 4))
    }
}

#[inline(always)]
fn shifted_left<S: Simd>(simd: S, words: S::u32s, by: u32) -> S::u32s {
    simd.wrapping_dyn_shl_u32s(words, simd.splat_u32s(by))
}

/// The bits in f32 of the f16 in the low half of each word.
#[inline(always)]
fn from_f16<S: Simd>(simd: S, words: S::u32s) -> S::u32s {
    let splat = |bits: u32| simd.splat_u32s(bits);
    let sign = simd.and_u32s(shifted_left(simd, words, 16), splat(1 << 31));
    let size = simd.and_u32s(shifted_left(simd, words, 13), splat(0x0fff_e000));
    let exponent = simd.and_u32s(size, splat(0x0f80_0000));
    // Exponents are biased by 15 there and by 127 here. The least one means 2^-14 times a fraction without a leading one, the
    // greatest one infinity or no number.
    let normal = simd.add_u32s(size, splat(112 << 23));
    let small = simd.transmute_f32s_u32s(simd.add_u32s(size, splat(113 << 23)));
    let small = simd.transmute_u32s_f32s(simd.sub_f32s(small, simd.splat_f32s(f32::from_bits(113 << 23))));
    let infinite = simd.or_u32s(size, splat(0x7f80_0000));
    let size = simd.select_u32s(simd.less_than_u32s(exponent, splat(1)), small, normal);
    let size = simd.select_u32s(simd.less_than_u32s(splat(0x0f7f_ffff), exponent), infinite, size);
    simd.or_u32s(sign, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct FromF16<'a>(&'a [u32], &'a mut [u32]);

    impl pulp::WithSimd for FromF16<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let (words, out) = (S::as_simd_u32s(self.0).0, S::as_mut_simd_u32s(self.1).0);
            for (out, &words) in out.iter_mut().zip(words) {
                *out = from_f16(simd, words);
            }
        }
    }

    #[test]
    fn every_f16_has_the_value_that_the_half_crate_gives_it() {
        let words: Vec<u32> = (0..=0xffff).map(|bits| bits | 0xabcd_0000).collect();
        let mut found = vec![0; words.len()];
        pulp::Arch::new().dispatch(FromF16(&words, &mut found));
        for (bits, found) in (0..=u16::MAX).zip(found) {
            let (found, expected) = (f32::from_bits(found), half::f16::from_bits(bits).to_f32());
            if expected.is_nan() {
                assert!(found.is_nan(), "{bits:#06x}: {found}");
            } else {
                assert_eq!(found.to_bits(), expected.to_bits(), "{bits:#06x}: {found}, not {expected}");
            }
        }
    }
}
