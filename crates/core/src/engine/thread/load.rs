//! The thread's load, for other threads to read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The load of a thread ([`super::EngineThread::load`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Continuations that are being generated, or whose prompt is being read.
    pub running: usize,
    /// Continuations that wait.
    pub waiting: usize,
    /// Tokens of prompts that are kept, each as often as it is there.
    pub cached: usize,
    /// Tokens that there is room for, of prompts and of what is generated together.
    pub room: usize,
    /// Tokens of that room that are taken.
    pub taken: usize,
    /// Prompts that are kept.
    pub prompts: usize,
    /// Tokens of prompts that were found in the cache, since the start.
    pub found: u64,
    /// Tokens of prompts that were read, since the start.
    pub read: u64,
    /// Prompts that made room for others, since the start.
    pub evicted: u64,
    /// Forward passes of decoding, since the start, and tokens that were read by them.
    pub steps: u64,
    /// The tokens.
    pub stepped: u64,
}

/// The same, written by the thread.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    /// Continuations on their way to the thread.
    pub queued: AtomicUsize,
    pub running: AtomicUsize,
    pub waiting: AtomicUsize,
    pub cached: AtomicUsize,
    pub room: AtomicUsize,
    pub taken: AtomicUsize,
    pub prompts: AtomicUsize,
    pub found: AtomicU64,
    pub read: AtomicU64,
    pub evicted: AtomicU64,
    pub steps: AtomicU64,
    pub stepped: AtomicU64,
}

impl Gauges {
    pub fn load(&self) -> Load {
        let size = |gauge: &AtomicUsize| gauge.load(Ordering::Relaxed);
        let count = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
        Load {
            running: size(&self.running),
            waiting: size(&self.queued) + size(&self.waiting),
            cached: size(&self.cached),
            room: size(&self.room),
            taken: size(&self.taken),
            prompts: size(&self.prompts),
            found: count(&self.found),
            read: count(&self.read),
            evicted: count(&self.evicted),
            steps: count(&self.steps),
            stepped: count(&self.stepped),
        }
    }
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

/// Sets a gauge.
pub(super) fn set(gauge: &AtomicUsize, n: usize) {
    gauge.store(n, Ordering::Relaxed);
}
