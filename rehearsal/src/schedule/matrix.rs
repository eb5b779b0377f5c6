//! Warp matrix operations, with fragments laid out as in "Warp Level Matrix Instructions". With g = lane / 4 and p = lane % 4 * 2, a
//! register holds columns p and p + 1 of row g of an 8 × 8 block of halves.

use half::{bf16, f16};

use crate::abi::Thread;

/// Rows of A, and columns of B.
const ROWS: usize = 16;
const COLUMNS: usize = 8;
/// The largest inner dimension.
const INNER: usize = 16;
/// Offsets of B and C in `Thread::fragment`.
const B: usize = 4;
const C: usize = 6;

/// D = A B + C for a whole warp. Products are exact, sums are f32 in the order of the inner dimension; a GPU specifies neither order nor
/// rounding.
///
/// # Safety
/// The pointers are those of a whole warp's threads, to which there is no other reference.
pub unsafe fn multiply(warp: &[*mut Thread]) {
    // SAFETY: the caller vouches for them; so below.
    let (is_brain, inner) = unsafe { ((*warp[0]).lane != 0, (*warp[0]).clamp as usize) };
    let halves = |word: u32| {
        [word as u16, (word >> 16) as u16]
            .map(|bits| if is_brain { bf16::from_bits(bits).to_f32() } else { f16::from_bits(bits).to_f32() })
    };
    let mut a = [[0.0_f32; INNER]; ROWS];
    let mut b = [[0.0_f32; COLUMNS]; INNER];
    let mut c = [[0.0_f32; COLUMNS]; ROWS];
    for (lane, thread) in warp.iter().enumerate() {
        let fragment = unsafe { &(**thread).fragment };
        let (g, p) = (lane / 4, lane % 4 * 2);
        for from in (0..inner).step_by(8) {
            // Registers of A: upper rows, lower rows, then the next eight columns; of B likewise, by columns.
            for half in 0..2 {
                a[g + 8 * half][from + p..][..2].copy_from_slice(&halves(fragment[from / 4 + half]));
            }
            let pair = halves(fragment[B + from / 8]);
            (b[from + p][g], b[from + p + 1][g]) = (pair[0], pair[1]);
        }
        for half in 0..2 {
            let pair = [0, 1].map(|i| f32::from_bits(fragment[C + 2 * half + i]));
            c[g + 8 * half][p..][..2].copy_from_slice(&pair);
        }
    }
    for (a, c) in a.iter().zip(&mut c) {
        for (a, b) in a[..inner].iter().zip(&b) {
            c.iter_mut().zip(b).for_each(|(c, b)| *c += a * b);
        }
    }
    for (lane, thread) in warp.iter().enumerate() {
        let fragment = unsafe { &mut (**thread).fragment };
        let (g, p) = (lane / 4, lane % 4 * 2);
        for half in 0..2 {
            for i in 0..2 {
                fragment[2 * half + i] = c[g + 8 * half][p + i].to_bits();
            }
        }
    }
}

/// Loads each lane's fragment of up to four matrices of 8 rows of 16 bytes from shared memory. Lane 8 m + r holds the address of row r of
/// matrix m.
///
/// # Safety
/// As for [`multiply`], and the rows lie in the block's shared memory.
pub unsafe fn load(warp: &[*mut Thread]) {
    // SAFETY: the caller vouches for them; so below.
    let first = unsafe { &*warp[0] };
    let (count, transposed) = (first.clamp as usize, first.lane != 0);
    let shared = unsafe { (*first.block).shared };
    let mut matrices = [[[0_u16; 8]; 8]; 4];
    for (lane, thread) in warp.iter().enumerate().take(8 * count) {
        let row = unsafe { shared.add((**thread).value as usize).cast::<[u16; 8]>().read() };
        matrices[lane / 8][lane % 8] = row;
    }
    for (lane, thread) in warp.iter().enumerate() {
        let (g, p) = (lane / 4, lane % 4 * 2);
        let fragment = unsafe { &mut (**thread).fragment };
        for (register, matrix) in fragment.iter_mut().zip(&matrices[..count]) {
            let pair =
                if transposed { [matrix[p][g], matrix[p + 1][g]] } else { [matrix[g][p], matrix[g][p + 1]] };
            *register = u32::from(pair[0]) | u32::from(pair[1]) << 16;
        }
    }
}
