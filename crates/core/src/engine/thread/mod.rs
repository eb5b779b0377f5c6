//! One thread that owns a decoder and its caches and serves many requests at once.
//!
//! A server's engine: any thread submits a [`Request`] and hears of its [`Event`]s, tokens one by one, while others are served beside
//! it. A request is cancelled by its sink, which says what is wanted next. Common beginnings are read once and kept (`shelf`), prompts
//! are read in chunks (`reading`) between the steps in which all answers go on together (`speaking`), and `owner` decides who is next.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};

use super::Engine;
use super::memory_plan::Branches;
use super::request::{Event, Next, Request, Sink};
use super::request_error::RequestError;
use crate::attention::SPLIT_K;
use crate::model::Cache;

mod caller;
mod load;
mod owner;
mod reading;
mod shelf;
mod speaking;

pub use caller::Caller;
use caller::next_number;
use load::Gauges;
pub use load::Load;
pub use owner::EngineLoop;
use reading::{Queued, RequestId};

/// Limits of a thread's work and cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most continuations that are generated together.
    pub parallel: usize,
    /// Most tokens whose keys are held: those of prompts that are kept, and what is set aside for answers under way. At least what one
    /// request may take.
    pub tokens: usize,
    /// Most prompts that are kept.
    pub prompts: usize,
}

impl Limits {
    /// Tokens beside those of a context that one request may take.
    pub const BESIDE: usize = 3 * SPLIT_K;

    /// A few at once, and prompts of about as many contexts.
    pub fn of_context(context: usize) -> Self {
        Limits { parallel: 4, tokens: (context + Self::BESIDE).saturating_mul(4), prompts: 16 }
    }

    /// One request at a time, whose branches decode together as planned.
    pub fn of_branches(context: usize, branches: Branches) -> Self {
        let parallel = branches.count.max(1);
        let beside = if branches.count > 1 { branches.tokens.saturating_mul(branches.count) } else { 0 };
        Limits { parallel, tokens: context.saturating_add(Self::BESIDE).saturating_add(beside), prompts: 1 }
    }

    /// These, but enough for one request at least.
    fn fitting(self, context: usize) -> Self {
        let parallel = self.parallel.max(1);
        let tokens = self.tokens.max(context.saturating_add(Self::BESIDE));
        Limits { parallel, tokens, prompts: self.prompts.max(parallel) }
    }
}

/// A handle on the thread. When the last one is dropped, queued requests are served and the loop ends.
#[derive(Debug, Clone)]
pub struct EngineThread {
    queue: Sender<Queued>,
    gauges: Arc<Gauges>,
}

impl EngineThread {
    /// A handle, and the loop that the caller runs on a thread of its choice.
    pub fn here(engine: Engine, cache: Cache, limits: Limits) -> (Self, EngineLoop) {
        let (queue, queued) = mpsc::channel::<Queued>();
        let gauges = Arc::new(Gauges::default());
        let work = EngineLoop::new(engine, cache, limits, queued, Arc::clone(&gauges));
        (EngineThread { queue, gauges }, work)
    }

    /// The thread's load.
    pub fn load(&self) -> Load {
        self.gauges.load()
    }

    /// Queues a request of one task; `sink` hears of it on the thread and must not block. It says what is wanted next: [`Next`], or
    /// true to go on. Where the thread is gone, it hears that.
    pub fn submit<N: Into<Next>>(&self, request: Request, mut sink: impl FnMut(Event) -> N + Send + 'static) {
        self.submit_all(request, vec![Box::new(move |event| sink(event).into())]);
    }

    /// Queues a request with the sink of each of its tasks, branch by branch.
    pub fn submit_all(&self, request: Request, sinks: Vec<Sink>) {
        self.submit_of(Caller::new(), request, sinks);
    }

    /// The same of a caller that may have other requests: whoever has the fewest under way is served next.
    pub fn submit_of(&self, caller: Caller, request: Request, sinks: Vec<Sink>) {
        let id = RequestId { request: next_number(), caller };
        let queued = Queued::new(id, request, sinks);
        let count = queued.tasks();
        self.gauges.queued.fetch_add(count, Ordering::Relaxed);
        if let Err(refused) = self.queue.send(queued) {
            self.gauges.queued.fetch_sub(count, Ordering::Relaxed);
            refused.0.end(&RequestError::Gone);
        }
    }
}
