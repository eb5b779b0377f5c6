//! Settings of a process that is the command's own: the binary, and the command that the Python package brings.

use std::ffi::OsString;

/// Runs the command that `args` say, the program's name first, and returns the exit code.
///
/// # Safety
/// No other thread may run: the environment and the allocator are set.
pub unsafe fn run(args: impl Iterator<Item = OsString>) -> u8 {
    // Candle prints a backtrace as part of an error where one was captured; an error is one line here. Panics still have
    // theirs, and who sets this variable gets what it says.
    if std::env::var_os("RUST_LIB_BACKTRACE").is_none() {
        // SAFETY: no other thread runs that could read the environment.
        unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    }
    keep_memory();
    // On a thread of the pool that computes: entering the pool from outside takes as long as a small product, and a generated
    // token has hundreds. With a main thread's stack. Failing, the pool is as rayon makes it.
    let _ = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    let args: Vec<OsString> = args.collect();
    rayon::scope(|_| super::main(args.into_iter()))
}

/// Bytes of stack of a thread that runs a command.
const STACK: usize = 8 << 20;

/// Has the allocator keep what is freed. A forward pass allocates and frees the same megabytes for every intermediate result;
/// taken from the system anew each time, their pages cost a quarter of a prefill.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_memory() {
    // Larger blocks are weights and caches, which are allocated once and had better go back.
    const BLOCK: libc::c_int = 128 << 20;
    const KEPT: libc::c_int = libc::c_int::MAX;
    const AHEAD: libc::c_int = 64 << 20;
    for (setting, value) in
        [(libc::M_MMAP_THRESHOLD, BLOCK), (libc::M_TRIM_THRESHOLD, KEPT), (libc::M_TOP_PAD, AHEAD)]
    {
        // SAFETY: mallopt takes two numbers and no other thread runs yet. A setting that it refuses stays as it was.
        unsafe { libc::mallopt(setting, value) };
    }
}

/// Other allocators keep more by themselves, or have no such settings.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_memory() {}
