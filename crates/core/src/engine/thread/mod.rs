//! One thread that owns a decoder and its caches and serves many requests at once.
//!
//! What a server stands before: any thread submits a [`Request`] and hears of its [`Event`]s, tokens one by one, while others are
//! served beside it. A request is cancelled by its sink, which says what is wanted next, or by its [`Ticket`], which cancels it when it
//! is dropped. What begins alike is read once and kept (`shelf`), prompts are read in chunks (`reading`) between the steps
//! in which all answers go on together (`speaking`), and `owner` decides who is next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use super::Engine;
use super::memory_plan::Branches;
use super::request::{Event, Measured, Next, Request, RequestError, Sink};
use crate::attention::SPLIT_K;
use crate::model::Cache;

mod load;
mod owner;
mod reading;
mod shelf;
mod speaking;

use load::Gauges;
pub use load::Load;
pub use owner::EngineLoop;
use reading::{Queued, RequestId};

/// How much a thread does and keeps at once.
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

/// A handle on the thread. When the last one is dropped, what is queued is served and the thread ends.
#[derive(Debug, Clone)]
pub struct EngineThread {
    // Dropped before the wait for the thread, which ends when nobody can ask any more.
    queue: Sender<Queued>,
    gauges: Arc<Gauges>,
    _thread: Arc<Joined>,
}

/// Someone with requests: their prompts are read one after the other, in turn with those of other callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller(u64);

impl Caller {
    /// A caller unlike all others.
    #[expect(clippy::new_without_default, reason = "each one is another")]
    pub fn new() -> Self {
        Caller(next_number())
    }
}

fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Waits for the thread when it is dropped.
#[derive(Debug)]
struct Joined(Option<JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        // The last handle may be held by a sink, on the thread itself.
        let other = self.0.take().filter(|thread| thread.thread().id() != thread::current().id());
        // A panic has been printed, and whoever waits for an answer hears that the thread is gone.
        let _ = other.map(JoinHandle::join);
    }
}

impl EngineThread {
    /// Starts the thread with a decoder and a cache of its own, of `context` tokens.
    ///
    /// # Errors
    /// Those of making a cache, or of a system without threads.
    pub fn start(engine: Engine, context: usize) -> Result<Self, RequestError> {
        let cache = engine.decoder().cache(context)?;
        Self::start_with(engine, cache, Limits::of_context(context))
    }

    /// The same with a cache that is at hand, which says how long a context is and how layers remember, and other limits.
    ///
    /// # Errors
    /// Those of a system without threads.
    pub fn start_with(engine: Engine, cache: Cache, limits: Limits) -> Result<Self, RequestError> {
        let (handle, work) = Self::here(engine, cache, limits);
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(move || work.run());
        let thread = thread.map_err(candle_core::Error::wrap)?;
        Ok(EngineThread { _thread: Arc::new(Joined(Some(thread))), ..handle })
    }

    /// A handle on work that the caller's own thread is to do.
    pub fn here(engine: Engine, cache: Cache, limits: Limits) -> (Self, EngineLoop) {
        let (queue, queued) = mpsc::channel::<Queued>();
        let gauges = Arc::new(Gauges::default());
        let work = EngineLoop::new(engine, cache, limits, queued, Arc::clone(&gauges));
        (EngineThread { queue, gauges, _thread: Arc::new(Joined(None)) }, work)
    }

    /// How much there is to do, and what is held.
    pub fn load(&self) -> Load {
        self.gauges.load()
    }

    /// Queues a request of one task; `sink` hears of it on the thread and must not block. It says what is wanted next: [`Next`], or
    /// whether to go on. Where the thread is gone, it hears that.
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

    /// Queues a request of one task whose events are fetched from a ticket.
    pub fn ask(&self, request: Request) -> Ticket {
        let (events, heard) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&cancelled);
        self.submit(request, move |event| events.send(event).is_ok() && !flag.load(Ordering::Relaxed));
        Ticket { events: heard, cancelled }
    }
}

/// A queued request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Ticket {
    events: Receiver<Event>,
    cancelled: Arc<AtomicBool>,
}

impl Ticket {
    /// Waits for the next event; `None` after the last one.
    pub fn next_event(&self) -> Option<Event> {
        self.events.recv().ok()
    }

    /// Ends the request at its next chunk or token, or before it begins.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// What the last event says.
    pub fn wait(self) -> Result<Measured, RequestError> {
        while let Some(event) = self.next_event() {
            match event {
                Event::Done(measured) => return Ok(*measured),
                Event::Failed(error) => return Err(error),
                _ => {}
            }
        }
        Err(RequestError::Gone)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}
