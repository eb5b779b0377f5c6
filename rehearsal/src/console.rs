//! Messages on stderr, one line each, and process exit. Nothing else in the crate prints, exits, aborts or panics because of the program
//! under rehearsal.

/// Prints one line.
pub fn say(line: &str) {
    // One write per line, so that threads do not interleave; stderr may be closed.
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("rehearsal: {line}\n").as_bytes());
}

/// Exits at startup: invalid setting.
pub fn refuse(line: &str) -> ! {
    say(line);
    exit(2)
}

/// Exits with a status. Skips exit handlers, which may use the device.
pub fn exit(status: i32) -> ! {
    // SAFETY: flushes C's streams and exits; both are allowed anywhere.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::_exit(status)
    }
}
