//! Warpgroup products (`wgmma`): D = A B + D for 64 rows, with both factors, or B, in shared memory.
//!
//! A product computes when it is issued, since nothing can see its sums before the wait ([`crate::translate`] refuses that). It reads its
//! factors in shared memory until the wait, so their bytes are compared again there: a kernel that overwrites them too early is found.
//!
//! Layouts are those of "Shared Memory Matrix Layout" for 128-byte swizzling, the one mode that is understood. Rows of 128 bytes lie in
//! patterns of 8, which begin at multiples of 1,024 bytes; in row r of a pattern, the 16 bytes number c lie at c ^ r.

use std::collections::VecDeque;
use std::ffi::CStr;

use half::{bf16, f16};

use super::{RUNNING, stop_kernel};
use crate::abi::{Block, THREAD_BITS, Thread, UNIT, group_flags, warp_op};

/// Threads of a warpgroup.
pub const GROUP: usize = 128;
/// Rows of A.
const ROWS: usize = 64;
/// The inner dimension.
const INNER: usize = 16;
/// Halves of a row of a pattern, and the rows of a pattern.
const WIDTH: usize = 64;
const PATTERN_ROWS: usize = 8;
/// Bytes of a row, and of a pattern.
const ROW_BYTES: usize = 128;
const PATTERN: usize = PATTERN_ROWS * ROW_BYTES;

/// Factors that a product reads until its wait: their 16-byte units, and their bytes when it was issued.
struct Reading {
    units: Vec<usize>,
    bytes: Vec<[u8; UNIT]>,
}

/// Products of one warpgroup that were not waited for.
#[derive(Default)]
pub struct Pending {
    open: Vec<Reading>,
    committed: VecDeque<Vec<Reading>>,
}

/// Runs the operation that a whole warpgroup waits for, at one instruction.
///
/// # Safety
/// The pointers are those of the warpgroup's threads, to which there is no other reference, and of a live block.
pub unsafe fn run(threads: &[*mut Thread], pending: &mut Pending, all: &[*mut Thread]) {
    // SAFETY: the caller vouches for them; so below.
    let first = unsafe { &*threads[0] };
    match first.op {
        warp_op::GROUP_FENCE => {}
        warp_op::GROUP_COMMIT => {
            let group = std::mem::take(&mut pending.open);
            pending.committed.push_back(group);
        }
        warp_op::GROUP_WAIT => {
            while pending.committed.len() > first.value as usize {
                for reading in pending.committed.pop_front().into_iter().flatten() {
                    unsafe { end_reading(first, &reading) };
                }
            }
        }
        _ => {
            let reading = unsafe { multiply(threads, all) };
            pending.open.push(reading);
        }
    }
}

/// A matrix descriptor ("Matrix Descriptor Format"), offsets in bytes.
struct Descriptor {
    start: usize,
    leading: usize,
    stride: usize,
}

impl Descriptor {
    fn of(bits: u64, transposed: bool, width: usize) -> Result<Self, String> {
        const RESERVED: u64 = 0x3FF1_C000_C000_C000;
        let encoded = |from: u32| ((bits >> from & 0x3FFF) << 4) as usize;
        let found = Descriptor { start: encoded(0), leading: encoded(16), stride: encoded(32) };
        let refuse = |why: String| Err(format!("the matrix descriptor {bits:#018x}: {why}"));
        if bits & RESERVED != 0 {
            return refuse(format!("its bits {:#x} have no meaning and must be 0", bits & RESERVED));
        }
        if bits >> 62 != 1 {
            return refuse(format!("the swizzling mode {}; only 1, of 128 bytes, is understood", bits >> 62));
        }
        if bits >> 49 & 7 != 0 {
            return refuse("a base offset is not understood".to_owned());
        }
        let pattern = found.start - found.start % ROW_BYTES;
        if !pattern.is_multiple_of(PATTERN) {
            return refuse(format!("its pattern begins at {pattern}, which is no multiple of {PATTERN}"));
        }
        if !found.stride.is_multiple_of(PATTERN) {
            return refuse(format!(
                "its stride dimension offset of {} is no multiple of {PATTERN}",
                found.stride
            ));
        }
        // Steps along the inner dimension of a K-major matrix stay within the rows of a pattern.
        if transposed {
            if found.start != pattern {
                return refuse(format!("it begins within a row of its pattern, at {}", found.start));
            }
            if width > WIDTH && !found.leading.is_multiple_of(PATTERN) {
                return refuse(format!(
                    "its leading dimension offset of {} is no multiple of {PATTERN}",
                    found.leading
                ));
            }
        } else if found.start % ROW_BYTES + 2 * INNER > ROW_BYTES {
            return refuse(format!("16 numbers from {} on leave the row of 128 bytes", found.start));
        }
        Ok(found)
    }

    /// Offset in shared memory of 8 halves, from (`row`, `inner`) on: along the inner dimension, or along the rows if transposed. Rows are
    /// those of A, or columns of B.
    fn unit(&self, row: usize, inner: usize, transposed: bool) -> usize {
        let linear = if transposed {
            // ((8 halves, 8, m), (8, k)) : ((1, 8, leading), (64, stride))
            row % WIDTH * 2
                + row / WIDTH * self.leading
                + inner % PATTERN_ROWS * ROW_BYTES
                + inner / PATTERN_ROWS * self.stride
        } else {
            // ((8, m), (8 halves, 2)) : ((64, stride), (1, 8)); the leading dimension offset is not used.
            row % PATTERN_ROWS * ROW_BYTES + row / PATTERN_ROWS * self.stride + inner * 2
        };
        let at = self.start + linear;
        at ^ ((at / ROW_BYTES % PATTERN_ROWS) * UNIT)
    }
}

/// A factor in shared memory as (`rows`, [`INNER`]) numbers, and its units.
unsafe fn factor(
    thread: &Thread,
    bits: u64,
    rows: usize,
    transposed: bool,
    number: &impl Fn(u16) -> f32,
) -> (Vec<[f32; INNER]>, Vec<usize>) {
    // SAFETY: the block lives as long as its threads; so below.
    let block = unsafe { &*thread.block };
    let descriptor =
        Descriptor::of(bits, transposed, rows).unwrap_or_else(|why| unsafe { fault(thread, &why) });
    let mut out = vec![[0.0; INNER]; rows];
    let mut units = Vec::with_capacity(rows * 2);
    let (row_step, inner_step) = if transposed { (8, 1) } else { (1, 8) };
    for row in (0..rows).step_by(row_step) {
        for inner in (0..INNER).step_by(inner_step) {
            let at = descriptor.unit(row, inner, transposed);
            if at + UNIT > block.shared_bytes as usize {
                let why = format!("a product reads byte {at} of {} of shared memory", block.shared_bytes);
                unsafe { fault(thread, &why) }
            }
            units.push(at / UNIT);
            let halves = unsafe { block.shared.add(at).cast::<[u16; 8]>().read() };
            for (i, half) in halves.into_iter().enumerate() {
                let (row, inner) = if transposed { (row + i, inner) } else { (row, inner + i) };
                out[row][inner] = number(half);
            }
        }
    }
    (out, units)
}

/// D = A B + D. Products are exact, sums are f32 in the order of the inner dimension; a GPU specifies neither order nor rounding.
unsafe fn multiply(threads: &[*mut Thread], all: &[*mut Thread]) -> Reading {
    // SAFETY: the caller vouches for the threads; so below.
    let first = unsafe { &*threads[0] };
    let (is_brain, columns, flags) = (first.lane != 0, first.clamp as usize, first.value);
    let is = |flag: u32| flags & flag != 0;
    let number =
        |bits: u16| if is_brain { bf16::from_bits(bits).to_f32() } else { f16::from_bits(bits).to_f32() };
    let descriptor = |thread: &Thread, from: usize| {
        u64::from(thread.fragment[from]) | u64::from(thread.fragment[from + 1]) << 32
    };
    let from = if is(group_flags::A_IN_REGISTERS) { 6 } else { 4 };
    for thread in threads.iter().map(|thread| unsafe { &**thread }) {
        if thread.fragment[from..8] != first.fragment[from..8] || thread.value != flags {
            unsafe { fault(thread, "the threads of a warpgroup differ in descriptors or in scale-d") }
        }
    }
    let (b, mut units) =
        unsafe { factor(first, descriptor(first, 6), columns, is(group_flags::TRANSPOSES_B), &number) };
    let a = if is(group_flags::A_IN_REGISTERS) {
        let mut a = vec![[0.0; INNER]; ROWS];
        for (place, thread) in threads.iter().enumerate() {
            let (row, column) = (place / 32 * 16 + place % 32 / 4, place % 4 * 2);
            for (index, word) in unsafe { &**thread }.fragment[..4].iter().enumerate() {
                let to = &mut a[row + index % 2 * 8][column + index / 2 * 8..][..2];
                to.copy_from_slice(&[number(*word as u16), number((*word >> 16) as u16)]);
            }
        }
        a
    } else {
        let (a, more) =
            unsafe { factor(first, descriptor(first, 4), ROWS, is(group_flags::TRANSPOSES_A), &number) };
        units.extend(more);
        a
    };
    let sign = if is(group_flags::NEGATES_A) == is(group_flags::NEGATES_B) { 1.0 } else { -1.0 };
    let mut by_inner = vec![0.0_f32; INNER * columns];
    for (column, b) in b.iter().enumerate() {
        for (inner, b) in b.iter().enumerate() {
            by_inner[inner * columns + column] = *b;
        }
    }
    let mut row_of_d = vec![0.0_f32; columns];
    for row in 0..ROWS {
        // Four lanes hold a row: columns 2 p and 2 p + 1 of each eight; registers 2 and 3 of four are eight rows below.
        let (warp, half, lane) = (row / 16, row % 16 / 8, row % 8 * 4);
        let place =
            |column: usize| (warp * 32 + lane + column % 8 / 2, column / 8 * 4 + half * 2 + column % 2);
        for (column, d) in row_of_d.iter_mut().enumerate() {
            let (thread, register) = place(column);
            *d = if is(group_flags::ADDS) {
                f32::from_bits(unsafe { (*threads[thread]).sums.add(register).read() })
            } else {
                0.0
            };
        }
        for (a, b) in a[row].iter().zip(by_inner.chunks_exact(columns)) {
            row_of_d.iter_mut().zip(b).for_each(|(d, b)| *d += sign * a * b);
        }
        for (column, d) in row_of_d.iter().enumerate() {
            let (thread, register) = place(column);
            unsafe { (*threads[thread]).sums.add(register).write(d.to_bits()) };
        }
    }
    unsafe {
        check_proxies(first, &units, all);
        trace(first, &units);
        let bytes = units.iter().map(|unit| bytes_of(first, *unit)).collect();
        Reading { units, bytes }
    }
}

unsafe fn bytes_of(thread: &Thread, unit: usize) -> [u8; UNIT] {
    // SAFETY: `factor` checked the bounds, and the block lives as long as its threads.
    unsafe { (*thread.block).shared.add(unit * UNIT).cast::<[u8; UNIT]>().read() }
}

/// The end of a product at its wait.
unsafe fn end_reading(thread: &Thread, reading: &Reading) {
    // SAFETY: the caller vouches for the thread.
    unsafe { trace(thread, &reading.units) };
    for (unit, before) in reading.units.iter().zip(&reading.bytes) {
        if unsafe { bytes_of(thread, *unit) } != *before {
            let why = format!(
                "bytes {} to {} of shared memory changed while a wgmma.mma_async read them, before its wgmma.wait_group",
                unit * UNIT,
                unit * UNIT + UNIT - 1
            );
            unsafe { fault(thread, &why) }
        }
    }
}

/// The async proxy sees a thread's writes after the thread's `fence.proxy.async`.
unsafe fn check_proxies(thread: &Thread, units: &[usize], all: &[*mut Thread]) {
    // SAFETY: the caller vouches for the threads and their block.
    let generic = unsafe { (*thread.block).generic };
    for unit in units {
        let entry = unsafe { generic.add(*unit).read() };
        let (writer, fences) = ((entry & ((1 << THREAD_BITS) - 1)) as usize, entry >> THREAD_BITS);
        if writer > 0 && unsafe { (*all[writer - 1]).fences } <= fences {
            let why = format!(
                "a product reads byte {} of shared memory, which thread {} wrote, and no fence.proxy.async of that thread comes between",
                unit * UNIT,
                writer - 1
            );
            unsafe { fault(thread, &why) }
        }
    }
}

/// Records the reads for the search for races. Every warp of the group may read every byte.
unsafe fn trace(thread: &Thread, units: &[usize]) {
    // As in `kernel/race.h`.
    const COPYING: u32 = 128;
    const SEVERAL_WARPS: u32 = 128;
    // SAFETY: the caller vouches for the thread; a trace is there for each byte of shared memory, if any is.
    let block: &Block = unsafe { &*thread.block };
    if block.traces.is_null() {
        return;
    }
    let now = block.barriers << 8;
    for byte in units.iter().flat_map(|unit| unit * UNIT..(unit + 1) * UNIT) {
        let trace = unsafe { &mut *block.traces.add(byte) };
        let writes = if trace.written & COPYING != 0 {
            "has an asynchronous copy write until it waits for it"
        } else if trace.written & !255 == now {
            "writes, and no barrier comes between"
        } else {
            trace.read = now | SEVERAL_WARPS;
            continue;
        };
        let why = format!(
            "a race: a warpgroup's product reads byte {byte} of shared memory, which warp {} {writes}",
            trace.written & 31
        );
        unsafe { fault(thread, &why) }
    }
}

/// Stops the program at the thread's instruction.
///
/// # Safety
/// The thread is live.
pub unsafe fn fault(thread: &Thread, why: &str) -> ! {
    RUNNING.set(thread);
    // SAFETY: `at` is a literal of the kernel.
    let at = unsafe { CStr::from_ptr(thread.at) }.to_string_lossy();
    stop_kernel(why, &at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWIZZLED: u64 = 1 << 62;

    fn descriptor(start: u64, leading: u64, stride: u64) -> u64 {
        SWIZZLED | ((stride / 16) << 32) | ((leading / 16) << 16) | (start / 16)
    }

    #[test]
    fn rows_of_a_pattern_are_swizzled_by_their_number() {
        let found = Descriptor::of(descriptor(2048, 0, 1024), false, 64).expect("a descriptor");
        // Row 3 of the second pattern: its first 16 bytes lie where number 3 would.
        assert_eq!(found.unit(11, 0, false), 2048 + 1024 + 3 * 128 + 3 * 16);
        assert_eq!(found.unit(11, 8, false), 2048 + 1024 + 3 * 128 + 2 * 16);
        // Sixteen numbers further on, the row is the same: the third 16 bytes lie where number 2 ^ 3 would.
        let next = Descriptor::of(descriptor(2048 + 32, 0, 1024), false, 64).expect("a descriptor");
        assert_eq!(next.unit(11, 0, false), 2048 + 1024 + 3 * 128 + 16);
    }

    #[test]
    fn transposed_matrices_have_rows_along_the_inner_dimension() {
        let found = Descriptor::of(descriptor(0, 8192, 1024), true, 128).expect("a descriptor");
        assert_eq!(found.unit(0, 5, true), 5 * 128 + 5 * 16);
        assert_eq!(found.unit(64 + 16, 8 + 1, true), 8192 + 1024 + 128 + 3 * 16);
    }

    #[test]
    fn what_a_descriptor_may_not_say_is_refused() {
        let why = |bits, transposed| Descriptor::of(bits, transposed, 128).err().unwrap_or_default();
        assert!(why(descriptor(0, 0, 1024) | 1 << 14, false).contains("no meaning"));
        assert!(why(descriptor(0, 0, 1024) & !SWIZZLED, false).contains("swizzling mode 0"));
        assert!(why(descriptor(0, 0, 1024) | 1 << 49, false).contains("base offset"));
        assert!(why(descriptor(128, 0, 1024), false).contains("begins at 128"));
        assert!(why(descriptor(0, 0, 512), false).contains("stride dimension offset of 512"));
        assert!(why(descriptor(112, 0, 1024), false).contains("leave the row"));
        assert!(why(descriptor(32, 8192, 1024), true).contains("within a row"));
        assert!(why(descriptor(0, 512, 1024), true).contains("leading dimension offset of 512"));
    }
}
