//! The calls of a judge, sequential or parallel. Results are handed on in order either way, so that rows do not depend on it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::conduct::{Conduct, Judge};
use crate::chat::parallel::in_order;
use crate::runs::error::RunError;
use crate::runs::subject::PATIENCE;

pub(super) type Ask<'a, T> = &'a (dyn Fn(&mut Judge<'_>, usize) -> T + Sync);

/// Makes `count` calls and passes results to `take` in order. Returns whether `stop` ended it early; pending calls finish first, also after
/// an error of `take`.
pub(super) fn make_calls<T: Send>(
    judge: &mut Judge<'_>,
    count: usize,
    stop: &AtomicBool,
    ask: Ask<'_, T>,
    take: &mut dyn FnMut(usize, T) -> Result<(), RunError>,
) -> Result<bool, RunError> {
    let Judge::Several { models, sampling } = judge else {
        for nth in 0..count {
            if stop.load(Ordering::Relaxed) {
                return Ok(true);
            }
            take(nth, ask(judge, nth))?;
        }
        return Ok(false);
    };
    let sampling = *sampling;
    let whole = in_order(
        models.iter_mut().collect(),
        count,
        &|| stop.load(Ordering::Relaxed),
        &mut |nth| nth,
        &|model, nth| {
            let mut judge = Judge::Reply { model: &mut ***model, sampling };
            ask(&mut judge, nth)
        },
        take,
    )?;
    Ok(!whole)
}

pub(super) struct Failures<'a> {
    conduct: &'a Conduct,
    failed: usize,
    unreadable: usize,
}

impl<'a> Failures<'a> {
    pub fn new(conduct: &'a Conduct) -> Self {
        Failures { conduct, failed: 0, unreadable: 0 }
    }

    pub fn call_came(&mut self) {
        self.failed = 0;
    }

    pub fn call_failed(&mut self, error: &str) -> Result<(), RunError> {
        self.failed += 1;
        if self.failed < PATIENCE {
            return Ok(());
        }
        Err(RunError::GaveUp(format!(
            "{PATIENCE} calls of the judge in a row failed, so judging stops here (the same command goes on); the last said: {error}"
        )))
    }

    pub fn count(&mut self, judge: &str, what: &str, why: Option<&str>) -> Result<(), RunError> {
        let Some(why) = why else {
            self.unreadable = 0;
            return Ok(());
        };
        self.unreadable += 1;
        if self.conduct.give_up_after != Some(self.unreadable) {
            return Ok(());
        }
        Err(RunError::GaveUp(format!(
            "{} replies of {judge} in a row hold nothing that can be read, so judging stops here; what was judged is kept, and the same \
             command goes on. The last, on {what}: {why}. Try another judge, more --max-new-tokens, --thinking off or a judge.j2 of your own \
             with --prompts; --give-up-after 0 goes on whatever comes",
            self.unreadable
        )))
    }
}
