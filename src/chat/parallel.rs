//! Several calls at once, each worker with a model of its own.
//!
//! Results are handed on in the order of the calls, so that what is stored does not depend on how many workers there are.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// Calls that may have ended and wait behind a slow one, in multiples of the workers: a kill loses them.
const AHEAD: usize = 4;

/// Makes `count` calls with one thread a worker: `prepare` makes the nth call's input here, `ask` turns it into a result on a worker's
/// thread, and `take` gets the results here, in order. With one worker each result is taken before the next call is prepared.
///
/// Once `stopped` returns true or `take` fails no more calls begin; those under way end and are taken. Returns false where some were
/// not made because of `stopped`.
pub fn in_order<W: Send, Q: Send, A: Send, E>(
    workers: Vec<W>,
    count: usize,
    stopped: &dyn Fn() -> bool,
    prepare: &mut dyn FnMut(usize) -> Q,
    ask: &(dyn Fn(&mut W, Q) -> A + Sync),
    take: &mut dyn FnMut(usize, A) -> Result<(), E>,
) -> Result<bool, E> {
    let lines = workers.len().max(1);
    let (give, given) = mpsc::channel::<(usize, Q)>();
    let given = Mutex::new(given);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        for mut worker in workers {
            let (tell, given) = (tell.clone(), &given);
            scope.spawn(move || {
                loop {
                    let next = given.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((nth, input)) = next else { return };
                    if tell.send((nth, ask(&mut worker, input))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        let (mut begun, mut under_way, mut taken) = (0, 0, 0);
        let mut ended: BTreeMap<usize, A> = BTreeMap::new();
        let mut done = Ok(());
        loop {
            while done.is_ok() && under_way < lines && begun < count.min(taken + AHEAD * lines) && !stopped()
            {
                if give.send((begun, prepare(begun))).is_err() {
                    break;
                }
                begun += 1;
                under_way += 1;
            }
            if under_way == 0 {
                break;
            }
            let Ok((nth, result)) = told.recv() else { break };
            under_way -= 1;
            ended.insert(nth, result);
            while let Some(result) = ended.remove(&taken) {
                let took = take(taken, result);
                taken += 1;
                done = done.and(took);
            }
        }
        drop(give);
        done.map(|()| taken == count)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Barrier;
    use std::time::Duration;

    use super::*;

    #[test]
    fn results_come_in_order_and_calls_are_made_at_once() {
        // Passes only where three calls are under way together.
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
}
