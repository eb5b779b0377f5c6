//! What code on the pretend device calls: translated kernels, through the two functions that `Runtime` of
//! `kernel/abi.h` holds, and stand-ins for libraries of kernels, through that of `kernel/standin.h`. Also the
//! registration of static kernels by cudart, which happens before `main` in every program that links some,
//! whether or not it launches them.
#![allow(non_snake_case, reason = "the functions' names are CUDA's")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicU64;

use crate::abi::{PARAM_BYTES, Seen, Thread, Use, uses};
use crate::codes::{Refusal, cuda};
use crate::driver::{self, Needs};
use crate::memory::{Place, memory};
use crate::schedule::{self, stop_kernel};
use crate::settings::settings;
use crate::stop;

/// A text of a kernel.
///
/// # Safety
/// It is one.
unsafe fn text(at: *const c_char) -> String {
    if at.is_null() { String::new() } else { unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned() }
}

/// Checks an access to global or generic memory; does not return if it is wrong.
///
/// # Safety
/// `thread` and its block are those that run, and `seen` is the instruction's own.
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
        // The line names the kernel already. SAFETY: as above.
        Err(why) => stop::fault(&format!("{why}{}", schedule::place(&unsafe { text(at) }))),
        // SAFETY: `seen` is the instruction's own, and this thread of the host's.
        Ok((from, to)) => unsafe { seen.write(Seen { from, to }) },
    }
}

/// Notes a use of global memory, or a fence; does not return if it races with another.
///
/// # Safety
/// `thread` and its block are those that run, alone of their launch.
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

/// Stops the program: what is wrong, and the instruction.
///
/// # Safety
/// Both are texts.
pub unsafe extern "C" fn rehearsal_stop(what: *const c_char, at: *const c_char) -> ! {
    // SAFETY: the caller vouches for them.
    let (what, at) = unsafe { (text(what), text(at)) };
    stop_kernel(&what, &at)
}

/// See `kernel/standin.h`.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rehearsal_enqueue(
    stream: *mut c_void,
    work: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
    data_bytes: usize,
    uses: *const Use,
    n: usize,
    name: *const c_char,
) -> c_int {
    driver::call("rehearsal_enqueue", Needs::Context, |driver| {
        // SAFETY: the caller vouches for the three.
        let (data, uses, name) = unsafe {
            let uses = if n == 0 { &[] } else { std::slice::from_raw_parts(uses, n) };
            (std::slice::from_raw_parts(data.cast::<u8>(), data_bytes), uses, text(name))
        };
        let (name, what) = driver::names(&name);
        let here = driver.here;
        let stream = driver.order.stream(stream as usize, here)?;
        if driver.order.device(stream) != here {
            let why = format!("{what} on a stream of another device, and device {here} is current");
            return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_HANDLE, why));
        }
        let op = driver.order.begin(stream, what);
        driver.counts.launches.entry(name).or_default().calls += 1;
        // In units of 16 bytes, so that whatever the data is stays aligned.
        let mut data_copy = vec![0_u128; data_bytes.div_ceil(16)];
        // SAFETY: the copy is at least as long.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), data_copy.as_mut_ptr().cast::<u8>(), data_bytes)
        };
        let uses: Vec<_> = uses.iter().map(|one| (one.at as u64, one.bytes as u64, one.write != 0)).collect();
        let then = op.clone();
        driver.order.submit(&op, move || {
            driver::ask_memory(|memory| {
                for (at, bytes, write) in uses.iter().filter(|(_, bytes, _)| *bytes > 0) {
                    memory.access(&then, here, *at, *bytes, *write)?;
                }
                Ok(())
            });
            if settings().arithmetic {
                // SAFETY: the caller vouches for its function, which is given a copy of its own data.
                driver::execute(then, name, here, || unsafe { work(data_copy.as_mut_ptr().cast()) });
            }
        });
        Ok(())
    })
}

/// Registers static kernels; they are launched by nobody, so a place to point at is enough.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(_binary: *const c_void) -> *mut *mut c_void {
    static PLACE: AtomicU64 = AtomicU64::new(0);
    PLACE.as_ptr().cast()
}

/// Ends the registration.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_place: *mut *mut c_void) {}

/// Takes it back, at exit.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaUnregisterFatBinary(_place: *mut *mut c_void) {}

/// Registers one kernel.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFunction(
    _place: *mut *mut c_void,
    _host: *const c_char,
    _device: *mut c_char,
    _name: *const c_char,
    _limit: c_int,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_dim: *mut c_void,
    _grid_dim: *mut c_void,
    _warp: *mut c_int,
) {
}

/// Registers one variable.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterVar(
    _place: *mut *mut c_void,
    _host: *mut c_char,
    _device: *mut c_char,
    _name: *const c_char,
    _ext: c_int,
    _size: usize,
    _constant: c_int,
    _global: c_int,
) {
}

/// The functions of cudart that the launchers of static kernels name. Nobody calls those launchers, for such
/// kernels cannot run here; if somebody does, the program ends with the function's name.
macro_rules! absent {
    ($($name:ident)*) => {$(
        /// Not there: ends the program.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> ! {
            stop::fault(concat!(
                stringify!($name),
                " was called, and kernels that are launched through cudart cannot run here; ",
                "give their library a stand-in, see kernel/standin.h"
            ))
        }
    )*};
}

absent! {
    __cudaGetKernel __cudaInitModule __cudaLaunchKernel __cudaLaunchKernel_ptsz __cudaPopCallConfiguration
    __cudaPushCallConfiguration cudaDeviceGetAttribute cudaFree cudaFreeAsync cudaFreeAsync_ptsz
    cudaFuncGetAttributes cudaFuncSetAttribute cudaGetDevice cudaGetDeviceCount cudaGetErrorName cudaGetErrorString cudaGetLastError
    cudaLaunchKernel cudaMalloc cudaMallocAsync cudaMallocAsync_ptsz cudaMemsetAsync cudaMemsetAsync_ptsz
    cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cudaPeekAtLastError cudaSetDevice
    cudaStreamSynchronize cudaStreamSynchronize_ptsz
}
