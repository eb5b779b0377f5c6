//! Codebooks of the i-quants: the runs of 4 or 8 quants that their blocks name by number.
//!
//! They are data of the format and follow no formula: `iq2xxs_grid` to `iq1s_grid` of ggml's `ggml-common.h` (MIT licence), written to
//! `grids.bin` by `tests/reference/block_reference.py` from the `gguf` Python package. A run is a little-endian u16 of eight 2-bit or
//! four 4-bit numbers of `values`, first lowest.

const RUNS: &[u8; 2 * 4608] = include_bytes!("grids.bin");

/// A codebook.
pub(super) struct Grid {
    /// Place of its first run.
    first: usize,
    values: [i8; 8],
}

const TERNARY: [i8; 8] = [-1, 0, 1, 0, 0, 0, 0, 0];
const THREE: [i8; 8] = [8, 25, 43, 0, 0, 0, 0, 0];

pub(super) const IQ2_XXS: Grid = Grid { first: 0, values: THREE };
pub(super) const IQ2_XS: Grid = Grid { first: 256, values: THREE };
pub(super) const IQ2_S: Grid = Grid { first: 768, values: THREE };
pub(super) const IQ3_XXS: Grid = Grid { first: 1792, values: [4, 12, 20, 28, 36, 44, 52, 62] };
pub(super) const IQ3_S: Grid = Grid { first: 2048, values: [1, 3, 5, 7, 9, 11, 13, 15] };
pub(super) const IQ1: Grid = Grid { first: 2560, values: TERNARY };

impl Grid {
    /// Writes run `number` to `quants`, as many as a run has.
    #[inline]
    pub fn write(&self, number: usize, quants: &mut [i8]) {
        let at = 2 * (self.first + number);
        let run = u16::from_le_bytes([RUNS[at], RUNS[at + 1]]);
        let bits = 16 / quants.len();
        for (i, q) in quants.iter_mut().enumerate() {
            let value = usize::from(run >> (bits * i)) & ((1 << bits) - 1);
            *q = self.values[value & 7];
        }
    }
}
