//! Faults of the program under rehearsal: one line on stderr, optionally with the caller's backtrace, and the distinctive exit status
//! [`FAULT`].

use std::sync::atomic::{AtomicBool, Ordering};

use crate::console::{exit, say};
use crate::settings::settings;

/// Exit status after a fault.
pub const FAULT: i32 = 86;

/// Prints one line, with the caller's backtrace if enabled.
pub fn complain(line: &str) {
    say(line);
    if settings().backtrace {
        say(&std::backtrace::Backtrace::force_capture().to_string());
    }
}

/// Ends the program because of a fault. Writes no report: the faulting call never returns.
pub fn fault(line: &str) -> ! {
    static STOPPING: AtomicBool = AtomicBool::new(false);
    if STOPPING.swap(true, Ordering::SeqCst) {
        // Another thread is already reporting its fault; let it finish.
        loop {
            std::thread::park();
        }
    }
    complain(&format!("fault: {line}"));
    exit(FAULT)
}
