//! Loads and stores in every space, their checks, variables, parameters and calls; and unsupported text.

use crate::machine::{Shape, Stopped, launch};
use crate::snippets::module;

const ONE: Shape = Shape { blocks: 1, threads: 1, dynamic: 0 };

/// Runs a body with one thread and the buffers `%a1`, `%a2`.
fn run(before: &str, body: &str, buffers: &mut [Vec<u32>]) -> Result<(), Stopped> {
    let loads = "ld.param.u64 %a1, [param0];
        ld.param.u64 %a2, [param1];
        ";
    launch(&module(2, before, &format!("{loads}{body}")), ONE, buffers)
}

/// Buffers after a body that must not stop.
fn done(before: &str, body: &str, given: &[u32], results: usize) -> Vec<u32> {
    let mut buffers = [given.to_vec(), vec![0; results]];
    run(before, body, &mut buffers).unwrap_or_else(|(what, at)| panic!("{what}: {at}"));
    buffers[1].clone()
}

fn stopped(body: &str) -> Stopped {
    run("", body, &mut [vec![1, 2, 3, 4, 5, 6, 7, 8], vec![0; 8]]).expect_err("it stops")
}

#[test]
fn vectors_are_loaded_and_stored_whole() {
    let body = "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%a1+16];
        st.global.v4.u32 [%a2], {%r4, %r3, %r2, %r1};
        ld.global.nc.v2.f32 {%f1, %f2}, [%a1];
        add.f32 %f3, %f1, %f2;
        st.global.f32 [%a2+16], %f3;
        ld.global.v2.u64 {%a1, %d1}, [%a1];
        st.global.u64 [%a2+24], %d1;";
    let given = [0x3F80_0000, 0x4000_0000, 9, 10, 1, 2, 3, 4];
    assert_eq!(done("", body, &given, 8), [4, 3, 2, 1, 0x4040_0000, 0, 9, 10]);
}

#[test]
fn narrow_loads_are_extended_and_wide_registers_are_cut() {
    let body = "ld.global.s8 %r1, [%a1];
        st.global.u32 [%a2], %r1;
        ld.global.u8 %h1, [%a1];
        st.global.u16 [%a2+4], %h1;
        ld.global.s16 %d1, [%a1+2];
        st.global.u64 [%a2+8], %d1;
        mov.u32 %r2, 0x12345678;
        st.global.u8 [%a2+6], %r2;";
    assert_eq!(done("", body, &[0x8001_00F0], 4), [0xFFFF_FFF0, 0x0078_00F0, 0xFFFF_8001, 0xFFFF_FFFF]);
}

#[test]
fn accesses_outside_of_their_memory_stop_with_the_instruction() {
    let (what, at) = stopped("ld.global.u32 %r1, [%a1+32];");
    assert_eq!(what, "outside of every buffer");
    assert!(at.starts_with("test, line ") && at.ends_with(": ld.global.u32 %r1, [%a1+32]"), "{at}");
    assert_eq!(stopped("ld.global.u8 %r1, [%a1+-1];").0, "outside of every buffer");
    // The first access is allowed, so the second one skips the check at first.
    let body = "mov.u32 %r1, 0;
        AGAIN:
        ld.global.u32 %r2, [%a1];
        add.s64 %a1, %a1, 4;
        add.s32 %r1, %r1, 1;
        setp.lt.u32 %p1, %r1, 9;
        @%p1 bra AGAIN;";
    assert_eq!(stopped(body).0, "outside of every buffer");
    // The end of the address space: address plus size must not wrap.
    assert_eq!(
        stopped(
            "mov.u64 %d1, -4;
            ld.global.u32 %r1, [%a1];
            ld.u32 %r1, [%d1];"
        )
        .0,
        "outside of every buffer"
    );
    assert!(stopped("st.shared.u32 [0], %r1;").0.contains("out of bounds"));
    assert!(
        stopped(
            "mov.u64 %d1, 4096;
        ld.local.u32 %r1, [%d1];"
        )
        .0
        .contains("local memory")
    );
}

#[test]
fn misaligned_accesses_stop_also_of_vectors_whose_elements_are_aligned() {
    assert!(stopped("ld.global.u32 %r1, [%a1+2];").0.starts_with("misaligned access of 4 bytes"));
    assert!(
        stopped("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%a1+8];")
            .0
            .starts_with("misaligned access of 16 bytes")
    );
    assert!(stopped("st.global.v2.f32 [%a2+4], {%f1, %f2};").0.starts_with("misaligned access of 8 bytes"));
    let shared = ".shared .align 16 .b8 tile[64];
        mov.u32 %r1, tile;
        st.shared.v4.u32 [%r1+8], {%r1, %r1, %r1, %r1};";
    assert!(stopped(shared).0.contains("misaligned"));
    assert!(
        stopped(
            ".local .align 8 .b8 own[16];
        st.local.u32 [own+2], %r1;"
        )
        .0
        .contains("misaligned")
    );
}

#[test]
fn local_arrays_are_each_threads_own_and_have_generic_addresses() {
    let body = ".local .align 8 .b8 own[32];
        mov.u64 %d1, own;
        cvta.local.u64 %d2, %d1;
        st.local.v2.u32 [%d1+8], {5, 6};
        ld.u32 %r1, [%d2+12];
        st.global.u32 [%a2], %r1;
        cvta.to.local.u64 %d3, %d2;
        ld.local.u32 %r2, [%d3+8];
        st.global.u32 [%a2+4], %r2;";
    let mut buffers = [vec![0], vec![0; 2]];
    // The runtime judges generic addresses: this one knows buffers only.
    assert_eq!(run("", body, &mut buffers).expect_err("stops").0, "outside of every buffer");
    let body = body.replace("ld.u32 %r1, [%d2+12]", "ld.local.u32 %r1, [%d1+12]");
    assert_eq!(done("", &body, &[0], 2), [6, 5]);
}

#[test]
fn variables_of_the_module_hold_what_they_were_given_and_are_not_written() {
    let before = ".global .align 4 .u32 table[4] = {7, 8, -1};
        .const .align 8 .f64 third = 0d3FD5555555555555;
        .global .align 1 .b8 text[4] = {72, 105, 33};";
    let body = "ld.global.u32 %r1, [table+8];
        st.global.u32 [%a2], %r1;
        ld.global.u32 %r1, [table+12];
        st.global.u32 [%a2+4], %r1;
        mov.u64 %d1, text;
        ld.global.u8 %r1, [%d1+1];
        st.global.u32 [%a2+8], %r1;
        ld.const.f64 %g1, [third];
        st.global.f64 [%a2+16], %g1;";
    let third = (1.0_f64 / 3.0).to_bits();
    assert_eq!(done(before, body, &[0], 6), [u32::MAX, 0, 105, 0, third as u32, (third >> 32) as u32]);
    let past = run(before, "ld.global.u32 %r1, [table+16];", &mut [vec![0], vec![0]]).expect_err("it stops");
    assert_eq!(past.0, "outside of every buffer");
    let written = run(before, "st.global.u32 [table], %r1;", &mut [vec![0], vec![0]]).expect_err("it stops");
    assert!(written.0.contains("a variable of its module"), "{}", written.0);
}

const FUNCTIONS: &str = "
.func (.param .b32 result) square(.param .b32 x) {
  .reg .b32 %r<4>;
  ld.param.u32 %r1, [x];
  mul.lo.s32 %r2, %r1, %r1;
  st.param.b32 [result+0], %r2;
  ret;
}
.func (.param .align 8 .b8 sum[8]) squares(.param .b32 x, .param .b32 y) {
  .reg .b32 %r<9>;
  .reg .pred %p1;
  .local .align 4 .b8 kept[8];
  ld.param.u32 %r1, [x];
  ld.param.u32 %r2, [y];
  st.local.u32 [kept], %r2;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), square, (a); ld.param.b32 %r3, [b]; }
  ld.local.u32 %r2, [kept];
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call.uni (b), square, (a); ld.param.b32 %r4, [b]; }
  st.param.b32 [sum+0], %r3;
  st.param.b32 [sum+4], %r4;
  ret;
}";

#[test]
fn functions_are_called_with_parameters_and_call_others() {
    let body = ".local .align 4 .b8 mine[4];
        st.local.u32 [mine], 77;
        {
        .param .b32 p0;
        .param .b32 p1;
        .param .align 8 .b8 q[8];
        st.param.b32 [p0+0], 3;
        st.param.b32 [p1+0], 5;
        call.uni (q),
        squares,
        (p0, p1);
        ld.param.b32 %r1, [q+0];
        ld.param.b32 %r2, [q+4];
        }
        st.global.v2.u32 [%a2], {%r1, %r2};
        ld.local.u32 %r3, [mine];
        st.global.u32 [%a2+8], %r3;";
    assert_eq!(done(FUNCTIONS, body, &[0], 3), [9, 25, 77]);
}

#[test]
fn failed_assertions_say_what_failed() {
    let before = ".extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c,
        .param .b64 d, .param .b64 e) .noreturn;
        .global .align 1 .b8 message[3] = {97, 61, 98};
        .global .align 1 .b8 file[5] = {120, 46, 99, 117, 0};";
    let body = "mov.u64 %d1, message;
        cvta.global.u64 %d1, %d1;
        mov.u64 %d2, file;
        {
        .param .b64 p0;
        st.param.b64 [p0], %d2;
        .param .b64 p1;
        st.param.b64 [p1], %d2;
        .param .b32 p2;
        st.param.b32 [p2], 12;
        .param .b64 p3;
        st.param.b64 [p3], %d2;
        .param .b64 p4;
        st.param.b64 [p4], 1;
        call.uni __assertfail, (p0, p1, p2, p3, p4);
        }";
    let (what, at) = run(before, body, &mut [vec![0], vec![0]]).expect_err("it stops");
    assert_eq!(what, "assertion failed: x.cu (x.cu:12, x.cu)");
    assert!(at.contains("call.uni __assertfail"), "{at}");
}

#[test]
fn parameters_lie_where_ptx_puts_them() {
    let ptx = ".version 9.0
        .target sm_80
        .address_size 64
        .visible .entry k(.param .u64 out, .param .u8 flag, .param .align 4 .b8 pair[12], .param .f64 x,
            .param .align 2 .b8 half[2])
        .maxntid 64, 2, 1
        { ret; }";
    let kernel = crate::machine::kernel(ptx);
    let list = |from: *const u32| (0..5).map(|n| unsafe { *from.add(n) }).collect::<Vec<_>>();
    assert_eq!((kernel.params, kernel.max_threads, kernel.waits, kernel.atomics), (5, 128, 0, 0));
    assert_eq!(list(kernel.param_at), [0, 8, 12, 24, 32]);
    assert_eq!(list(kernel.param_bytes), [8, 1, 12, 8, 2]);
}

#[test]
fn what_is_not_understood_stops_when_it_is_reached_and_not_before() {
    let unknown = "frob.weird.u32 %r1, %r2;";
    let (what, at) = stopped(unknown);
    assert_eq!(what, "not understood: the instruction frob");
    assert_eq!(at, "test, line 17: frob.weird.u32 %r1, %r2");
    let skipped = format!(
        "setp.ne.u32 %p1, 1, 1;
            @%p1 {unknown}
            bra PAST;
            {unknown}
            PAST:
            st.global.u32 [%a2], 5;"
    );
    assert_eq!(done("", &skipped, &[0], 1), [5]);
    let taken = format!(
        "setp.eq.u32 %p1, 1, 1;
        @%p1 {unknown}"
    );
    assert_eq!(stopped(&taken).0, what);
    for (body, why) in [
        ("add.rn.odd.f32 %f1, %f2, %f3;", "not understood: the modifier .odd of add"),
        ("ld.global.b128 %r1, [%a1];", "not understood: the type .b128"),
        ("bar.sync 1;", "not understood: a barrier other than number 0"),
        ("mov.u32 %r1, %smid;", "not understood: the name %smid"),
        (".maxplus 3;", "not understood: the directive .maxplus"),
        ("add.s32 %r1, %r2;", "not understood: add with 2 operands"),
        ("add.s32 %r1, %d2, %d3;", "not understood: _d2 has 64 bits, not 32"),
        ("st.param.u64 [param0], %d1;", "not understood: a store to the kernel's parameter param0"),
        ("ld.param.u64 %d1, [param0+8];", "not understood: 8 bytes at byte 8 of param0 of 8 bytes"),
    ] {
        assert_eq!(stopped(body).0, why, "{body}");
    }
    assert_eq!(
        run(".alias a, b;", "", &mut [vec![0], vec![0]]).expect_err("stops").0,
        "not understood: the directive .alias"
    );
}

#[test]
fn division_by_zero_and_traps_stop() {
    assert_eq!(
        stopped(
            "mov.u32 %r2, 0;
        div.u32 %r1, %r1, %r2;"
        )
        .0,
        "integer division by zero"
    );
    assert_eq!(stopped("trap;").0, "the kernel trapped");
}
