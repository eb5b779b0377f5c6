//! Concurrent calls.

use std::cell::Cell;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use palimpsest::chat::parallel::in_order;

#[test]
fn results_come_in_order_and_calls_are_made_at_once() {
    // Passes only if three calls are in flight at once.
    let together = Barrier::new(3);
    let mut taken = Vec::new();
    let whole = in_order(
        vec![(); 3],
        6,
        &|| false,
        &mut |nth| nth,
        &|(), nth| {
            together.wait();
            thread::sleep(Duration::from_millis(6 - nth as u64));
            nth * 10
        },
        &mut |nth, result| {
            taken.push((nth, result));
            Ok::<(), ()>(())
        },
    );
    assert_eq!(whole, Ok(true));
    assert_eq!(taken, [(0, 0), (1, 10), (2, 20), (3, 30), (4, 40), (5, 50)]);
}

#[test]
fn one_worker_takes_each_result_before_the_next_call_and_an_error_or_a_stop_ends_it() {
    let (prepared, taken) = (Cell::new(0), Cell::new(0));
    let run = |fails_at: usize, stops_after: usize| {
        prepared.set(0);
        taken.set(0);
        in_order(
            vec![()],
            5,
            &|| taken.get() >= stops_after,
            &mut |nth| {
                assert_eq!(nth, taken.get(), "all before it are taken");
                prepared.set(nth + 1);
            },
            &|(), ()| (),
            &mut |nth, ()| {
                taken.set(nth + 1);
                if nth == fails_at { Err("full") } else { Ok(()) }
            },
        )
    };
    assert_eq!((run(2, 9), prepared.get(), taken.get()), (Err("full"), 3, 3));
    assert_eq!((run(9, 2), prepared.get(), taken.get()), (Ok(false), 2, 2));
    assert_eq!((run(9, 9), prepared.get(), taken.get()), (Ok(true), 5, 5));
}
