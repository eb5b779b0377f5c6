//! Control flow, and threads that wait for each other.

use crate::machine::{Shape, launch};
use crate::snippets::module;

/// Runs a body over blocks of threads; `%i1` is the thread, `%a2` the address of its word in the second buffer.
fn run(before: &str, body: &str, shape: Shape, buffers: &mut [Vec<u32>]) {
    let setup = "ld.param.u64 %a1, [param0];
        ld.param.u64 %a2, [param1];
        mov.u32 %i1, %tid.x;
        mov.u32 %i2, %ctaid.x;
        mov.u32 %i3, %ntid.x;
        mad.lo.s32 %i4, %i2, %i3, %i1;
        mad.wide.u32 %a3, %i4, 4, %a2;
        ";
    launch(&module(2, before, &format!("{setup}{body}")), shape, buffers)
        .unwrap_or_else(|(what, at)| panic!("{what}: {at}"));
}

fn each(threads: u32, body: &str) -> Vec<u32> {
    let mut buffers = [(0..64).collect(), vec![0; threads as usize]];
    run(
        "",
        &format!(
            "{body}
            st.global.u32 [%a3], %r0;"
        ),
        Shape { blocks: 1, threads, dynamic: 0 },
        &mut buffers,
    );
    buffers[1].clone()
}

#[test]
fn loops_and_branches_run_as_each_thread_decides() {
    // Steps of the Collatz sequence.
    let body = "mov.u32 %r0, 0;
        add.s32 %r1, %i1, 1;
        LOOP:
        setp.eq.u32 %p1, %r1, 1;
        @%p1 bra DONE;
        add.s32 %r0, %r0, 1;
        and.b32 %r2, %r1, 1;
        setp.eq.u32 %p2, %r2, 0;
        @!%p2 bra ODD;
        shr.u32 %r1, %r1, 1;
        bra.uni LOOP;
        ODD:
        mad.lo.s32 %r1, %r1, 3, 1;
        bra.uni LOOP;
        DONE:";
    let steps = |n: u32| {
        let (mut n, mut count) = (n, 0);
        while n != 1 {
            n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
            count += 1;
        }
        count
    };
    assert_eq!(each(40, body), (1..=40).map(steps).collect::<Vec<_>>());
}

#[test]
fn names_of_inner_scopes_hide_those_of_outer_ones() {
    let body = "mov.u32 %r0, 1;
        {
        .reg .b32 %r<4>;
        .reg .b32 x;
        mov.u32 %r0, 50;
        mov.u32 x, %r0;
        bra OUT;
        OUT:
        }
        {
        .reg .b16 x;
        mov.u16 x, 7;
        cvt.u32.u16 %r1, x;
        bra OUT;
        mov.u32 %r1, 99;
        OUT:
        }
        add.s32 %r0, %r0, %r1;";
    assert_eq!(each(1, body), [8]);
}

#[test]
fn threads_leave_early_and_exit_ends_them() {
    let body = "mov.u32 %r0, 3;
        setp.gt.u32 %p1, %i1, 4;
        @%p1 exit;";
    assert_eq!(each(8, body), [3, 3, 3, 3, 3, 0, 0, 0]);
}

#[test]
fn shared_memory_is_the_blocks_and_barriers_order_it() {
    // A block sum by halving in static shared memory; every register alive across the barriers matters.
    let body = ".shared .align 4 .b8 parts[256];
        mov.u32 %r5, parts;
        mad.lo.s32 %r6, %i1, 4, %r5;
        mul.lo.s32 %r1, %i4, %i4;
        st.shared.u32 [%r6], %r1;
        mov.u32 %r2, 32;
        STEP:
        bar.sync 0;
        setp.ge.u32 %p1, %i1, %r2;
        @%p1 bra WAIT;
        mad.lo.s32 %r7, %r2, 4, %r6;
        ld.shared.u32 %r3, [%r7];
        ld.shared.u32 %r4, [%r6];
        add.s32 %r4, %r4, %r3;
        st.shared.u32 [%r6], %r4;
        WAIT:
        shr.u32 %r2, %r2, 1;
        setp.ne.u32 %p2, %r2, 0;
        @%p2 bra STEP;
        barrier.sync 0;
        ld.shared.u32 %r0, [parts];
        add.s32 %r0, %r0, %i1;
        st.global.u32 [%a3], %r0;";
    let mut buffers = [vec![0], vec![0; 128]];
    run("", body, Shape { blocks: 2, threads: 64, dynamic: 0 }, &mut buffers);
    let sum = |from: u32| (from..from + 64).map(|x| x * x).sum::<u32>();
    let expected: Vec<u32> = (0..128).map(|x| sum(x / 64 * 64) + x % 64).collect();
    assert_eq!(buffers[1], expected);
}

#[test]
fn dynamic_shared_memory_follows_the_static() {
    let before = ".extern .shared .align 16 .b8 rest[];
        .shared .align 4 .b8 fixed[20];";
    let body = "mov.u32 %r1, fixed;
        mov.u32 %r2, rest;
        mad.lo.s32 %r3, %i1, 4, %r2;
        st.shared.u32 [%r3], %i1;
        st.shared.u32 [%r1+16], 1000;
        bar.sync 0;
        xor.b32 %r4, %i1, 1;
        mad.lo.s32 %r4, %r4, 4, %r2;
        ld.shared.u32 %r5, [%r4];
        ld.shared.u32 %r6, [fixed+16];
        add.s32 %r0, %r5, %r6;
        st.global.u32 [%a3], %r0;";
    let mut buffers = [vec![0], vec![0; 8]];
    run(before, body, Shape { blocks: 1, threads: 8, dynamic: 32 }, &mut buffers);
    assert_eq!(buffers[1], [1001, 1000, 1003, 1002, 1005, 1004, 1007, 1006]);
}

#[test]
fn shuffles_give_lanes_each_others_values() {
    let shuffle = |how: &str, expected: fn(u32) -> u32| {
        let body = format!(
            "mul.lo.s32 %r1, %i1, 10;
            shfl.sync.{how}, -1;"
        );
        assert_eq!(each(64, &body), (0..64).map(expected).collect::<Vec<_>>(), "{how}");
    };
    shuffle("bfly.b32 %r0, %r1, 4, 31", |x| (x ^ 4) * 10);
    shuffle("down.b32 %r0, %r1, 3, 31", |x| if x % 32 + 3 < 32 { (x + 3) * 10 } else { x * 10 });
    shuffle("up.b32 %r0, %r1, 1, 0", |x| if x % 32 == 0 { x * 10 } else { (x - 1) * 10 });
    shuffle("idx.b32 %r0, %r1, 2, 0x181f", |x| (x / 8 * 8 + 2) * 10);
    // With the predicate, and a value alive across the wait.
    let body = "add.s32 %r2, %i1, 500;
        shfl.sync.down.b32 %r1|%p1, %i1, 16, 31, 0xffffffff;
        selp.b32 %r0, %r1, %r2, %p1;";
    assert_eq!(each(32, body), (0..32).map(|x| if x < 16 { x + 16 } else { x + 500 }).collect::<Vec<_>>());
}

#[test]
fn a_sum_of_a_warp_keeps_what_lives_across_each_step() {
    let steps: String = [16, 8, 4, 2, 1]
        .map(|by| {
            format!(
                "mov.b32 %r1, %f1;
            shfl.sync.bfly.b32 %r2, %r1, {by}, 31, -1;
            mov.b32 %f2, %r2;
            add.f32 %f1, %f1, %f2;
            "
            )
        })
        .concat();
    let body = format!(
        "cvt.rn.f32.u32 %f1, %i1;
        {steps}cvt.rzi.u32.f32 %r0, %f1;
        add.s32 %r0, %r0, %i1;"
    );
    assert_eq!(each(32, &body), (0..32).map(|x| 496 + x).collect::<Vec<_>>());
}

#[test]
fn votes_and_reductions_are_over_the_warp() {
    let odd = "and.b32 %r1, %i1, 1;
        setp.ne.u32 %p1, %r1, 0;
        ";
    assert_eq!(each(32, &format!("{odd}vote.sync.ballot.b32 %r0, %p1, -1;")), [0xAAAA_AAAA; 32]);
    assert_eq!(
        each(
            32,
            &format!(
                "{odd}vote.sync.any.pred %p2, %p1, -1;
            selp.u32 %r0, 1, 0, %p2;"
            )
        ),
        [1; 32]
    );
    assert_eq!(
        each(
            32,
            &format!(
                "{odd}vote.sync.all.pred %p2, !%p1, -1;
            selp.u32 %r0, 1, 0, %p2;"
            )
        ),
        [0; 32]
    );
    assert_eq!(each(32, "redux.sync.add.s32 %r0, %i1, -1;"), [496; 32]);
    assert_eq!(
        each(
            32,
            "sub.s32 %r1, %i1, 7;
        redux.sync.min.s32 %r0, %r1, -1;"
        ),
        [-7_i32 as u32; 32]
    );
    assert_eq!(
        each(
            32,
            "sub.s32 %r1, %i1, 7;
        redux.sync.max.u32 %r0, %r1, -1;"
        ),
        [u32::MAX; 32]
    );
    assert_eq!(
        each(
            32,
            "bar.warp.sync -1;
        mov.u32 %r0, %laneid;"
        ),
        (0..32).collect::<Vec<_>>()
    );
}

#[test]
fn a_guarded_wait_leaves_the_others_where_they_are() {
    // The second warp does not participate.
    let body = "setp.lt.u32 %p1, %i1, 32;
        mov.u32 %r0, 7;
        mov.u32 %r1, %i1;
        @%p1 shfl.sync.bfly.b32 %r0, %r1, 1, 31, -1;
        add.s32 %r0, %r0, %r1;";
    let expected: Vec<u32> = (0..64).map(|x| if x < 32 { (x ^ 1) + x } else { 7 + x }).collect();
    assert_eq!(each(64, body), expected);
}

#[test]
fn atomic_operations_change_memory_and_give_what_was_there() {
    let body = "atom.global.add.u32 %r1, [%a1], 2;
        st.global.u32 [%a3], %r1;
        cvt.rn.f32.u32 %f1, %i1;
        red.global.add.f32 [%a1+4], %f1;
        atom.global.max.s32 %r2, [%a1+8], %i1;
        atom.global.cas.b32 %r3, [%a1+12], 3, 9;
        atom.global.inc.u32 %r3, [%a1+16], 4;
        atom.global.exch.b32 %r3, [%a1+20], %i1;
        atom.global.min.s32 %r3, [%a1+24], -3;
        mov.u16 %h1, 5;
        mov.u16 %h2, 6;
        atom.global.cas.b16 %h3, [%a1+28], %h1, %h2;";
    let mut buffers = [vec![100, 0, 0, 3, 0, 0, 0, 0xABCD_0005], vec![0; 8]];
    run("", body, Shape { blocks: 1, threads: 8, dynamic: 0 }, &mut buffers);
    assert_eq!(buffers[1], (0..8).map(|x| 100 + 2 * x).collect::<Vec<_>>());
    assert_eq!(buffers[0], [116, 28_f32.to_bits(), 7, 9, 3, 7, -3_i32 as u32, 0xABCD_0006]);
    let shared = ".shared .align 4 .u32 total;
        st.shared.u32 [total], 0;
        bar.sync 0;
        atom.shared.add.u32 %r1, [total], 1;
        bar.sync 0;
        ld.shared.u32 %r0, [total];
        st.global.u32 [%a3], %r0;";
    let mut buffers = [vec![0], vec![0; 48]];
    run("", shared, Shape { blocks: 1, threads: 48, dynamic: 0 }, &mut buffers);
    assert_eq!(buffers[1], [48; 48]);
}

#[test]
fn what_the_next_turn_of_a_loop_needs_lives_across_a_barrier() {
    // %r2 and %r3 are read only above the barrier, after the backward branch.
    let body = "mov.u32 %r0, 0;
        mov.u32 %r1, 0;
        add.s32 %r2, %i1, 100;
        mov.u32 %r3, 3;
        LOOP:
        mad.lo.s32 %r0, %r2, %r3, %r0;
        bar.sync 0;
        add.s32 %r1, %r1, 1;
        setp.lt.u32 %p1, %r1, 4;
        @%p1 bra LOOP;";
    assert_eq!(each(3, body), [1200, 1212, 1224]);
}

#[test]
fn a_carry_lives_across_a_barrier() {
    let body = "add.cc.u32 %r1, -1, 2;
        bar.sync 0;
        addc.u32 %r0, 0, 0;";
    assert_eq!(each(2, body), [1, 1]);
}
