//! Process-wide settings of the binary and the Python package's command.

use std::ffi::OsString;

use crate::memory::system::supervisor;

/// Runs the command `args` (program name first); returns the exit code.
///
/// # Safety
/// No other thread may run: the environment and the allocator are set.
pub unsafe fn run(args: impl Iterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.collect();
    // A small process beside each memory system, without settings and compute pool.
    if let Some(code) = supervisor::supervised(&args) {
        return code;
    }
    // Candle appends captured backtraces to errors, which must fit one line. Panics keep theirs, and a user's setting wins.
    if std::env::var_os("RUST_LIB_BACKTRACE").is_none() {
        // SAFETY: no other thread runs that could read the environment.
        unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    }
    // The Python package has named its own.
    supervisor::set_own_command(own_program().into_iter().collect());
    keep_memory();
    // Runs on a compute-pool thread: entering the pool from outside costs as much as a small matrix product, and a generated token has
    // hundreds. The stack is a main thread's. On failure rayon's default pool is used.
    let _ = rayon::ThreadPoolBuilder::new().stack_size(STACK).build_global();
    rayon::scope(|_| super::main(args.into_iter()))
}

const STACK: usize = 8 << 20;

/// The program that is running, which on Linux can be started again after its file was replaced or deleted.
fn own_program() -> Option<OsString> {
    let file = std::env::current_exe().ok()?;
    Some(if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { file.into() })
}

/// Keeps freed memory in the allocator: a forward pass reallocates the same megabytes for each intermediate, and fresh pages from the
/// system cost a quarter of a prefill.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_memory() {
    // Larger blocks are weights and caches: allocated once, and returned to the system.
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

/// Other allocators keep memory by default, or have no such setting.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn keep_memory() {}
