//! Long jobs: on own threads, GIL released, interruptible by Ctrl-C, one caller at a time per model.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::errors::{panicked, raised};

/// Stack size of a job thread, as the command's.
const STACK: usize = 8 << 20;

/// Interval of signal and progress checks.
const TICK: Duration = Duration::from_millis(50);

/// Compute threads and the process id they belong to; a fork has none of them.
static POOL: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pool() -> PyResult<Arc<ThreadPool>> {
    let mut pool = lock(&POOL);
    let process = std::process::id();
    if let Some((_, pool)) = pool.as_ref().filter(|(of, _)| *of == process) {
        return Ok(Arc::clone(pool));
    }
    let built = ThreadPoolBuilder::new().stack_size(STACK).thread_name(|n| format!("palimpsest-{n}")).build();
    let built = Arc::new(built.context("cannot start threads").map_err(|e| raised(&e))?);
    if let Some((_, old)) = pool.replace((process, Arc::clone(&built))) {
        // Its threads are in another process and cannot be joined.
        std::mem::forget(old);
    }
    Ok(built)
}

/// Progress counter and stop flag of a job.
#[derive(Debug, Default)]
pub struct Watch {
    done: AtomicU64,
    stopped: Arc<AtomicBool>,
}

impl Watch {
    pub fn add(&self, steps: usize) {
        self.done.fetch_add(steps as u64, Ordering::Relaxed);
    }

    pub fn goes_on(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }

    pub fn stopped(&self) -> &Arc<AtomicBool> {
        &self.stopped
    }

    /// Checks signals and reports progress; an exception from either stops the job.
    fn look(&self, progress: Option<&Py<PyAny>>) -> PyResult<()> {
        Python::attach(|py| {
            py.check_signals()?;
            if let Some(progress) = progress {
                progress.call1(py, (self.done.load(Ordering::Relaxed),))?;
            }
            Ok(())
        })
    }
}

/// Runs `job`, calling `progress` with the steps done. Exceptions from Ctrl-C or `progress` are raised once the job has stopped.
pub fn run<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    job: impl FnOnce(&Watch) -> anyhow::Result<T> + Send,
) -> PyResult<T> {
    let pool = pool()?;
    let watch = Watch::default();
    py.detach(|| {
        let (told, outcome) = mpsc::channel();
        let of_job = &watch;
        pool.in_place_scope(|scope| {
            scope.spawn(move |_| {
                let done = panic::catch_unwind(AssertUnwindSafe(|| job(of_job)));
                // The caller is waiting.
                let _ = told.send(done);
            });
            let mut raised_by = None;
            loop {
                match outcome.recv_timeout(TICK) {
                    Ok(done) => {
                        if raised_by.is_none() {
                            raised_by = watch.look(progress.as_ref()).err();
                        }
                        break match (raised_by, done) {
                            (Some(error), _) => Err(error),
                            (None, Ok(done)) => done.map_err(|e| raised(&e)),
                            (None, Err(payload)) => Err(panicked(&*payload)),
                        };
                    }
                    Err(RecvTimeoutError::Timeout) if raised_by.is_none() => {
                        raised_by = watch.look(progress.as_ref()).err();
                        watch.stopped.store(raised_by.is_some(), Ordering::Relaxed);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        break Err(panicked(&"the work ended without an outcome"));
                    }
                }
            }
        })
    })
}

/// Exclusive access to a value, first come, first served.
#[derive(Debug)]
pub struct Queue<T> {
    line: Mutex<(u64, VecDeque<u64>)>,
    left: Condvar,
    value: Mutex<T>,
}

pub struct Turn<'a, T> {
    value: MutexGuard<'a, T>,
    _place: Place<'a, T>,
}

/// A ticket in the queue, removed on drop.
struct Place<'a, T> {
    queue: &'a Queue<T>,
    ticket: u64,
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        lock(&self.queue.line).1.retain(|ticket| *ticket != self.ticket);
        self.queue.left.notify_all();
    }
}

impl<T> Turn<'_, T> {
    pub fn value(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Send> Queue<T> {
    pub fn new(value: T) -> Self {
        Queue { line: Mutex::default(), left: Condvar::new(), value: Mutex::new(value) }
    }

    /// Runs `job` with the value in turn, like [`run`]. Ctrl-C leaves the queue.
    pub fn run<R: Send>(
        &self,
        py: Python<'_>,
        progress: Option<Py<PyAny>>,
        job: impl FnOnce(&mut T, &Watch) -> anyhow::Result<R> + Send,
    ) -> PyResult<R> {
        let ticket = {
            let mut line = lock(&self.line);
            line.0 += 1;
            let ticket = line.0;
            line.1.push_back(ticket);
            ticket
        };
        let place = Place { queue: self, ticket };
        while !py.detach(|| self.comes(ticket)) {
            py.check_signals()?;
        }
        // First in the queue, so the lock is free.
        let mut turn = Turn { value: lock(&self.value), _place: place };
        let value = turn.value();
        run(py, progress, move |watch| job(value, watch))
    }

    /// Waits briefly; returns whether it is this ticket's turn.
    fn comes(&self, ticket: u64) -> bool {
        let line = lock(&self.line);
        let first = |line: &(u64, VecDeque<u64>)| line.1.front() == Some(&ticket);
        if first(&line) {
            return true;
        }
        let waited = self.left.wait_timeout(line, TICK);
        first(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}
