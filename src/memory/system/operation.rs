//! The words between the driver of histories and those who watch it: the operation under way, its retries, how far a history is.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The operation under way, for those that count the system's own calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    pub folder: PathBuf,
    /// `ingest`, `finish`, `search`, ...
    pub phase: &'static str,
    pub about: String,
    /// Of the operation, from 0.
    pub attempt: u32,
    /// Other than any operation's before it.
    pub serial: u64,
}

/// Shared between the driver, which sets it, and a proxy, which reads it. `None` between operations.
pub type Operation = Arc<Mutex<Option<InFlight>>>;

/// Retries of errors that may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// After the first attempt.
    pub most: u32,
    /// Before the first; doubled for each further one.
    pub delay: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Retries { most: 3, delay: Duration::from_secs(1) }
    }
}

/// The sessions of a history that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    pub case: &'a str,
    pub done: usize,
    pub sessions: usize,
}

/// The wanted contents of a probe's row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    pub k: usize,
    /// Those written from the probe's evidence too.
    pub readback: bool,
    pub answer: bool,
}
