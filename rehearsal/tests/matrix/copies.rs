//! `cp.async`.

use crate::card::{Param, rehearse};
use crate::{card, module};

/// Each thread copies words from the first parameter, which has 256 of them, and stores its view to the second. `%r0` is the thread's slot
/// in shared memory, 16 bytes each, `%d0` its source and `%d1` its results, eight words.
const SETUP: &str = "mov.u32 %r0, tile;
    mad.lo.s32 %r0, %lane, 16, %r0;
    mad.wide.u32 %d0, %lane, 16, %p0;
    mad.wide.u32 %d1, %lane, 32, %p1;\n";

fn words() -> Vec<u32> {
    (0..256).map(|i| 1000 + i).collect()
}

/// Results of the first of two threads, which share 256 bytes of shared memory.
fn seen(body: &str, count: usize) -> Vec<u32> {
    let card = card(&module(2, &format!("{SETUP}{body}")));
    let (from, to) = (card.upload(&words(), 0), card.upload(&[7_u32; 16], 0));
    card.launch("test", 1, 2, 0, &[Param::from(from), Param::from(to), Param::shared(256)]);
    card.download::<u32>(to, count, 0)
}

#[test]
fn bytes_are_there_after_the_wait_and_not_before() {
    let body = "st.shared.v2.u32 [%r0], {1, 2};
        cp.async.ca.shared.global [%r0], [%d0], 8;
        ld.shared.u32 %r1, [%r0];
        cp.async.wait_all;
        ld.shared.u32 %r2, [%r0];
        ld.shared.u32 %r3, [%r0+4];
        ld.shared.u32 %r4, [%r0+8];
        st.global.v4.u32 [%d1], {%r1, %r2, %r3, %r4};";
    assert_eq!(seen(body, 4), [u32::MAX, 1000, 1001, u32::MAX]);
}

#[test]
fn a_wait_leaves_as_many_groups_as_it_says() {
    // Three groups, the second empty, and a copy outside any group.
    let body = "cp.async.ca.shared.global.L2::128B [%r0], [%d0], 4;
        cp.async.commit_group;
        cp.async.commit_group;
        cp.async.ca.shared.global [%r0+4], [%d0+4], 4;
        cp.async.commit_group;
        cp.async.ca.shared.global [%r0+8], [%d0+8], 4;
        cp.async.wait_group 2;
        ld.shared.u32 %r1, [%r0];
        ld.shared.u32 %r2, [%r0+4];
        cp.async.wait_group 0;
        ld.shared.u32 %r3, [%r0+4];
        ld.shared.u32 %r4, [%r0+8];
        st.global.v4.u32 [%d1], {%r1, %r2, %r3, %r4};
        cp.async.wait_all;
        ld.shared.u32 %r5, [%r0+8];
        st.global.u32 [%d1+16], %r5;";
    assert_eq!(seen(body, 5), [1000, u32::MAX, 1001, u32::MAX, 1002]);
    let body = "cp.async.ca.shared.global [%r0], [%d0], 4;
        cp.async.commit_group;
        cp.async.commit_group;
        cp.async.wait_group 2;
        ld.shared.u32 %r1, [%r0];
        cp.async.wait_group 1;
        ld.shared.u32 %r2, [%r0];
        st.global.v2.u32 [%d1], {%r1, %r2};";
    assert_eq!(seen(body, 2), [u32::MAX, 1000]);
}

#[test]
fn a_smaller_source_is_followed_by_zeros_and_an_empty_one_is_not_read() {
    let body = "mov.u32 %r9, 6;
        mov.u64 %d2, 16;
        cp.async.cg.shared.global [%r0], [%d0], 16, %r9;
        cp.async.ca.shared.global [%r0+128], [%d2], 8, 0;
        cp.async.wait_all;
        ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%r0];
        ld.shared.v2.u32 {%r5, %r6}, [%r0+128];
        st.global.v4.u32 [%d1], {%r1, %r2, %r3, %r4};
        st.global.v2.u32 [%d1+16], {%r5, %r6};";
    assert_eq!(seen(body, 6), [1000, 1001 & 0xFFFF, 0, 0, 0, 0]);
}

#[test]
fn a_source_that_changes_before_the_wait_is_seen_changed() {
    let body = "cp.async.ca.shared.global [%r0], [%d0], 4;
        st.global.u32 [%d0], 5;
        cp.async.wait_all;
        ld.shared.u32 %r1, [%r0];
        st.global.u32 [%d1], %r1;";
    assert_eq!(seen(body, 1), [5]);
}

/// Expects a fault whose line contains these parts. The source has 1,024 bytes, shared memory 256.
#[track_caller]
fn faults(test: &str, body: &str, parts: &[&str]) {
    let end = rehearse(&format!("copies::{test}"), &[], || {
        let card = card(&module(2, &format!("{SETUP}{body}")));
        let (from, to) = (card.upload(&words(), 0), card.alloc(64, 0));
        card.launch("test", 1, 2, 0, &[Param::from(from), Param::from(to), Param::shared(256)]);
    });
    end.is_fault(parts);
}

#[test]
fn a_source_past_the_end_is_found() {
    faults(
        "a_source_past_the_end_is_found",
        "cp.async.cg.shared.global [%r0], [%d0+1008], 16;",
        &[
            "reads 16 bytes",
            "0 bytes past the end of an allocation of 1024 bytes",
            "cp.async",
            "thread [1, 0, 0]",
        ],
    );
}

#[test]
fn a_part_of_a_source_past_the_end_is_found() {
    let body = "mov.u32 %r9, 5;\ncp.async.cg.shared.global [%r0], [%d0+1024], 16, %r9;";
    let parts = ["0 bytes past the end of an allocation of 1024 bytes", "cp.async", "thread [0, 0, 0]"];
    faults("a_part_of_a_source_past_the_end_is_found", body, &parts);
}

#[test]
fn a_misaligned_source_is_found() {
    faults(
        "a_misaligned_source_is_found",
        "cp.async.cg.shared.global [%r0], [%d0+8], 16;",
        &["misaligned asynchronous copy of 16 bytes", "cp.async"],
    );
}

#[test]
fn a_misaligned_place_is_found() {
    let body = "cp.async.cg.shared.global [%r0+8], [%d0], 16;";
    faults("a_misaligned_place_is_found", body, &["16 bytes at byte 8 of 256, misaligned", "cp.async"]);
}

#[test]
fn a_place_outside_of_shared_memory_is_found() {
    let body = "cp.async.ca.shared.global [%r0+256], [%d0], 4;";
    let parts = ["4 bytes at byte 256 of 256, out of bounds", "cp.async"];
    faults("a_place_outside_of_shared_memory_is_found", body, &parts);
}

#[test]
fn a_source_that_is_larger_than_its_place_is_found() {
    let body = "mov.u32 %r9, 17;\ncp.async.cg.shared.global [%r0], [%d0], 16, %r9;";
    let parts = ["an asynchronous copy whose source is larger than what it writes", "cp.async"];
    faults("a_source_that_is_larger_than_its_place_is_found", body, &parts);
}
