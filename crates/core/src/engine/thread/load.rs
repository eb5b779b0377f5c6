//! Load statistics of the engine thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Load of an engine thread ([`super::EngineThread::load`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Continuations being generated, or whose prompt is being read.
    pub running: usize,
    /// Waiting continuations.
    pub waiting: usize,
    /// Cached prompt tokens, duplicates included.
    pub cached: usize,
    /// Token budget of prompts and answers together.
    pub room: usize,
    /// Used tokens of that budget.
    pub taken: usize,
    /// Cached prompts.
    pub prompts: usize,
    /// Prompt tokens found in the cache, since start.
    pub found: u64,
    /// Prompt tokens prefilled, since start.
    pub read: u64,
    /// Evicted prompts, since start.
    pub evicted: u64,
    /// Decode passes, since start.
    pub steps: u64,
    /// Tokens decoded in them, since start.
    pub stepped: u64,
}

#[derive(Debug, Default)]
pub(super) struct Gauges {
    /// Continuations not yet received by the thread.
    pub queued: AtomicUsize,
    load: Mutex<Load>,
}

impl Gauges {
    pub fn load(&self) -> Load {
        let load = *self.load.lock().unwrap_or_else(PoisonError::into_inner);
        Load { waiting: load.waiting + self.queued.load(Ordering::Relaxed), ..load }
    }

    pub fn update(&self, change: impl FnOnce(&mut Load)) {
        change(&mut self.load.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
