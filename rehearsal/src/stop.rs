//! The one place that speaks to the person and that ends the program. What is wrong with a program under
//! rehearsal is said in one line on stderr, with the caller's backtrace if that is asked for, and the exit
//! status is [`FAULT`], which no other end of a program has by accident. Nothing else in the crate may exit,
//! abort or panic on what a program does.

use std::sync::atomic::{AtomicBool, Ordering};

/// The exit status of a program in which the rehearsal found a fault.
pub const FAULT: i32 = 86;

/// Prints one line about something the program did.
pub fn say(line: &str) {
    // One write a line, so that lines of several threads do not mix; stderr may be closed, which is no fault.
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("rehearsal: {line}\n").as_bytes());
}

/// Prints one line, and the caller's backtrace if the settings ask for it.
pub fn complain(line: &str) {
    say(line);
    if crate::settings::settings().backtrace {
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

/// Ends the program before it began: a setting cannot be used.
pub fn refuse(line: &str) -> ! {
    say(line);
    exit(2)
}

/// Ends the program with a status, without running the exit handlers of others, which may use the device.
pub fn exit(status: i32) -> ! {
    // SAFETY: flushes C's streams and leaves; both are allowed anywhere.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::_exit(status)
    }
}
