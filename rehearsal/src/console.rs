//! Messages on stderr, one line each, and process exit. Nothing else in the crate prints, exits, aborts or panics because of
//! what the program under rehearsal does.

/// Prints one line about something the program did.
pub fn say(line: &str) {
    // One write a line, so that lines of several threads do not mix; stderr may be closed, which is no fault.
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("rehearsal: {line}\n").as_bytes());
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
