//! Calls a running memory system with retries, restarts it, and tracks which histories it holds. Publishes the current operation to
//! the proxy. Knows no files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::protocol::{FailureKind, Hello, MemorySystem, SystemError, SystemResult};

/// The current operation, read by the proxy that counts model calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlight {
    pub folder: PathBuf,
    /// `ingest`, `finish`, `search`, ...
    pub phase: &'static str,
    pub about: String,
    pub attempt: u32,
    /// Unique per attempt.
    pub serial: u64,
}

/// Set by the driver, read by the proxy. `None` between operations.
pub type Operation = Arc<Mutex<Option<InFlight>>>;

/// Retries of transient errors, and the delay before the first; it doubles each time.
const RETRIES: u32 = 3;
const DELAY: Duration = Duration::from_secs(1);

pub(super) struct Driver {
    pub(super) name: String,
    system: Box<dyn MemorySystem>,
    pub(super) hello: Hello,
    pub(super) running: bool,
    /// Restart error; no further restarts are tried.
    broken: Option<SystemError>,
    /// Scopes whose complete history the running system holds, oldest first.
    pub(super) live: Vec<String>,
    pub(super) operation: Operation,
    serial: u64,
}

impl Driver {
    pub(super) fn start(name: &str, mut system: Box<dyn MemorySystem>) -> SystemResult<Self> {
        let hello = system.hello()?;
        Ok(Driver {
            name: name.to_owned(),
            system,
            hello,
            running: true,
            broken: None,
            live: Vec::new(),
            operation: Operation::default(),
            serial: 0,
        })
    }

    /// Retries transient errors; marks the system as stopped if it is lost.
    pub(super) fn call<T>(
        &mut self,
        folder: &Path,
        phase: &'static str,
        about: &str,
        mut operation: impl FnMut(&mut dyn MemorySystem) -> SystemResult<T>,
    ) -> SystemResult<T> {
        let mut delay = DELAY;
        let mut attempt = 0;
        loop {
            self.serial += 1;
            let (folder, about, serial) = (folder.to_owned(), about.to_owned(), self.serial);
            self.under_way(Some(InFlight { folder, phase, about: about.clone(), attempt, serial }));
            let done = operation(self.system.as_mut());
            self.under_way(None);
            let Err(error) = done else { return done };
            if error.kind != FailureKind::Transient || attempt >= RETRIES {
                if error.kind.is_lost() {
                    self.running = false;
                    self.live.clear();
                }
                return Err(error);
            }
            tracing::warn!("{about}: {error}; tried again in {:.1} s", delay.as_secs_f64());
            thread::sleep(delay);
            attempt += 1;
            delay *= 2;
        }
    }

    fn under_way(&self, operation: Option<InFlight>) {
        *self.operation.lock().unwrap_or_else(PoisonError::into_inner) = operation;
    }

    pub(super) fn revive(&mut self) -> SystemResult<()> {
        if self.running {
            return Ok(());
        }
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let started = self.system.hello().and_then(|hello| match hello == self.hello {
            true => Ok(()),
            false => {
                let message = "started again, it says other than at first of itself (versions, packages, capabilities); a run needs one \
                               and the same system";
                Err(self.error("hello", FailureKind::Fatal, message.to_owned()))
            }
        });
        self.running = started.is_ok();
        self.broken = started.clone().err();
        started
    }

    pub(super) fn error(&self, op: &'static str, kind: FailureKind, message: String) -> SystemError {
        SystemError { system: self.name.clone(), op, kind, message }
    }

    pub(super) fn holds(&self, scope: &str) -> bool {
        self.running && self.live.iter().any(|live| live == scope)
    }

    pub(super) fn make_room(&mut self) {
        while self.running && self.live.len() >= self.hello.scopes.max(1) {
            let oldest = self.live.remove(0);
            if let Err(error) = self.system.reset(&oldest) {
                tracing::warn!("{error}");
                self.running = !error.kind.is_lost();
            }
        }
    }

    pub(super) fn close(&mut self) {
        self.running = false;
        self.live.clear();
        self.system.close();
    }
}
