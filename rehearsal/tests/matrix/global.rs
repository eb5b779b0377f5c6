//! Races in global memory between blocks, and the operations that prevent them.

use crate::card::{End, Param, rehearse};
use crate::{card, module};

const RACES: [(&str, &str); 1] = [("REHEARSAL_RACES", "1")];
const ASYNC: [(&str, &str); 1] = [("REHEARSAL_ASYNC", "1")];

/// Runs a body with four blocks of two warps. `%p0` has one word per thread, `%p1` a counter at 0 followed by zero words; `%d0` is this
/// thread's word, `%d1` that of the same thread in the next block; `%r0` is the block and `%r1` the global thread index; `%q0` holds for a
/// block's first thread and `%q3` for its first warp.
fn race(test: &str, settings: &[(&str, &str)], body: &str) -> End {
    let setup = "mov.u32 %r0, %ctaid.x;
        mad.lo.s32 %r1, %r0, 64, %lane;
        mad.wide.u32 %d0, %r1, 4, %p0;
        add.s32 %r2, %r1, 64;
        and.b32 %r2, %r2, 255;
        mad.wide.u32 %d1, %r2, 4, %p0;
        setp.eq.u32 %q0, %lane, 0;
        setp.lt.u32 %q3, %lane, 32;\n";
    // A test runs several bodies; the child process must run the one it was started for.
    const BODY: &str = "RACE_BODY";
    let settings: Vec<_> = settings.iter().copied().chain([(BODY, body)]).collect();
    rehearse(&format!("global::{test}"), &settings, || {
        let body = std::env::var(BODY).expect("it was set above");
        let card = card(&module(2, &format!("{setup}{body}")));
        let (words, rest) = (card.upload(&[1_u32; 256], 0), card.upload(&[0_u32; 16], 0));
        card.launch("test", 4, 64, 0, &[Param::from(words), Param::from(rest), Param::shared(16)]);
        card.synchronise(0);
    })
}

/// Each thread writes its word, and the last block reads those of another; the ordering operations are parameters.
fn last_block(before: &str, fence: &str, ticket: &str, acquire: &str, after: &str) -> String {
    format!(
        "st.global.u32 [%d0], %r1;
        {before}
        @!%q0 bra WAIT;
        {fence}
        {ticket}
        {acquire}
        st.shared.u32 [tile], %r3;
        WAIT:
        {after}
        ld.shared.u32 %r3, [tile];
        setp.ne.u32 %q1, %r3, 3;
        @%q1 exit;
        ld.global.u32 %r4, [%d1];"
    )
}

const BARRIER: &str = "bar.sync 0;";
const FENCE: &str = "fence.acq_rel.gpu;";
const TICKET: &str = "atom.global.inc.u32 %r3, [%p1], 3;";
/// Fault message for a read of a byte that another block writes.
const FOUND: [&str; 3] =
    ["a race: warp ", "reads the byte of device memory", "neither a barrier nor a release"];

#[test]
fn the_last_block_may_read_what_all_wrote() {
    for (fence, ticket, acquire) in [
        (FENCE, TICKET, FENCE),
        ("membar.gl;", TICKET, "membar.gl;"),
        ("fence.sc.sys;", "atom.global.relaxed.gpu.inc.u32 %r3, [%p1], 3;", "membar.sys;"),
        ("", "atom.global.acq_rel.gpu.inc.u32 %r3, [%p1], 3;", ""),
        (FENCE, "atom.acquire.sys.global.add.u32 %r3, [%p1], 1;", ""),
        ("", "atom.release.gpu.global.add.u32 %r3, [%p1], 1;", FENCE),
    ] {
        let body = last_block(BARRIER, fence, ticket, acquire, BARRIER);
        for settings in [RACES, ASYNC] {
            race("the_last_block_may_read_what_all_wrote", &settings, &body).is_clean();
        }
    }
}

#[test]
fn a_missing_or_too_narrow_fence_is_found() {
    for (fence, ticket, acquire) in [
        ("", TICKET, FENCE),
        (FENCE, TICKET, ""),
        ("", TICKET, ""),
        ("membar.cta;", TICKET, FENCE),
        (FENCE, TICKET, "fence.acq_rel.cta;"),
        (FENCE, "atom.global.relaxed.cta.inc.u32 %r3, [%p1], 3;", FENCE),
        ("", "atom.acquire.gpu.global.inc.u32 %r3, [%p1], 3;", ""),
        (FENCE, "atom.release.gpu.global.inc.u32 %r3, [%p1], 3;", ""),
    ] {
        let body = last_block(BARRIER, fence, ticket, acquire, BARRIER);
        for settings in [RACES, ASYNC] {
            let end = race("a_missing_or_too_narrow_fence_is_found", &settings, &body);
            assert_eq!(
                end.status,
                Some(rehearsal::stop::FAULT),
                "{fence} {ticket} {acquire}: {}",
                end.stderr
            );
            assert!(end.stderr.contains("a race: warp "), "{}", end.stderr);
        }
    }
}

#[test]
fn a_missing_barrier_around_the_fence_is_found() {
    // The other warp's writes are not released, and its reads not acquired.
    let body = last_block("", FENCE, TICKET, FENCE, BARRIER);
    race("a_missing_barrier_around_the_fence_is_found", &RACES, &body).is_fault(&FOUND);
    let body = "st.global.u32 [%d0], %r1;
        bar.sync 0;
        fence.acq_rel.gpu;
        @!%q0 bra REST;
        atom.global.inc.u32 %r3, [%p1], 3;
        fence.acq_rel.gpu;
        REST:
        setp.ne.u32 %q1, %r0, 3;
        @%q1 exit;
        ld.global.u32 %r4, [%d1];";
    race("a_missing_barrier_around_the_fence_is_found", &RACES, body)
        .is_fault(&["a race: warp 1 of block 3 reads", "which warp 1 of block 0 writes"]);
}

#[test]
fn a_fence_of_another_thread_releases_nothing() {
    let body = "st.global.u32 [%d0], %r1;
        setp.eq.u32 %q2, %lane, 1;
        @%q2 fence.acq_rel.gpu;
        @!%q0 exit;
        atom.global.inc.u32 %r3, [%p1], 3;
        fence.acq_rel.gpu;
        setp.ne.u32 %q1, %r3, 3;
        @%q1 exit;
        ld.global.u32 %r4, [%d1];";
    race("a_fence_of_another_thread_releases_nothing", &RACES, body).is_fault(&FOUND);
    let own = body.replace("@%q2 fence", "@%q0 fence");
    race("a_fence_of_another_thread_releases_nothing", &RACES, &own).is_clean();
}

#[test]
fn what_was_written_after_the_fence_is_not_released() {
    let body = "fence.acq_rel.gpu;
        st.global.u32 [%d0], %r1;
        @!%q0 exit;
        atom.global.inc.u32 %r3, [%p1], 3;
        fence.acq_rel.gpu;
        setp.ne.u32 %q1, %r3, 3;
        @%q1 exit;
        ld.global.u32 %r4, [%d1];";
    race("what_was_written_after_the_fence_is_not_released", &RACES, body).is_fault(&FOUND);
}

#[test]
fn a_flag_orders_by_a_release_and_an_acquire_and_not_by_plain_stores() {
    // Each block writes, sets a flag, and reads the previous block's data once its flag is set.
    let flag = |store: &str, load: &str| {
        format!(
            "@!%q0 exit;
            st.global.u32 [%d0], %r1;
            mad.wide.u32 %d2, %r0, 4, %p1;
            {store} [%d2+4], 1;
            setp.eq.u32 %q1, %r0, 0;
            @%q1 exit;
            {load} %r5, [%d2];
            setp.eq.u32 %q1, %r5, 0;
            @%q1 exit;
            sub.s64 %d3, %d0, 256;
            ld.global.u32 %r4, [%d3];"
        )
    };
    let name = "a_flag_orders_by_a_release_and_an_acquire_and_not_by_plain_stores";
    for (store, load) in [
        ("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32"),
        ("fence.acq_rel.gpu;\nst.relaxed.gpu.global.u32", "ld.acquire.sys.global.u32"),
        ("fence.acq_rel.gpu;\nst.volatile.global.u32", "ld.acquire.gpu.global.u32"),
    ] {
        race(name, &RACES, &flag(store, load)).is_clean();
    }
    for (store, load) in [
        ("st.global.u32", "ld.acquire.gpu.global.u32"),
        ("st.release.gpu.global.u32", "ld.global.u32"),
        ("st.release.gpu.global.u32", "ld.relaxed.gpu.global.u32"),
        ("st.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32"),
        ("st.release.cta.global.u32", "ld.acquire.gpu.global.u32"),
    ] {
        let end = race(name, &RACES, &flag(store, load));
        end.is_fault(&["a race: warp 0 of block 1 reads", "which warp 0 of block 0 writes"]);
    }
}

#[test]
fn atomic_operations_beside_plain_ones_and_writes_after_reads_are_found() {
    let name = "atomic_operations_beside_plain_ones_and_writes_after_reads_are_found";
    for body in [
        "@%q0 atom.global.add.u32 %r3, [%p1], 1;\n@%q0 st.global.u32 [%p1], 0;",
        "@%q0 red.global.add.u32 [%p1], 1;\n@%q0 ld.global.u32 %r3, [%p1];",
        // Written by the next block's thread after the read.
        "ld.global.u32 %r3, [%p0];\nst.global.u32 [%d1], 5;\n@%q0 atom.global.add.u32 %r3, [%p1], 1;",
        // Between two warps of one block.
        "ld.global.u32 %r3, [%p1+4];\n@!%q3 st.global.u32 [%p1+4], 5;\n@%q0 atom.global.add.u32 %r3, [%p1], 1;",
    ] {
        race(name, &RACES, body).is_fault(&["a race: warp ", "device memory"]);
    }
    for body in [
        "atom.global.add.u32 %r3, [%p1], 1;\nred.global.max.u32 [%p1], 1;",
        // Words read by all, and a thread's own words.
        "ld.global.u32 %r3, [%p1+4];\nst.global.u32 [%d0], %r3;\nld.global.u32 %r3, [%d0];\nred.global.add.u32 [%p1], %r3;",
        // Another warp's word, after a barrier.
        "st.global.u32 [%d0], 1;\nbar.sync 0;\nxor.b32 %r5, %r1, 32;\nmad.wide.u32 %d2, %r5, 4, %p0;
        ld.global.u32 %r6, [%d2];\nred.global.add.u32 [%p1], %r6;",
    ] {
        race(name, &RACES, body).is_clean();
    }
}

#[test]
fn a_reduction_observes_nothing() {
    let body = |how: &str| {
        format!(
            "st.global.u32 [%d0], %r1;
            @!%q0 exit;
            fence.acq_rel.gpu;
            {how} [%p1], 1;
            fence.acq_rel.gpu;
            setp.eq.u32 %q1, %r0, 0;
            @%q1 exit;
            sub.s64 %d3, %d0, 256;
            ld.global.u32 %r4, [%d3];"
        )
    };
    race("a_reduction_observes_nothing", &RACES, &body("red.global.add.u32")).is_fault(&FOUND);
    race("a_reduction_observes_nothing", &RACES, &body("atom.global.add.u32 %r3,")).is_clean();
}

#[test]
fn races_in_global_memory_are_looked_for_only_where_that_is_asked() {
    let body = last_block(BARRIER, "", TICKET, "", BARRIER);
    for settings in [&[][..], &[("REHEARSAL_ASYNC", "1"), ("REHEARSAL_RACES", "0")]] {
        race("races_in_global_memory_are_looked_for_only_where_that_is_asked", settings, &body).is_clean();
    }
}

#[test]
fn blocks_come_in_another_order_where_work_is_late() {
    let order = |settings: &[(&str, &str)], first: u32| {
        let end = rehearse("global::blocks_come_in_another_order_where_work_is_late", settings, || {
            let late = std::env::var("REHEARSAL_ASYNC").is_ok();
            let body = "atom.global.add.u32 %r3, [%p0], 1;
                mov.u32 %r0, %ctaid.x;
                mad.wide.u32 %d0, %r0, 4, %p1;
                st.global.u32 [%d0], %r3;";
            let card = card(&module(2, body));
            let (counter, tickets) = (card.upload(&[0_u32], 0), card.upload(&[9_u32; 4], 0));
            card.launch("test", 4, 1, 0, &[Param::from(counter), Param::from(tickets)]);
            let expected = if late { [3, 2, 1, 0] } else { [0, 1, 2, 3] };
            assert_eq!(card.download::<u32>(tickets, 4, 0), expected);
        });
        assert_eq!(end.status, Some(0), "{first}: {}", end.stderr);
    };
    order(&[], 0);
    order(&ASYNC, 3);
}
