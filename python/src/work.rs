//! Long work: on threads of this module's own, with the GIL released, stopped by Ctrl-C, one caller at a time for each model.

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

/// Bytes of stack of a thread that works: as the command's.
const STACK: usize = 8 << 20;

/// Time between two looks at signals and progress.
const TICK: Duration = Duration::from_millis(50);

/// The threads that compute, and the process that they are of: a fork has none of them.
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
        // Its threads are in another process: nothing here could wait for them.
        std::mem::forget(old);
    }
    Ok(built)
}

/// The channel between work under way and its caller.
#[derive(Debug, Default)]
pub struct Watch {
    done: AtomicU64,
    stopped: Arc<AtomicBool>,
}

impl Watch {
    /// So many more steps are done.
    pub fn add(&self, steps: usize) {
        self.done.fetch_add(steps as u64, Ordering::Relaxed);
    }

    /// True as long as nobody asked for a stop.
    pub fn goes_on(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }

    /// The flag that a stop sets.
    pub fn stopped(&self) -> &Arc<AtomicBool> {
        &self.stopped
    }

    /// Looks at signals and tells progress. What either raises stops the work.
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

/// Does `job` and returns its outcome. `progress` is called with the steps that are done. Ctrl-C, and whatever `progress` raises, is
/// raised when the job has stopped.
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
                // The caller waits for it.
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

/// A value that one caller at a time has, in the order of coming.
#[derive(Debug)]
pub struct Queue<T> {
    line: Mutex<(u64, VecDeque<u64>)>,
    left: Condvar,
    value: Mutex<T>,
}

/// The value, until it is dropped.
pub struct Turn<'a, T> {
    value: MutexGuard<'a, T>,
    _place: Place<'a, T>,
}

/// A place in the line. It is left when this is dropped.
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
    /// The value.
    pub fn value(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Send> Queue<T> {
    /// Of a value.
    pub fn new(value: T) -> Self {
        Queue { line: Mutex::default(), left: Condvar::new(), value: Mutex::new(value) }
    }

    /// Does `job` with the value when it is the caller's turn, as [`run`] does. Ctrl-C leaves the line.
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
        // Nobody else is at the front, so that this waits for nobody.
        let mut turn = Turn { value: lock(&self.value), _place: place };
        let value = turn.value();
        run(py, progress, move |watch| job(value, watch))
    }

    /// Waits a moment; true if it is this ticket's turn.
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
