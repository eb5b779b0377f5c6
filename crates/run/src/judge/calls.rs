//! A judge's model and its calls, sequential or parallel. Results are handed on in order either way, so that rows do not depend on it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::chat::parallel::in_order;
use crate::chat::{CallTokens, ChatModel, Sampling, ScoringModel};
use crate::runs::error::RunError;
use crate::runs::subject::PATIENCE;

pub enum Judge<'a> {
    /// Scores `true` against `false` at each decision.
    Scoring(&'a mut dyn ScoringModel),
    /// Requests JSON, from a local model that thinks first or an endpoint; with several models in parallel calls.
    Reply { models: Vec<&'a mut (dyn ChatModel + Send)>, sampling: Sampling },
}

impl Judge<'_> {
    fn model(&self) -> Option<&dyn ChatModel> {
        match self {
            Judge::Scoring(model) => Some(&**model),
            Judge::Reply { models, .. } => models.first().map(|model| &**model as &dyn ChatModel),
        }
    }

    pub fn name(&self) -> String {
        self.model().map(ChatModel::name).unwrap_or_default()
    }

    pub(super) fn refused_parameters(&self) -> Vec<String> {
        self.model().map(ChatModel::refused_parameters).unwrap_or_default()
    }

    pub(super) fn take_tokens(&mut self) -> CallTokens {
        match self {
            Judge::Scoring(model) => model.take_tokens(),
            Judge::Reply { models, .. } => {
                models.first_mut().map(|model| model.take_tokens()).unwrap_or_default()
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conduct {
    pub show_progress: bool,
    pub verbose: bool,
    /// Give up after this many consecutive calls without a verdict; never if absent.
    pub give_up_after: Option<usize>,
}

impl Conduct {
    pub const GIVE_UP_AFTER: usize = 10;
}

impl From<bool> for Conduct {
    fn from(show_progress: bool) -> Self {
        Conduct { show_progress, verbose: false, give_up_after: Some(Conduct::GIVE_UP_AFTER) }
    }
}

/// Makes `count` calls and passes results to `take` in order. Returns whether `stop` ended it early; pending calls finish first, also after
/// an error of `take`.
pub(super) fn make_calls<T: Send>(
    judge: &mut Judge<'_>,
    count: usize,
    stop: &AtomicBool,
    ask: &(dyn Fn(&mut Judge<'_>, usize) -> T + Sync),
    take: &mut dyn FnMut(usize, T) -> Result<(), RunError>,
) -> Result<bool, RunError> {
    if let Judge::Reply { models, sampling } = judge
        && models.len() > 1
    {
        let (workers, sampling) = (models.iter_mut().collect(), *sampling);
        let stopped = || stop.load(Ordering::Relaxed);
        let ask = |model: &mut &mut &mut (dyn ChatModel + Send), nth| {
            ask(&mut Judge::Reply { models: vec![&mut ***model], sampling }, nth)
        };
        return in_order(workers, count, &stopped, &mut |nth| nth, &ask, take).map(|whole| !whole);
    }
    for nth in 0..count {
        if stop.load(Ordering::Relaxed) {
            return Ok(true);
        }
        take(nth, ask(judge, nth))?;
    }
    Ok(false)
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
            "{PATIENCE} calls of the judge in a row failed, so judging stops here (the same command resumes); the last said: {error}"
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
            "{} replies of {judge} in a row were unreadable, so judging stops here; earlier verdicts are kept, and the same command \
             resumes. The last, on {what}: {why}. Try another judge, more --max-new-tokens, --thinking off or a judge.j2 of your own \
             with --prompts; --give-up-after 0 never stops",
            self.unreadable
        )))
    }
}
