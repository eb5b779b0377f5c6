//! Unpacks quantised weights into f32 registers, one lane per output row.
//!
//! Shared by [`packed_matmul`](super::packed_matmul) and [`PackedWeight::dequantise`], so that both see the same numbers. Always inlined,
//! so that it is compiled with the dispatched target features.

use pulp::Simd;

use super::packed::{CODE_OFFSET, Factors, PANEL, PackedWeight};
use crate::model::weights::BlockType;

/// Magic constant of the u23 -> f32 conversion: the bits of 2^23. Adding a small integer to them and subtracting 2^23 converts it.
const WHOLE: u32 = 0x4b00_0000;

/// Unpacks quants of `BITS` bits per word, first column in the lowest bits.
pub(super) struct Quants<S: Simd, const PER_WORD: usize> {
    simd: S,
    mask: S::u32s,
    whole: S::u32s,
    /// The constant's value plus the offset that makes quants non-negative.
    offset: S::f32s,
}

impl<S: Simd, const PER_WORD: usize> Quants<S, PER_WORD> {
    /// Bits per quant.
    pub const BITS: u32 = 32 / PER_WORD as u32;

    /// `added`: offset of the stored quants, which count multiples of 2^-`halvings`.
    #[inline(always)]
    pub fn new(simd: S, added: u8, halvings: u32) -> Self {
        // A smaller exponent makes the last bits count less.
        let whole = WHOLE - (halvings << 23);
        Quants {
            simd,
            mask: simd.splat_u32s((1 << Self::BITS) - 1),
            whole: simd.splat_u32s(whole),
            offset: simd.splat_f32s(f32::from_bits(whole | u32::from(added))),
        }
    }

    #[inline(always)]
    pub fn get(&self, words: S::u32s, i: usize) -> S::f32s {
        let simd = self.simd;
        let bits = simd.wrapping_dyn_shr_u32s(words, simd.splat_u32s(Self::BITS * i as u32));
        let bits = simd.or_u32s(simd.and_u32s(bits, self.mask), self.whole);
        simd.sub_f32s(simd.transmute_f32s_u32s(bits), self.offset)
    }
}

/// Scales or minima of a panel.
pub(super) struct FactorsOf<'a, S: Simd> {
    simd: S,
    /// (blocks / 2, registers of a panel)
    halves: &'a [S::u32s],
    /// (groups / 4, registers of a panel)
    codes: &'a [S::u32s],
    quants: Quants<S, 4>,
    /// log2 of the groups per block; avoids a slow division per group.
    in_block: u32,
    /// Halves are bf16, else f16.
    bf16: bool,
}

impl<'a, S: Simd> FactorsOf<'a, S> {
    #[inline(always)]
    pub fn new(simd: S, factors: &'a Factors, weight: &PackedWeight, panel: usize) -> Self {
        let panels = weight.rows.div_ceil(PANEL);
        let (halves, codes) = (factors.halves.len() / panels, factors.codes.len() / panels);
        FactorsOf {
            simd,
            halves: S::as_simd_u32s(&factors.halves[panel * halves..][..halves]).0,
            codes: S::as_simd_u32s(&factors.codes[panel * codes..][..codes]).0,
            quants: Quants::new(simd, CODE_OFFSET, weight.groups.halvings),
            in_block: (weight.dtype.columns() / weight.groups.columns).trailing_zeros(),
            bf16: weight.dtype == BlockType::Mxfp4,
        }
    }

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

/// Bits in f32 of the f16 in the low half of each word.
#[inline(always)]
fn from_f16<S: Simd>(simd: S, words: S::u32s) -> S::u32s {
    let splat = |bits: u32| simd.splat_u32s(bits);
    let sign = simd.and_u32s(shifted_left(simd, words, 16), splat(1 << 31));
    let size = simd.and_u32s(shifted_left(simd, words, 13), splat(0x0fff_e000));
    let exponent = simd.and_u32s(size, splat(0x0f80_0000));
    // Exponent bias: 15 in f16, 127 in f32. Exponent 0 is subnormal (2^-14 times a fraction), the largest is infinity or NaN.
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
