//! i-quants and ternary blocks of 256 columns, unpacked to the integers of `BlockType::unpack`. Most hold runs of a codebook ([`grids`])
//! with separate signs (source: ggml's `ggml-common.h`).
//!
//! Their scales are d (2 s + 1) / 2^k for a few bits s, so codes are odd numbers; k is the same for all blocks of a type.

use half::f16;

use super::grids::{self, Grid};

/// Quants of a 4-bit number in IQ4_NL and IQ4_XS.
pub(super) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Layout: d, then for each 32 columns four run numbers, and a word of four signs of 7 bits below 4 bits of scale.
pub(super) fn iq2_xxs(block: &[u8], quants: &mut [i8], codes: &mut [i8]) {
    let groups = block[2..].chunks_exact(8).zip(quants.chunks_exact_mut(32)).zip(codes);
    for ((bytes, quants), code) in groups {
        let word = word(bytes, 4);
        *code = odd(word >> 28);
        for (i, (quants, &number)) in quants.chunks_exact_mut(8).zip(bytes).enumerate() {
            grids::IQ2_XXS.write(usize::from(number), quants);
            negate(even(word >> (7 * i)), quants);
        }
    }
}

/// Layout: d, for each 8 columns 9 bits of run number below 7 of signs, then 4 bits of scale for each 16 columns.
pub(super) fn iq2_xs(block: &[u8], quants: &mut [i8], codes: &mut [i8]) {
    for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
        let run = u16::from_le_bytes([block[2 + 2 * i], block[3 + 2 * i]]);
        grids::IQ2_XS.write(usize::from(run & 511), quants);
        negate(even(u32::from(run >> 9)), quants);
        codes[i / 2] = nibble_code(&block[66..], i / 2);
    }
}

/// Layout: d, low bytes of the run numbers of each 8 columns, their signs, the numbers' upper two bits, 4 bits of scale for each 16 columns.
pub(super) fn iq2_s(block: &[u8], quants: &mut [i8], codes: &mut [i8]) {
    for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
        let high = usize::from(block[66 + i / 4] >> (2 * (i % 4)) & 3);
        grids::IQ2_S.write(usize::from(block[2 + i]) | high << 8, quants);
        negate(block[34 + i], quants);
        codes[i / 2] = nibble_code(&block[74..], i / 2);
    }
}

/// Layout: d, run numbers of each 4 columns, then for each 32 columns a word of signs and scale as in [`iq2_xxs`].
pub(super) fn iq3_xxs(block: &[u8], quants: &mut [i8], codes: &mut [i8]) {
    runs_of_four(&grids::IQ3_XXS, block, quants, |_| 0);
    for (g, (quants, code)) in quants.chunks_exact_mut(32).zip(codes).enumerate() {
        let word = word(block, 66 + 4 * g);
        *code = odd(word >> 28);
        for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
            negate(even(word >> (7 * i)), quants);
        }
    }
}

/// Layout: d, low bytes of the run numbers of each 4 columns, their upper bits, signs, 4 bits of scale for each 32 columns.
pub(super) fn iq3_s(block: &[u8], quants: &mut [i8], codes: &mut [i8]) {
    runs_of_four(&grids::IQ3_S, block, quants, |i| usize::from(block[66 + i / 8] >> (i % 8) & 1) << 8);
    for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
        negate(block[74 + i], quants);
        codes[i / 4] = nibble_code(&block[106..], i / 4);
    }
}

fn runs_of_four(grid: &Grid, block: &[u8], quants: &mut [i8], high: impl Fn(usize) -> usize) {
    for (i, quants) in quants.chunks_exact_mut(4).enumerate() {
        grid.write(usize::from(block[2 + i]) | high(i), quants);
    }
}

/// Layout: d, low bytes of the run numbers of each 8 columns, then for each 32 columns 16 bits: the numbers' upper three bits, 3 bits of
/// scale, and the sign of what is added to all quants.
pub(super) fn iq1_s(block: &[u8], quants: &mut [i8], codes: &mut [i8]) {
    for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
        let (g, within) = (i / 4, i % 4);
        let bits = u16::from_le_bytes([block[34 + 2 * g], block[35 + 2 * g]]);
        let high = usize::from(bits >> (3 * within) & 7);
        eighths(usize::from(block[2 + i]) | high << 8, bits >> 15 == 1, quants);
        codes[g] = odd(u32::from(bits >> 12 & 7));
    }
}

/// Layout: low bytes of the run numbers of each 8 columns; upper three bits and the sign of what is added, 4 bits each; four 16-bit words of
/// four scales of 3 bits below a quarter of d, which is returned.
pub(super) fn iq1_m(block: &[u8], quants: &mut [i8], codes: &mut [i8]) -> f32 {
    let word = |i: usize| u16::from_le_bytes([block[48 + 2 * i], block[49 + 2 * i]]);
    for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
        let high = block[32 + i / 2] >> (4 * (i % 2)) & 15;
        eighths(usize::from(block[i]) | usize::from(high & 7) << 8, high >= 8, quants);
        codes[i / 2] = odd(u32::from(word(i / 8) >> (3 * (i / 2 % 4)) & 7));
    }
    let d = (0..4).fold(0, |d, i| d | word(i) >> 12 << (4 * i));
    f16::from_bits(d).to_f32()
}

/// Run `number` of the ternary codebook, plus or minus 1/8; in eighths.
fn eighths(number: usize, minus: bool, quants: &mut [i8]) {
    grids::IQ1.write(number, quants);
    for q in quants {
        *q = 8 * *q + if minus { -1 } else { 1 };
    }
}

/// Layout: base-3 digits of 160, 80 and 16 quants in 32, 16 and 4 bytes, a byte of the fraction byte / 256 whose first digit is that of the
/// first columns; d.
pub(super) fn tq1_0(block: &[u8], quants: &mut [i8]) {
    let mut left = quants;
    for (bytes, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        let (of_run, rest) = left.split_at_mut(bytes.len() * digits);
        for (digit, quants) in of_run.chunks_exact_mut(bytes.len()).enumerate() {
            for (q, &byte) in quants.iter_mut().zip(bytes) {
                let fraction = byte.wrapping_mul(3u8.pow(digit as u32));
                *q = ((u16::from(fraction) * 3) >> 8) as i8 - 1;
            }
        }
        left = rest;
    }
}

/// 2 s + 1 for 3 or 4 bits s.
fn odd(bits: u32) -> i8 {
    (2 * bits + 1) as i8
}

/// [`odd`] of nibble `i`.
fn nibble_code(bytes: &[u8], i: usize) -> i8 {
    odd(u32::from(bytes[i / 2] >> (4 * (i % 2)) & 15))
}

/// Seven signs, and the eighth that makes the number of minuses even.
fn even(bits: u32) -> u8 {
    let seven = bits as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

fn negate(signs: u8, quants: &mut [i8]) {
    for (i, q) in quants.iter_mut().enumerate() {
        *q = if signs >> i & 1 == 1 { -*q } else { *q };
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
