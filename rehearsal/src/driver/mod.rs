//! The driver API, and the state that all calls share. Each file below holds one family of functions under
//! their own names; each function is a line of arguments and a body inside [`call`], which counts, traces,
//! fails on demand and keeps errors that last. The state is behind one lock: one call at a time, as in a
//! driver.
//!
//! Functions that Candle and cudarc do not call are not here: a program that calls one cannot be linked, and
//! the linker names the function.

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

/// The answer of a call.
pub type Answer = Result<(), Refusal>;

/// A generator of cuRAND.
#[derive(Clone, Copy, Default)]
pub struct Generator {
    /// The handle of its stream.
    pub stream: usize,
    /// Where its sequence begins.
    pub seed: u64,
    /// The number of values drawn.
    pub made: u64,
}

/// All state but memory, which kernels' threads use too.
pub struct Driver {
    /// The current card of the thread that calls; valid in calls that need a context.
    pub here: usize,
    /// Streams and events.
    pub order: Order,
    /// Calls by name, and those that are to fail.
    pub faults: Faults,
    /// What the report tells.
    pub counts: Counts,
    /// Loaded modules by handle.
    modules: HashMap<usize, module::Module>,
    /// Functions by handle.
    functions: HashMap<usize, module::Function>,
    /// Streams of cuBLAS's handles.
    pub blas: HashMap<usize, usize>,
    /// Generators of cuRAND.
    pub generators: HashMap<usize, Generator>,
    /// The last handle given to a module, a function, or a library's object.
    last_handle: usize,
    /// How often each card's context is retained.
    retained: Vec<usize>,
    /// The error that every call answers from now on.
    lost: Option<i32>,
}

/// The driver's state, for a call.
pub fn driver() -> MutexGuard<'static, Driver> {
    shared().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver's state, if no call is in progress.
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

/// What a call needs before it can do anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it answers even after the device is lost.
    Nothing,
    /// A current context of a device that is not lost.
    Context,
}

thread_local! {
    /// The current context: its device and one, or 0.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Makes a call: everything that is the same for all of them. Gives the code that the caller gets.
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
    /// Prints a call's arguments if calls are traced.
    pub fn trace(&self, arguments: impl FnOnce() -> String) {
        if settings().trace {
            console::say(&format!("  {}", arguments()));
        }
    }

    /// Begins an operation on the stream that a handle means here.
    pub fn begin(&mut self, stream: usize, what: &'static str) -> Result<Op, Refusal> {
        let stream = self.order.stream(stream, self.here)?;
        Ok(self.order.begin(stream, what))
    }

    /// A handle that no other object has; not an address, so that a handle of the wrong kind is found.
    pub fn new_handle(&mut self) -> usize {
        self.last_handle += 1;
        0x0B1E_0000 + 16 * self.last_handle
    }
}

/// Asks the memory something whose no is a fault: it ends the program once the memory is free for the report.
pub fn ask_memory<T>(ask: impl FnOnce(&mut Memory) -> Result<T, String>) -> T {
    let answer = ask(&mut memory());
    answer.unwrap_or_else(|why| stop::fault(&why))
}

/// Writes a result where the caller wants it.
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
