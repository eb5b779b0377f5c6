//! Parallel calls, one model per worker. Results are delivered in call order, so stored output does not depend on the number of workers.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// Limit of finished calls waiting behind a slow one, in multiples of the workers; a kill loses them.
const AHEAD: usize = 4;

/// Makes `count` calls: `prepare` builds the nth input and `take` receives results in order, both on this thread; `ask` runs on worker
/// threads. With one worker each result is taken before the next call is prepared.
///
/// After `stopped` returns true or `take` fails, pending calls finish and are taken. Returns false if `stopped` left calls undone.
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
