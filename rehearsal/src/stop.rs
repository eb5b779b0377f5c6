//! Faults of the program under rehearsal: one line on stderr, with the caller's backtrace if the settings ask for it,
//! and the exit status [`FAULT`], which no other end of a program has by accident.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::console::{exit, say};
use crate::settings::settings;

/// The exit status of a program in which the rehearsal found a fault.
pub const FAULT: i32 = 86;

/// Prints one line, and the caller's backtrace if the settings ask for it.
pub fn complain(line: &str) {
    say(line);
    if settings().backtrace {
        say(&std::backtrace::Backtrace::force_capture().to_string());
    }
}

/// Ends the program because of a fault in it. There is no report: the call that found the fault never ends.
pub fn fault(line: &str) -> ! {
    static STOPPING: AtomicBool = AtomicBool::new(false);
    if STOPPING.swap(true, Ordering::SeqCst) {
        // Another thread is already ending the program; its fault is the one to be read.
        loop {
            std::thread::park();
        }
    }
    complain(&format!("fault: {line}"));
    exit(FAULT)
}
