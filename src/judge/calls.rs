//! The calls of a judge: one after the other, or several at once where it has several ways to be called.
//!
//! What came of them is handed on in their order either way, so that the rows of a run do not depend on it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use super::conduct::{Conduct, Judge};
use crate::run::energy::Joulemeter;
use crate::run::error::RunError;

/// So many times as many calls as are made at once may have ended without being handed on, behind one that takes long. They are what a
/// kill loses.
const AHEAD: usize = 4;

/// Makes one call, the `usize`th.
pub(super) type Ask<'a, T> = &'a (dyn Fn(&mut Judge<'_>, &mut Joulemeter, usize) -> T + Sync);

/// Makes `count` calls and hands what came of each to `take`, in their order. Returns whether `stop` ended it before the last; those under
/// way are finished then, and also after an error of `take`, which ends it too.
pub(super) fn make_calls<T: Send>(
    judge: &mut Judge<'_>,
    count: usize,
    stop: &AtomicBool,
    ask: Ask<'_, T>,
    take: &mut dyn FnMut(usize, T) -> Result<(), RunError>,
) -> Result<bool, RunError> {
    let Judge::Several { models, sampling } = judge else {
        let mut meter = Joulemeter::of(judge.hardware().as_ref());
        for nth in 0..count {
            if stop.load(Ordering::Relaxed) {
                return Ok(true);
            }
            take(nth, ask(judge, &mut meter, nth))?;
        }
        return Ok(false);
    };
    let (sampling, lines) = (*sampling, models.len());
    let (give, given) = mpsc::channel::<usize>();
    let given = Mutex::new(given);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        for model in models.iter_mut() {
            let (tell, given) = (tell.clone(), &given);
            scope.spawn(move || {
                let (mut judge, mut meter) =
                    (Judge::Reply { model: &mut **model, sampling }, Joulemeter::of(None));
                loop {
                    let next = given.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(nth) = next else { return };
                    if tell.send((nth, ask(&mut judge, &mut meter, nth))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        let (mut begun, mut under_way, mut taken) = (0, 0, 0);
        let mut ended: BTreeMap<usize, T> = BTreeMap::new();
        let mut done = Ok(());
        loop {
            while done.is_ok()
                && !stop.load(Ordering::Relaxed)
                && under_way < lines
                && begun < count.min(taken + AHEAD * lines)
                && give.send(begun).is_ok()
            {
                begun += 1;
                under_way += 1;
            }
            if under_way == 0 {
                break;
            }
            let Ok((nth, came)) = told.recv() else { break };
            under_way -= 1;
            ended.insert(nth, came);
            while let Some(came) = ended.remove(&taken) {
                let took = take(taken, came);
                taken += 1;
                done = done.and(took);
            }
        }
        drop(give);
        done.map(|()| taken < count)
    })
}

/// Counts calls in a row that brought no verdict.
pub(super) struct Unreadable<'a> {
    conduct: &'a Conduct,
    in_a_row: usize,
}

impl<'a> Unreadable<'a> {
    pub fn new(conduct: &'a Conduct) -> Self {
        Unreadable { conduct, in_a_row: 0 }
    }

    /// A call about `what` brought a verdict, or none for a reason.
    ///
    /// # Errors
    /// [`RunError::GaveUp`] where they are as many as it is to give up after.
    pub fn count(&mut self, judge: &str, what: &str, why: Option<&str>) -> Result<(), RunError> {
        let Some(why) = why else {
            self.in_a_row = 0;
            return Ok(());
        };
        self.in_a_row += 1;
        if self.conduct.give_up_after != Some(self.in_a_row) {
            return Ok(());
        }
        Err(RunError::GaveUp(format!(
            "{} replies of {judge} in a row hold nothing that can be read, so judging stops here; what was judged is kept, and the same \
             command goes on. The last, on {what}: {why}. Try another judge, more --max-new-tokens, --thinking off or a judge.j2 of your own \
             with --prompts; --give-up-after 0 goes on whatever comes",
            self.in_a_row
        )))
    }
}
