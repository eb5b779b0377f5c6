//! The driver API and its shared state. Each file below holds one family of functions under their CUDA names. Each function is its
//! arguments and a body inside [`call`], which counts, traces, injects failures and keeps sticky errors. One lock guards the state, so
//! calls run one at a time.
//!
//! Only functions that Candle and cudarc call exist: a program that calls another fails to link, and the linker names the function.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::codes::{self, Library, Refusal, cuda};
use crate::counts::Counts;
use crate::faults::Faults;
use crate::memory::{Memory, memory};
use crate::order::{Op, Order};
use crate::settings::settings;
use crate::{console, stop};

mod context;
mod copy;
mod exit;
mod launch;
mod module;
mod stream;

pub use launch::execute;
pub use module::names;

/// Result of a call.
pub type Answer = Result<(), Refusal>;

/// A cuRAND generator.
#[derive(Clone, Copy, Default)]
pub struct Generator {
    /// Stream handle.
    pub stream: usize,
    /// Seed.
    pub seed: u64,
    /// Numbers generated so far.
    pub made: u64,
}

/// All driver state except memory, which kernel threads use too.
pub struct Driver {
    /// Current device of the calling thread; valid in calls that need a context.
    pub here: usize,
    /// Streams and events.
    pub order: Order,
    /// Call counts and planned failures.
    pub faults: Faults,
    /// Counters for the report.
    pub counts: Counts,
    modules: HashMap<usize, module::Module>,
    functions: HashMap<usize, module::Function>,
    /// Stream of each cuBLAS handle.
    pub blas: HashMap<usize, usize>,
    /// cuRAND generators by handle.
    pub generators: HashMap<usize, Generator>,
    /// Last handle given to a module, function or library object.
    last_handle: usize,
    /// Retain count of each device's primary context.
    retained: Vec<usize>,
    /// Sticky error: every later call returns it.
    lost: Option<i32>,
}

/// Locks the driver state.
pub fn driver() -> MutexGuard<'static, Driver> {
    shared().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver state, if no call is in progress.
fn idle() -> Option<MutexGuard<'static, Driver>> {
    shared().try_lock().ok()
}

fn shared() -> &'static Mutex<Driver> {
    static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| {
        exit::at_exit();
        Mutex::new(Driver {
            here: 0,
            order: Order::new(settings().asynchronous),
            faults: Faults::new(settings().fail.clone()),
            counts: Counts::default(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            blas: HashMap::new(),
            generators: HashMap::new(),
            last_handle: 0,
            retained: vec![0; settings().devices],
            lost: None,
        })
    });
    &DRIVER
}

/// Precondition of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// None: works even after the device is lost.
    Nothing,
    /// A current context, and a device that is not lost.
    Context,
}

thread_local! {
    /// Device of the current context plus 1, or 0 for none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The common part of all calls. Returns the code for the caller.
pub fn call(name: &'static str, needs: Needs, body: impl FnOnce(&mut Driver) -> Answer) -> i32 {
    let library = Library::of(name);
    let mut driver = driver();
    let due = driver.faults.due(name);
    let code = match (due, driver.lost, CURRENT.get()) {
        (Some(code), _, _) => {
            if library == Library::Cuda && codes::is_sticky(code) {
                driver.lost = Some(code);
            }
            code
        }
        (None, Some(code), _) if needs == Needs::Context => library.after_failure(code),
        (None, None, 0) if needs == Needs::Context => {
            stop::complain(&format!("{name}: no context is current on this thread"));
            match library {
                Library::Cuda => cuda::CUDA_ERROR_INVALID_CONTEXT,
                Library::Cublas => codes::cublas::CUBLAS_STATUS_NOT_INITIALIZED,
                Library::Curand => codes::curand::CURAND_STATUS_INITIALIZATION_FAILED,
            }
        }
        (None, _, current) => {
            driver.here = current.saturating_sub(1);
            match body(&mut driver) {
                Ok(()) => 0,
                Err(Refusal { code, why, expected }) => {
                    if !expected || settings().trace {
                        stop::complain(&format!("{name}: {why}: {}", library.name(code)));
                    }
                    code
                }
            }
        }
    };
    if settings().trace {
        let outcome = if code == 0 { "" } else { library.name(code) };
        console::say(&format!("{name} {outcome}"));
    }
    code
}

impl Driver {
    /// Prints a call's arguments if tracing is on.
    pub fn trace(&self, arguments: impl FnOnce() -> String) {
        if settings().trace {
            console::say(&format!("  {}", arguments()));
        }
    }

    /// Begins an operation on the stream of this handle in the current context.
    pub fn begin(&mut self, stream: usize, what: &'static str) -> Result<Op, Refusal> {
        let stream = self.order.stream(stream, self.here)?;
        Ok(self.order.begin(stream, what))
    }

    /// A unique handle. Not an address, so that a handle of the wrong kind is detected.
    pub fn new_handle(&mut self) -> usize {
        self.last_handle += 1;
        0x0B1E_0000 + 16 * self.last_handle
    }
}

/// Runs a memory operation; its error is a fault and ends the program, after the lock is released for the report.
pub fn ask_memory<T>(ask: impl FnOnce(&mut Memory) -> Result<T, String>) -> T {
    let answer = ask(&mut memory());
    answer.unwrap_or_else(|why| stop::fault(&why))
}

/// Writes a result to the caller's pointer.
pub(crate) fn give<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_VALUE, "the pointer for the result is null"));
    }
    // SAFETY: the caller of the exported function vouches for its pointers, as in CUDA.
    unsafe { to.write(value) };
    Ok(())
}

/// Exports functions under their own names: `fn name(arguments) Needs |driver| { body }`.
macro_rules! export {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?)
        $needs:ident |$driver:pat_param| $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the function of this name in CUDA: pointers are what its manual says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
            $crate::driver::call(stringify!($name), $crate::driver::Needs::$needs, |$driver| $body)
        }
    )*};
}
pub(crate) use export;
