//! The thread's load, for other threads to read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// The load as the thread writes it.
#[derive(Debug, Default)]
pub(super) struct Gauges {
    /// Continuations on their way to the thread.
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
