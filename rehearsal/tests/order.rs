//! Streams, events and two devices: unordered uses are detected, ordered ones are not reported, and asynchronous mode runs work as late as
//! CUDA allows.

mod card;

use card::*;

const TWO: (&str, &str) = ("REHEARSAL_DEVICES", "2");
const ASYNC: (&str, &str) = ("REHEARSAL_ASYNC", "1");
const BOTH: [&[(&str, &str)]; 2] = [&[], &[ASYNC]];
const BYTES: usize = 64;

fn fill(at: u64, value: u8, stream: usize) {
    // SAFETY: no host pointers.
    unsafe { ok(cuMemsetD8Async(at, value, BYTES, stream)) }
}

#[test]
fn a_missing_wait_between_streams_is_found() {
    for settings in BOTH {
        let end = rehearse("a_missing_wait_between_streams_is_found", settings, || {
            let card = Card::new(0);
            let (a, b) = (card.stream(NON_BLOCKING), card.stream(NON_BLOCKING));
            let at = card.alloc(BYTES, a);
            fill(at, 1, a);
            card.download::<u8>(at, BYTES, b);
            card.synchronise(a);
        });
        end.is_fault(&[
            "unordered streams: cuMemcpyDtoHAsync on stream 1",
            "64 bytes on device 0",
            "on stream 0",
        ]);
        end.is_fault(&["uses of memory by streams that nothing orders"]);
    }
}

#[test]
fn the_first_unordered_use_can_end_the_program() {
    let end =
        rehearse("the_first_unordered_use_can_end_the_program", &[("REHEARSAL_UNORDERED", "stop")], || {
            let card = Card::new(0);
            let at = card.alloc(BYTES, card.stream(NON_BLOCKING));
            fill(at, 1, card.stream(NON_BLOCKING));
            println!("reached");
            std::process::exit(3);
        });
    end.is_fault(&["fault: unordered streams: cuMemsetD8Async", "cuMemAllocAsync"]);
}

#[test]
fn a_wait_orders_streams() {
    for settings in BOTH {
        let end = rehearse("a_wait_orders_streams", settings, || {
            let card = Card::new(0);
            let (a, b, event) = (card.stream(NON_BLOCKING), card.stream(NON_BLOCKING), card.event());
            let at = card.alloc(BYTES, a);
            fill(at, 7, a);
            card.record(event, a);
            card.wait(b, event);
            assert_eq!(card.download::<u8>(at, BYTES, b), [7; BYTES]);
            // The host waited for b, which waited for a.
            card.free(at, a);
        });
        end.is_clean();
    }
}

#[test]
fn a_wait_takes_the_latest_record_and_none_before_it() {
    for settings in BOTH {
        let end = rehearse("a_wait_takes_the_latest_record_and_none_before_it", settings, || {
            let card = Card::new(0);
            let (a, b, event) = (card.stream(NON_BLOCKING), card.stream(NON_BLOCKING), card.event());
            let at = card.alloc(BYTES, a);
            card.record(event, a);
            card.wait(b, event);
            fill(at, 1, a);
            card.record(event, a);
            // b waited for the first record only.
            fill(at, 2, b);
        });
        end.is_fault(&["unordered streams: cuMemsetD8Async on stream 1", "writes"]);
        assert_eq!(end.stderr.matches("unordered streams: ").count(), 1, "{}", end.stderr);
    }
}

#[test]
fn a_free_that_does_not_wait_is_found() {
    let end = rehearse("a_free_that_does_not_wait_is_found", &[], || {
        let card = Card::new(0);
        let (a, b, event) = (card.stream(NON_BLOCKING), card.stream(NON_BLOCKING), card.event());
        let at = card.alloc(BYTES, a);
        card.record(event, a);
        card.wait(b, event);
        fill(at, 1, b);
        card.free(at, a);
    });
    end.is_fault(&["unordered streams: cuMemFreeAsync on stream 0", "cuMemsetD8Async on stream 1"]);
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_only() {
    for settings in BOTH {
        let end = rehearse("the_legacy_stream_waits_for_blocking_streams_only", settings, || {
            let card = Card::new(0);
            let at = card.alloc(BYTES, 0);
            for stream in [2, card.stream(0), 2, 0] {
                fill(at, stream as u8, stream);
                assert_eq!(card.download::<u8>(at, BYTES, 0), [stream as u8; BYTES]);
            }
        });
        end.is_clean();
    }
}

#[test]
fn a_non_blocking_stream_and_the_legacy_stream_are_unordered() {
    let end = rehearse("a_non_blocking_stream_and_the_legacy_stream_are_unordered", &[], || {
        let card = Card::new(0);
        let at = card.alloc(BYTES, 0);
        fill(at, 1, card.stream(NON_BLOCKING));
    });
    end.is_fault(&[
        "unordered streams: cuMemsetD8Async on stream 1 of device 0",
        "the legacy stream of device 0",
    ]);
}

#[test]
fn the_per_thread_stream_is_the_current_contexts_and_the_threads_own() {
    let end = rehearse("the_per_thread_stream_is_the_current_contexts_and_the_threads_own", &[TWO], || {
        let one = Card::new(1);
        let there = one.alloc(BYTES, 2);
        fill(there, 1, 2);
        let zero = Card::new(0);
        let here = zero.alloc(BYTES, 2);
        // The same handle is another stream here: device 0's.
        // SAFETY: no host pointers.
        unsafe { ok(cuMemcpyPeerAsync(here, zero.context, there, one.context, BYTES, 2)) };
    });
    end.is_fault(&["unordered streams: cuMemcpyPeerAsync", "of device 0 reads", "of device 1 writes"]);
    assert_eq!(end.stderr.matches("unordered streams: ").count(), 1, "{}", end.stderr);
}

#[test]
fn two_threads_have_two_per_thread_streams() {
    let end = rehearse("two_threads_have_two_per_thread_streams", &[], || {
        let card = Card::new(0);
        let at = card.alloc(BYTES, 2);
        let other = std::thread::spawn(move || {
            let card = Card::new(0);
            fill(at, 1, 2);
            card.synchronise(2);
        });
        assert!(other.join().is_ok());
    });
    end.is_fault(&["unordered streams: cuMemsetD8Async on the per-thread stream"]);
}

#[test]
fn a_copy_between_cards_is_ordered_by_events() {
    for settings in [&[TWO][..], &[TWO, ASYNC]] {
        let end = rehearse("a_copy_between_cards_is_ordered_by_events", settings, || {
            let zero = Card::new(0);
            let (from, out) = (zero.upload(&[5_u8; BYTES], 2), zero.event());
            let source = zero.stream(NON_BLOCKING);
            zero.record(out, 2);
            zero.wait(source, out);
            zero.record(out, source);
            let one = Card::new(1);
            let (target, to) = (one.stream(NON_BLOCKING), one.upload(&[0_u8; BYTES], 0));
            one.synchronise(0);
            one.wait(target, out);
            // SAFETY: no pointers of the host.
            unsafe { ok(cuMemcpyPeerAsync(to, one.context, from, zero.context, BYTES, target)) };
            assert_eq!(one.download::<u8>(to, BYTES, target), [5; BYTES]);
        });
        end.is_clean();
    }
}

#[test]
fn queued_work_waits_for_whoever_needs_it() {
    let end = rehearse("queued_work_waits_for_whoever_needs_it", &[ASYNC], || {
        let card = Card::new(0);
        let (a, b) = (card.stream(NON_BLOCKING), card.stream(NON_BLOCKING));
        let at = card.alloc(BYTES, a);
        card.synchronise(a);
        fill(at, 1, a);
        // Nothing forces a's work before b's read: b sees uninitialised memory.
        assert_eq!(card.download::<u8>(at, BYTES, b), [0xFF; BYTES]);
        card.synchronise(a);
        assert_eq!(card.download::<u8>(at, BYTES, b), [1; BYTES]);
    });
    end.is_fault(&["unordered streams"]);
}

#[test]
fn pageable_memory_is_staged_and_page_locked_memory_is_read_late() {
    let end = rehearse("pageable_memory_is_staged_and_page_locked_memory_is_read_late", &[ASYNC], || {
        let card = Card::new(0);
        let mut pageable = vec![1_u8; BYTES];
        let first = card.upload(&pageable, 2);
        pageable.fill(2);
        assert_eq!(card.download::<u8>(first, BYTES, 2), [1; BYTES]);
        // SAFETY: the pointers are those of live values.
        unsafe {
            let locked = made(|to| cuMemHostAlloc(to, BYTES, 0));
            let bytes = locked as *mut u8;
            bytes.write_bytes(3, BYTES);
            ok(cuMemcpyHtoDAsync_v2(first, bytes.cast(), BYTES, 2));
            bytes.write_bytes(4, BYTES);
            assert_eq!(card.download::<u8>(first, BYTES, 2), [4; BYTES], "read when the stream came to it");
            bytes.write_bytes(9, BYTES);
            ok(cuMemcpyDtoHAsync_v2(bytes.cast(), first, BYTES, 2));
            assert_eq!(bytes.read(), 9, "the host does not wait for a copy to page-locked memory");
            card.synchronise(2);
            assert_eq!(bytes.read(), 4);
        }
    });
    end.is_clean();
}

#[test]
fn an_event_is_ready_when_its_work_has_run() {
    let end = rehearse("an_event_is_ready_when_its_work_has_run", &[ASYNC], || {
        let card = Card::new(0);
        let (at, event) = (card.alloc(BYTES, 2), card.event());
        fill(at, 1, 2);
        card.record(event, 2);
        // SAFETY: handles only.
        unsafe {
            assert_eq!(cuEventQuery(event), NOT_READY);
            // Polling terminates.
            assert_eq!(cuEventQuery(event), 0);
        }
    });
    end.is_clean();
}

#[test]
fn threads_of_a_program_use_the_card_together() {
    for settings in BOTH {
        let end = rehearse("threads_of_a_program_use_the_card_together", settings, || {
            let work = |value: u8| {
                let card = Card::new(0);
                let stream = card.stream(NON_BLOCKING);
                for _ in 0..200 {
                    let at = card.alloc(BYTES, stream);
                    fill(at, value, stream);
                    assert_eq!(card.download::<u8>(at, BYTES, stream), [value; BYTES]);
                    card.free(at, stream);
                }
            };
            std::thread::scope(|scope| (0..4).for_each(|value| drop(scope.spawn(move || work(value)))));
        });
        end.is_clean();
    }
}
