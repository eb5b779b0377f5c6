//! bf16 products by AMX: tiles of 16 rows of 64 bytes, multiplied by one instruction.
//!
//! Panels have AMX's layout: pairs of inputs by outputs. Written from Intel's manual (volume 2, TDPBF16PS; volume 1, chapter 18) and never
//! run, since no development machine had AMX. Hence used only if the system grants the tiles and a self-test passes ([`super`]).

use super::target::{PANEL, Target};
use crate::bfloat;

/// Rows per call: two tiles.
pub const ROWS: usize = 32;
/// Rows of a tile, and pairs per row.
const TILE: usize = 16;

pub fn is_here() -> bool {
    has_tiles() && granted()
}

/// AMX-TILE, AMX-BF16 and AVX512-BF16.
fn has_tiles() -> bool {
    let extended = std::arch::x86_64::__cpuid_count(7, 0).edx;
    bfloat::multiplies() && extended & (1 << 24) != 0 && extended & (1 << 22) != 0
}

/// Requests permission for tile state from Linux.
#[cfg(target_os = "linux")]
fn granted() -> bool {
    const REQUEST: libc::c_long = 0x1023; // ARCH_REQ_XCOMP_PERM
    const TILE_DATA: libc::c_long = 18; // XFEATURE_XTILEDATA
    // SAFETY: the call only reads its two numbers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn granted() -> bool {
    false
}

/// Tile shapes in the layout of LDTILECFG.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes per row.
    columns: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Tiles 0 to 3: sums; 4 and 5: activations with the given rows; 6 and 7: weights.
    fn of(first: usize, second: usize) -> Self {
        let mut shapes =
            Shapes { palette: 1, start_row: 0, reserved: [0; 14], columns: [0; 16], rows: [0; 16] };
        let rows = [first, first, second, second, first, second, TILE, TILE];
        for (tile, rows) in rows.into_iter().enumerate() {
            (shapes.columns[tile], shapes.rows[tile]) = (64, rows as u8);
        }
        shapes
    }
}

/// Up to [`ROWS`] rows `x` (rows, length) times a panel (length, outputs). Panics if sizes do not match.
pub fn tile(panel: &[u32], x: &[u32], length: usize, to: &mut Target<'_>) {
    let rows = x.len() / length.max(1);
    assert!(
        x.len() == rows * length && panel.len() == length * PANEL,
        "This is a bug: a tile of other sizes"
    );
    assert!((1..=ROWS).contains(&rows) && length > 0, "This is a bug: a tile of {rows} rows");
    // With few rows the second tile repeats the first and is ignored.
    let first = rows.min(TILE);
    let second = if rows > TILE { rows - TILE } else { first };
    let whole = length / TILE;
    // Remaining inputs, zero-padded.
    let (mut x_rest, mut panel_rest) = ([0u32; ROWS * TILE], [0u32; TILE * PANEL]);
    let rest = length - whole * TILE;
    if rest > 0 {
        for (to, row) in x_rest.chunks_exact_mut(TILE).zip(x.chunks_exact(length)) {
            to[..rest].copy_from_slice(&row[whole * TILE..]);
        }
        panel_rest[..rest * PANEL].copy_from_slice(&panel[whole * TILE * PANEL..]);
    }
    let beyond = if rows > TILE { TILE } else { 0 };
    let mut sums = [0f32; ROWS * PANEL];
    let shapes = Shapes::of(first, second);
    let weights = [panel.as_ptr(), panel_rest.as_ptr()];
    let activations = [x.as_ptr(), x_rest.as_ptr()];
    let strides = [4 * length, 4 * TILE];
    let counts = [whole, usize::from(rest > 0)];
    // SAFETY: every load reads rows of 64 bytes: of activations, `first` and `second` rows with the given strides, from the start and from
    // row `beyond` on, 16 pairs per count; of weights, 16 pairs of 128 bytes. All lie in the slices and arrays above (by the assertions and
    // copies), and the sums have room for two tiles of rows of 128 bytes. Nothing else uses tiles.
    unsafe {
        std::arch::asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack));
        std::arch::asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack));
        for part in 0..2 {
            if counts[part] == 0 {
                continue;
            }
            let stride = strides[part];
            std::arch::asm!(
                "2:",
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloadd tmm5, [{b} + {stride}*1]",
                "tileloadd tmm6, [{w} + {wide}*1]",
                "tileloadd tmm7, [{w} + {wide}*1 + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 64",
                "add {b}, 64",
                "add {w}, {step}",
                "dec {n}",
                "jnz 2b",
                a = inout(reg) activations[part] => _,
                b = inout(reg) activations[part].byte_add(beyond * stride) => _,
                w = inout(reg) weights[part] => _,
                n = inout(reg) counts[part] => _,
                stride = in(reg) stride,
                wide = in(reg) 4 * PANEL,
                step = const 4 * PANEL * TILE,
                options(nostack),
            );
        }
        let out = sums.as_mut_ptr();
        std::arch::asm!(
            "tilestored [{a} + {stride}*1], tmm0",
            "tilestored [{a} + {stride}*1 + 64], tmm1",
            "tilestored [{b} + {stride}*1], tmm2",
            "tilestored [{b} + {stride}*1 + 64], tmm3",
            "tilerelease",
            a = in(reg) out,
            b = in(reg) out.add(TILE * PANEL),
            stride = in(reg) 4 * PANEL,
            options(nostack),
        );
    }
    for (row, sums) in sums.chunks_exact(PANEL).enumerate().take(rows) {
        to.write(row, 0, sums);
    }
}
