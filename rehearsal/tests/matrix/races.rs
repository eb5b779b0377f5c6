//! Races in shared memory.

use crate::card::{End, Param, rehearse};
use crate::{card, module};

/// Runs a body with four warps and 1,024 bytes of shared memory. `%r0` is 4 bytes per thread; `%r1` another warp's.
fn race(test: &str, settings: &[(&str, &str)], body: &str) -> End {
    let setup = "mov.u32 %r9, tile;
        mad.lo.s32 %r0, %lane, 4, %r9;
        xor.b32 %r2, %lane, 32;
        mad.lo.s32 %r1, %r2, 4, %r9;
        mad.wide.u32 %d0, %lane, 4, %p0;\n";
    rehearse(&format!("races::{test}"), settings, || {
        let card = card(&module(1, &format!("{setup}{body}")));
        let from = card.upload(&[1_u32; 128], 0);
        card.launch("test", 2, 128, 0, &[Param::from(from), Param::shared(1024)]);
        card.synchronise(0);
    })
}

const RACES: [(&str, &str); 1] = [("REHEARSAL_RACES", "1")];

#[test]
fn a_missing_barrier_before_a_read_is_found() {
    let body = "st.shared.u32 [%r0], 1;\nld.shared.u32 %r3, [%r1];";
    for settings in [RACES, [("REHEARSAL_ASYNC", "1")]] {
        let end = race("a_missing_barrier_before_a_read_is_found", &settings, body);
        end.is_fault(&[
            "a race: warp 1 writes byte 128 of shared memory, which warp 0 reads, and no barrier comes between",
            "st.shared.u32",
            "thread [32, 0, 0]",
        ]);
    }
}

#[test]
fn a_missing_barrier_after_a_read_is_found() {
    let body = "st.shared.u32 [%r0], 1;\nbar.sync 0;\nld.shared.u32 %r3, [%r1];\nst.shared.u32 [%r0], 2;";
    let end = race("a_missing_barrier_after_a_read_is_found", &RACES, body);
    end.is_fault(&["a race: warp 1 ", "which warp 0 ", "no barrier comes between"]);
}

#[test]
fn two_warps_that_write_a_byte_are_found() {
    let end = race("two_warps_that_write_a_byte_are_found", &RACES, "st.shared.u8 [tile], %r0;");
    end.is_fault(&["a race: warp 1 writes byte 0 of shared memory, which warp 0 writes"]);
}

#[test]
fn bytes_beside_each_other_barriers_and_atomic_operations_are_no_races() {
    // Different warps use bytes of one word, with barriers between writes and reads, twice; then sums.
    let body = "shr.u32 %r3, %lane, 5;
        and.b32 %r4, %lane, 31;
        mad.lo.s32 %r5, %r4, 4, %r3;
        add.s32 %r5, %r5, %r9;
        st.shared.u8 [%r5], %lane;
        bar.sync 0;
        ld.shared.u32 %r6, [%r0];
        ld.shared.u32 %r6, [%r9];
        bar.sync 0;
        st.shared.u8 [%r5], %lane;
        bar.sync 0;
        atom.shared.add.u32 %r7, [tile], 1;";
    let name = "bytes_beside_each_other_barriers_and_atomic_operations_are_no_races";
    race(name, &RACES, body).is_clean();
}

#[test]
fn an_atomic_operation_beside_a_plain_read_is_found() {
    let body = "atom.shared.add.u32 %r7, [tile], 1;\nld.shared.u32 %r8, [tile];";
    let end = race("an_atomic_operation_beside_a_plain_read_is_found", &RACES, body);
    end.is_fault(&["a race: warp 1 writes byte 0 of shared memory, which warp 0 reads"]);
}

/// Starts a copy of each thread's word.
const COPY: &str = "cp.async.ca.shared.global [%r0], [%d0], 4;\n";

#[test]
fn a_copy_that_another_warp_reads_with_a_barrier_only_is_found() {
    // The barrier comes before the wait.
    let body = format!("{COPY}bar.sync 0;\nld.shared.u32 %r3, [%r1];\ncp.async.wait_all;");
    let end = race("a_copy_that_another_warp_reads_with_a_barrier_only_is_found", &RACES, &body);
    end.is_fault(&[
        "a race: warp 0 reads",
        "which warp 1 has an asynchronous copy write until it waits for it",
    ]);
}

#[test]
fn a_copy_that_another_warp_reads_with_a_wait_only_is_found() {
    let body = format!("{COPY}cp.async.wait_all;\nld.shared.u32 %r3, [%r1];");
    let end = race("a_copy_that_another_warp_reads_with_a_wait_only_is_found", &RACES, &body);
    end.is_fault(&["a race: warp 1 writes", "which warp 0 reads, and no barrier comes between"]);
}

#[test]
fn a_copy_over_what_another_warp_still_reads_is_found() {
    let body =
        format!("st.shared.u32 [%r0], 1;\nbar.sync 0;\nld.shared.u32 %r3, [%r1];\n{COPY}cp.async.wait_all;");
    let end = race("a_copy_over_what_another_warp_still_reads_is_found", &RACES, &body);
    end.is_fault(&["a race: warp 1 ", "which warp 0 ", "a race"]);
}

#[test]
fn a_copy_that_is_waited_for_before_a_barrier_is_no_race() {
    let twice =
        format!("{COPY}cp.async.wait_all;\nbar.sync 0;\nld.shared.u32 %r3, [%r1];\nbar.sync 0;\n").repeat(2);
    race("a_copy_that_is_waited_for_before_a_barrier_is_no_race", &RACES, &twice).is_clean();
}

#[test]
fn races_are_looked_for_only_where_that_is_asked() {
    let body = "st.shared.u32 [%r0], 1;\nld.shared.u32 %r3, [%r1];";
    for settings in [&[][..], &[("REHEARSAL_ASYNC", "1"), ("REHEARSAL_RACES", "0")]] {
        race("races_are_looked_for_only_where_that_is_asked", settings, body).is_clean();
    }
}
