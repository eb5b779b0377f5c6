//! Callbacks of translated kernels: the functions in `Runtime` of `kernel/abi.h`.

use std::ffi::{CStr, c_char};

use crate::abi::{PARAM_BYTES, Seen, Thread, uses};
use crate::memory::{Place, memory};
use crate::schedule::{self, stop_kernel};
use crate::stop;

/// Reads a text of a kernel.
///
/// # Safety
/// `at` is a C string.
pub(crate) unsafe fn text(at: *const c_char) -> String {
    if at.is_null() { String::new() } else { unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned() }
}

/// Checks an access to global or generic memory; does not return on a bad one.
///
/// # Safety
/// `thread` and its block are running, and `seen` belongs to the instruction.
pub unsafe extern "C" fn rehearsal_access(
    thread: *mut Thread,
    address: u64,
    bytes: u32,
    write: i32,
    at: *const c_char,
    seen: *mut Seen,
) {
    let refuse = |why: &str| {
        // SAFETY: `at` is the kernel's text.
        stop_kernel(why, &unsafe { text(at) })
    };
    let size = u64::from(bytes);
    let verb = if write != 0 { "writes" } else { "reads" };
    if !address.is_multiple_of(size) {
        refuse(&format!("{verb} {bytes} bytes at {address:#x}, which is not aligned to them"));
    }
    if Place::of(address).is_none() {
        // SAFETY: the caller vouches for both.
        let (thread, block) = unsafe { (&*thread, &*(*thread).block) };
        let own = [
            (thread.local as u64, u64::from(thread.local_bytes)),
            (block.shared as u64, u64::from(block.shared_bytes)),
            (block.params as u64, PARAM_BYTES as u64),
        ];
        if own.iter().any(|(from, length)| {
            (*from..from + length).contains(&address) && address + size <= from + length
        }) {
            return;
        }
        refuse(&format!(
            "{verb} {bytes} bytes at {address:#x}, which is neither device memory nor the block's own"
        ));
    }
    let bounds = {
        let mut memory = memory();
        let running = memory.running.take();
        let bounds = match &running {
            Some((op, device)) => memory.access(op, *device, address, size, write != 0),
            None => Err("a kernel runs that was not launched".into()),
        };
        memory.running = running;
        bounds
    };
    match bounds {
        // The message already names the kernel. SAFETY: as above.
        Err(why) => stop::fault(&format!("{why}{}", schedule::place(&unsafe { text(at) }))),
        // SAFETY: `seen` belongs to the instruction and to this host thread.
        Ok((from, to)) => unsafe { seen.write(Seen { from, to }) },
    }
}

/// Records a use of global memory, or a fence; does not return on a race.
///
/// # Safety
/// `thread` and its block are running, alone in their launch.
pub unsafe extern "C" fn rehearsal_note(
    thread: *mut Thread,
    address: u64,
    bytes: u32,
    what: i32,
    at: *const c_char,
) {
    if what & uses::KINDS != uses::FENCES && Place::of(address).is_none() {
        return;
    }
    // SAFETY: the caller vouches for them, and `at` is the kernel's text.
    if let Err(why) = unsafe { schedule::note(thread, address, bytes, what) } {
        stop_kernel(&why, &unsafe { text(at) });
    }
}

/// Stops the program with a message and the instruction.
///
/// # Safety
/// Both are C strings.
pub unsafe extern "C" fn rehearsal_stop(what: *const c_char, at: *const c_char) -> ! {
    // SAFETY: the caller vouches for them.
    let (what, at) = unsafe { (text(what), text(at)) };
    stop_kernel(&what, &at)
}
