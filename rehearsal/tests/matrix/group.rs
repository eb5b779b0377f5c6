//! `wgmma`.
//!
//! The layouts of factors in shared memory, in plain terms, for the 128-byte swizzle and halves. PTX ISA, "Canonical Layouts", has them as
//! K-major `Swizzle<3,4,3> o ((8,m),(8,2)):((64,SBO),(1,8))` and MN-major `Swizzle<3,4,3> o ((8,8,m),(8,k)):((1,8,LBO),(64,SBO))`; CUTLASS
//! repeats them above `make_gmma_desc` (include/cute/atom/mma_traits_sm90_gmma.hpp). Two public kernels that run on cards fill in the same
//! numbers: ThunderKittens (include/types/shared/st_descriptor.cuh: K-major SBO 1024 and 32 bytes on for the next 16 of K; MN-major LBO
//! rows times 128, SBO 1024, and 2048 bytes on) and fast.cu (examples/matmul/matmul_7.cuh: K-major, SBO 1024, 32 bytes on).
//!
//! - K-major: a row of A, or a column of B, is 128 bytes, which hold 64 numbers along K. Eight of them make a pattern of 1,024 bytes; the
//!   next eight follow SBO bytes on.
//! - MN-major: 128 bytes hold 64 neighbouring columns (or rows of A) of one k. Eight k make a pattern; the next eight k follow SBO bytes
//!   on, the next 64 columns LBO bytes on.
//! - Swizzle: in line r of a pattern, the 16 bytes number c lie in the place of number c xor r.

use half::{bf16, f16};

use crate::card::{Card, End, NO_BINARY_FOR_GPU, Param, cuModuleLoadData, rehearse};

const HOPPER: (&str, &str) = ("REHEARSAL_COMPUTE_CAP", "9.0");
const RACES: (&str, &str) = ("REHEARSAL_RACES", "1");
/// Two steps of 16.
const INNER: usize = 32;
const ROWS: usize = 64;
const SBO: usize = 1024;
/// B's place in shared memory: A takes the first 8,192 bytes.
const B: usize = 8192;

/// Byte of element (row of A or column of B, k).
fn k_major(row: usize, k: usize) -> usize {
    row / 8 * SBO + row % 8 * 128 + ((k / 8) ^ (row % 8)) * 16 + k % 8 * 2
}

fn mn_major(column: usize, k: usize, lbo: usize) -> usize {
    column / 64 * lbo + k / 8 * SBO + k % 8 * 128 + ((column % 64 / 8) ^ (k % 8)) * 16 + column % 8 * 2
}

fn descriptor(start: usize, lbo: usize) -> u64 {
    (1 << 62) | ((SBO as u64 / 16) << 32) | ((lbo as u64 / 16) << 16) | (start as u64 / 16)
}

/// Small multiples of 1/8 of either sign: sums are exact in f32.
fn number(i: usize) -> f32 {
    ((i * 7919 + i / 13) % 31) as f32 / 8.0 - 1.875
}

fn half(brain: bool, x: f32) -> u16 {
    if brain { bf16::from_f32(x).to_bits() } else { f16::from_f32(x).to_bits() }
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    columns: usize,
    brain: bool,
    a_in_registers: bool,
    a_transposed: bool,
    b_transposed: bool,
    adds: bool,
    negates: bool,
}

impl Shape {
    fn lbo(&self) -> usize {
        INNER / 8 * SBO
    }

    fn registers(&self) -> usize {
        self.columns / 2
    }

    /// Byte of A(row, k) and of B(k, column) in shared memory.
    fn place_in_a(&self, row: usize, k: usize) -> usize {
        if self.a_transposed { mn_major(row, k, self.lbo()) } else { k_major(row, k) }
    }

    fn place_in_b(&self, column: usize, k: usize) -> usize {
        B + if self.b_transposed { mn_major(column, k, self.lbo()) } else { k_major(column, k) }
    }

    fn bytes(&self) -> usize {
        let patterns =
            if self.b_transposed { self.columns.div_ceil(64) * INNER / 8 } else { self.columns.div_ceil(8) };
        (B + patterns * SBO).next_multiple_of(128 * 16)
    }

    /// The product of one step, with D in registers `first` and on.
    fn product_into(&self, first: usize, step: usize) -> String {
        let sums = list("%f", first..first + self.registers());
        let of = if self.brain { "bf16" } else { "f16" };
        let on = |transposed: bool| step * if transposed { 2 * SBO } else { 32 };
        let a = if self.a_in_registers {
            list("%r", 4 * step..4 * step + 4)
        } else {
            format!("{:#x}", descriptor(on(self.a_transposed), self.lbo()))
        };
        let b = descriptor(B + on(self.b_transposed), self.lbo());
        let trans_a =
            if self.a_in_registers { String::new() } else { format!("{}, ", u8::from(self.a_transposed)) };
        let sign = if self.negates { -1 } else { 1 };
        let adds = u8::from(self.adds || step > 0);
        let load_a = if self.a_in_registers { String::new() } else { format!("mov.u64 %d4, {a};\n") };
        let a = if self.a_in_registers { a } else { "%d4".to_owned() };
        format!(
            "{load_a}mov.u64 %d5, {b:#x};
            setp.ne.u32 %q1, {adds}, 0;
            wgmma.mma_async.sync.aligned.m64n{}k16.f32.{of}.{of} {sums}, {a}, %d5, %q1, {sign}, 1, {trans_a}{};\n",
            self.columns,
            u8::from(self.b_transposed)
        )
    }
}

/// A product's first step with its group; all that may follow its fence.
fn committed(shape: &Shape) -> String {
    shape.product_into(0, 0) + COMMIT
}

/// The factors of [`PLAIN`] in shared memory, seen by the async proxy, and the fence of registers.
fn ready() -> String {
    fill(PLAIN.bytes()) + PUBLISH + FENCE
}

fn list(name: &str, numbers: std::ops::Range<usize>) -> String {
    format!("{{{}}}", numbers.map(|n| format!("{name}{n}")).collect::<Vec<_>>().join(", "))
}

/// A kernel of three parameters; `%lane` is the thread.
fn module(body: &str) -> String {
    format!(
        ".version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 tile[];
.visible .entry test(.param .u64 p0, .param .u64 p1, .param .u64 p2)
{{
.reg .pred %q<4>;
.reg .b32 %lane, %r<24>, %s<4>;
.reg .f32 %f<136>;
.reg .b64 %p<4>, %d<9>;
ld.param.u64 %p0, [p0];
ld.param.u64 %p1, [p1];
ld.param.u64 %p2, [p2];
mov.u32 %lane, %tid.x;
{body}
ret;
}}
"
    )
}

/// Copies shared memory's `bytes` from the first parameter, 16 at a time.
fn fill(bytes: usize) -> String {
    let mut out = "mov.u32 %s0, tile;
        mad.lo.s32 %s0, %lane, 16, %s0;
        mad.wide.u32 %d0, %lane, 16, %p0;\n"
        .to_owned();
    for at in (0..bytes).step_by(128 * 16) {
        out += &format!(
            "ld.global.v4.u32 {{%r20, %r21, %r22, %r23}}, [%d0+{at}];
            st.shared.v4.u32 [%s0+{at}], {{%r20, %r21, %r22, %r23}};\n"
        );
    }
    out
}

const PUBLISH: &str = "fence.proxy.async;\nbar.sync 0;\n";
const FENCE: &str = "wgmma.fence.sync.aligned;\n";
const COMMIT: &str = "wgmma.commit_group.sync.aligned;\n";
const WAIT: &str = "wgmma.wait_group.sync.aligned 0;\n";

/// Both steps for a shape, from D and A's registers in the second parameter to D in the third.
fn whole(shape: &Shape) -> String {
    let per_thread = 4 * (shape.registers() + 8);
    let mut body = fill(shape.bytes()) + PUBLISH;
    body += &format!(
        "mad.wide.u32 %d1, %lane, {per_thread}, %p1;\nmad.wide.u32 %d2, %lane, {per_thread}, %p2;\n"
    );
    for i in 0..shape.registers() {
        body += &format!("ld.global.f32 %f{i}, [%d1+{}];\n", 4 * i);
    }
    for i in 0..8 {
        body += &format!("ld.global.u32 %r{i}, [%d1+{}];\n", 4 * (shape.registers() + i));
    }
    body += FENCE;
    body += &(shape.product_into(0, 0) + &shape.product_into(0, 1) + COMMIT + WAIT);
    for i in 0..shape.registers() {
        body += &format!("st.global.f32 [%d2+{}], %f{i};\n", 4 * i);
    }
    module(&body)
}

/// Row and column of register `i` of D in a thread ("Register Fragments").
fn place_in_d(thread: usize, i: usize) -> (usize, usize) {
    let (warp, lane) = (thread / 32, thread % 32);
    (16 * warp + lane / 4 + i % 4 / 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2)
}

/// Row and column of half `i` of A in a thread.
fn place_in_a_fragment(thread: usize, i: usize) -> (usize, usize) {
    let (warp, lane) = (thread / 32, thread % 32);
    (16 * warp + lane / 4 + i / 2 % 2 * 8, lane % 4 * 2 + i % 2 + i / 4 * 8)
}

fn card(ptx: &str) -> Card {
    let mut card = Card::new(0);
    card.load(ptx, &["test"]);
    card
}

fn holds(shape: &Shape) {
    let a = |row: usize, k: usize| number(row * INNER + k + 5);
    let b = |k: usize, column: usize| number(k * shape.columns + column + 3000);
    let d = |row: usize, column: usize| number(row * shape.columns + column + 9000);
    let mut tile = vec![0xFF_u8; shape.bytes()];
    let mut put = |at: usize, x: f32| tile[at..at + 2].copy_from_slice(&half(shape.brain, x).to_le_bytes());
    for k in 0..INNER {
        (0..ROWS).filter(|_| !shape.a_in_registers).for_each(|row| put(shape.place_in_a(row, k), a(row, k)));
        (0..shape.columns).for_each(|column| put(shape.place_in_b(column, k), b(k, column)));
    }
    let per_thread = shape.registers() + 8;
    let mut registers = vec![0_u32; 128 * per_thread];
    for thread in 0..128 {
        let of_thread = &mut registers[thread * per_thread..][..per_thread];
        for (i, to) in of_thread[..shape.registers()].iter_mut().enumerate() {
            let (row, column) = place_in_d(thread, i);
            *to = d(row, column).to_bits();
        }
        for i in 0..16 {
            let (row, k) = place_in_a_fragment(thread, i % 8);
            let bits = u32::from(half(shape.brain, a(row, k + i / 8 * 16)));
            of_thread[shape.registers() + i / 2] |= bits << (16 * (i % 2));
        }
    }
    let card = card(&whole(shape));
    assert_eq!(card.try_shared("test", shape.bytes() as i32), 0);
    let (from, given) = (card.upload(&tile, 0), card.upload(&registers, 0));
    let to = card.alloc(128 * per_thread * 4, 0);
    let params =
        [Param::from(from), Param::from(given), Param::from(to), Param::shared(shape.bytes() as u32)];
    card.launch("test", 1, 128, 0, &params);
    let found = card.download::<f32>(to, 128 * per_thread, 0);
    let sign = if shape.negates { -1.0 } else { 1.0 };
    for thread in 0..128 {
        for i in 0..shape.registers() {
            let (row, column) = place_in_d(thread, i);
            let start = if shape.adds { d(row, column) } else { 0.0 };
            let expected = (0..INNER).fold(start, |sum, k| sum + sign * a(row, k) * b(k, column));
            let got = found[thread * per_thread + i];
            assert_eq!(got, expected, "{shape:?}: row {row}, column {column}");
        }
    }
}

const PLAIN: Shape = Shape {
    columns: 64,
    brain: true,
    a_in_registers: false,
    a_transposed: false,
    b_transposed: false,
    adds: false,
    negates: false,
};

#[test]
fn wgmma_is_the_product_of_the_documented_layouts() {
    let shapes = [
        PLAIN,
        Shape { columns: 8, brain: false, adds: true, ..PLAIN },
        Shape { columns: 128, negates: true, adds: true, ..PLAIN },
        Shape { b_transposed: true, ..PLAIN },
        Shape { columns: 256, b_transposed: true, a_in_registers: true, adds: true, ..PLAIN },
        Shape { columns: 128, brain: false, b_transposed: true, a_in_registers: true, ..PLAIN },
        Shape { columns: 72, a_transposed: true, adds: true, ..PLAIN },
    ];
    for settings in [&[HOPPER][..], &[HOPPER, RACES]] {
        rehearse("group::wgmma_is_the_product_of_the_documented_layouts", settings, || {
            shapes.iter().for_each(holds);
        })
        .is_clean();
    }
}

#[test]
fn cards_of_other_architectures_refuse_the_module() {
    for other in ["8.0", "8.9", "10.0", "12.0"] {
        let name = "group::cards_of_other_architectures_refuse_the_module";
        let end = rehearse(name, &[("REHEARSAL_COMPUTE_CAP", other)], || {
            Card::new(0);
            let text = std::ffi::CString::new(module("")).expect("PTX has no zero byte");
            let mut handle = 0_usize;
            let code = unsafe { cuModuleLoadData(&raw mut handle, text.as_ptr().cast()) };
            assert_eq!(code, NO_BINARY_FOR_GPU);
        });
        end.says(&["the module is for sm_90a alone"]);
    }
}

/// Runs a body in `threads` threads on zeros.
fn run(test: &str, settings: &[(&str, &str)], threads: u32, body: &str) -> End {
    let settings: Vec<_> = [HOPPER].iter().chain(settings).copied().collect();
    rehearse(&format!("group::{test}"), &settings, || {
        let card = card(&module(body));
        let from = card.upload(&vec![0_u8; PLAIN.bytes()], 0);
        let mut params = [from, from, from].map(Param::from).to_vec();
        params.push(Param::shared(PLAIN.bytes() as u32));
        card.launch("test", 1, threads, 0, &params);
        card.synchronise(0);
    })
}

/// Expects a fault whose line contains these parts.
#[track_caller]
fn faults(test: &str, body: &str, parts: &[&str]) {
    run(test, &[], 128, body).is_fault(parts);
}

#[test]
fn a_missing_proxy_fence_is_found() {
    let body = fill(PLAIN.bytes()) + "bar.sync 0;\n" + FENCE + &committed(&PLAIN) + WAIT;
    let parts =
        ["which thread 0 wrote, and no fence.proxy.async of that thread comes between", "wgmma.mma_async"];
    faults("a_missing_proxy_fence_is_found", &body, &parts);
}

#[test]
fn a_proxy_fence_before_the_write_is_found() {
    let body = "fence.proxy.async;\n".to_owned() + &fill(PLAIN.bytes()) + "bar.sync 0;\n" + FENCE;
    let body = body + &committed(&PLAIN) + WAIT;
    faults("a_proxy_fence_before_the_write_is_found", &body, &["no fence.proxy.async of that thread"]);
}

#[test]
fn a_missing_barrier_is_found() {
    let body = fill(PLAIN.bytes()) + "fence.proxy.async;\n" + FENCE + &committed(&PLAIN) + WAIT;
    let parts = ["a race: a warpgroup's product reads byte", "writes, and no barrier comes between"];
    run("a_missing_barrier_is_found", &[RACES], 128, &body).is_fault(&parts);
}

#[test]
fn a_factor_that_is_overwritten_before_the_wait_is_found() {
    let overwrite = "bar.sync 0;\nst.shared.u32 [tile+8], 1;\nbar.sync 0;\n";
    let body = ready() + &committed(&PLAIN) + overwrite + WAIT;
    let parts = ["bytes 0 to 15 of shared memory changed while a wgmma.mma_async read them", "wait_group"];
    faults("a_factor_that_is_overwritten_before_the_wait_is_found", &body, &parts);
}

#[test]
fn a_copy_over_a_factor_before_the_wait_is_found() {
    let copy = "bar.sync 0;\ncp.async.cg.shared.global [%s0], [%d0], 16;\n";
    let body = ready() + &committed(&PLAIN) + copy + WAIT + "cp.async.wait_all;\n";
    let parts = ["of shared memory changed while a wgmma.mma_async read them"];
    faults("a_copy_over_a_factor_before_the_wait_is_found", &body, &parts);
}

#[test]
fn an_overwrite_behind_a_products_back_is_a_race() {
    // Zeros over zeros: the bytes do not change.
    let body = ready() + &committed(&PLAIN) + "st.shared.u32 [tile+8], 0;\n" + WAIT;
    let end = run("an_overwrite_behind_a_products_back_is_a_race", &[RACES], 128, &body);
    end.is_fault(&["a race: warp 0 writes byte 8 of shared memory, which several warps reads"]);
}

#[test]
fn sums_that_are_read_without_a_wait_are_found() {
    let body = ready() + &committed(&PLAIN) + "add.f32 %f130, %f3, %f3;\n" + WAIT;
    let parts = ["%f3 is used before the wgmma.wait_group", "add.f32"];
    faults("sums_that_are_read_without_a_wait_are_found", &body, &parts);
}

#[test]
fn sums_whose_group_a_wait_leaves_are_found() {
    let wait = "wgmma.wait_group.sync.aligned 1;\nadd.f32 %f130, %f3, %f3;\n";
    let body = ready() + &committed(&PLAIN) + wait + WAIT;
    faults("sums_whose_group_a_wait_leaves_are_found", &body, &["%f3 is used before the wgmma.wait_group"]);
}

#[test]
fn a_wait_leaves_the_newest_group_and_no_older_one() {
    let both = ready() + &committed(&PLAIN) + &PLAIN.product_into(64, 1) + COMMIT;
    let body = both + "wgmma.wait_group.sync.aligned 1;\nadd.f32 %f130, %f3, %f3;\n" + WAIT;
    let body = body + "add.f32 %f130, %f67, %f67;\n";
    run("a_wait_leaves_the_newest_group_and_no_older_one", &[], 128, &body).is_clean();
}

#[test]
fn a_factor_in_registers_that_changes_before_the_wait_is_found() {
    let shape = Shape { a_in_registers: true, ..PLAIN };
    let body = ready() + &committed(&shape) + "mov.u32 %r2, 0;\n" + WAIT;
    let parts = ["%r2 is used before the wgmma.wait_group", "mov.u32"];
    faults("a_factor_in_registers_that_changes_before_the_wait_is_found", &body, &parts);
}

#[test]
fn a_product_without_a_fence_of_registers_is_found() {
    let body = fill(PLAIN.bytes()) + PUBLISH + &committed(&PLAIN) + WAIT;
    let parts = ["was used, and no wgmma.fence comes between", "wgmma.mma_async"];
    faults("a_product_without_a_fence_of_registers_is_found", &body, &parts);
}

#[test]
fn sums_that_are_scaled_without_a_new_fence_are_found() {
    let scaled = ready() + &committed(&PLAIN) + WAIT + "mul.f32 %f5, %f5, 0f40000000;\n";
    let body = scaled + &PLAIN.product_into(0, 1) + COMMIT + WAIT;
    let parts = ["%f5 was used, and no wgmma.fence comes between"];
    faults("sums_that_are_scaled_without_a_new_fence_are_found", &body, &parts);
}

#[test]
fn sums_in_flight_around_a_loop_are_found() {
    // The wait comes only after the loop, in which a sum is scaled.
    let again = "add.u32 %s1, %s1, 1;\nsetp.lt.u32 %q0, %s1, 3;\n@%q0 bra LOOP;\n";
    let body = fill(PLAIN.bytes()) + PUBLISH + "mov.u32 %s1, 0;\nLOOP:\nmul.f32 %f5, %f5, 0f40000000;\n";
    let body = body + FENCE + &committed(&PLAIN) + again + WAIT;
    faults("sums_in_flight_around_a_loop_are_found", &body, &["%f5 is used before the wgmma.wait_group"]);
}

#[test]
fn a_warp_that_has_ended_is_found() {
    let body = "setp.gt.u32 %q0, %lane, 95;\n@%q0 exit;\n".to_owned() + FENCE;
    let parts = ["a part of the warpgroup's 128 threads has ended", "wgmma.fence"];
    faults("a_warp_that_has_ended_is_found", &body, &parts);
}

#[test]
fn a_warp_that_waits_elsewhere_is_found() {
    let elsewhere = "setp.lt.u32 %q0, %lane, 96;\n@%q0 bra THERE;\nbar.sync 0;\nTHERE:\n";
    let parts = ["32 wait at a barrier", "96 for their warpgroup"];
    faults("a_warp_that_waits_elsewhere_is_found", &(elsewhere.to_owned() + FENCE), &parts);
}

#[test]
fn a_block_of_less_than_a_warpgroup_is_found() {
    let parts = ["a part of the warpgroup's 128 threads has ended, or never was"];
    run("a_block_of_less_than_a_warpgroup_is_found", &[], 96, FENCE).is_fault(&parts);
}

/// [`PLAIN`] with another place of B in its descriptor.
fn displaced(to: usize) -> String {
    let [from, to] = [B, to].map(|at| format!("{:#x}", descriptor(at, PLAIN.lbo())));
    ready() + &committed(&PLAIN).replace(&from, &to) + WAIT
}

#[test]
fn a_factor_that_begins_between_patterns_is_found() {
    let parts = ["its pattern begins at 8448, which is no multiple of 1024", "wgmma.mma_async"];
    faults("a_factor_that_begins_between_patterns_is_found", &displaced(B + 256), &parts);
}

#[test]
fn a_factor_outside_of_shared_memory_is_found() {
    let body = displaced(PLAIN.bytes() - 1024);
    faults(
        "a_factor_outside_of_shared_memory_is_found",
        &body,
        &["a product reads byte", "of shared memory"],
    );
}
