//! Functions called by kernel libraries: `rehearsal_enqueue` of `kernel/standin.h` for their stand-ins, and cudart's registration of
//! static kernels, which runs before `main` in every program that links some.
#![allow(non_snake_case, reason = "the functions' names are CUDA's")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::AtomicU64;

use crate::abi::Use;
use crate::codes::{Refusal, cuda};
use crate::driver::{self, Needs};
use crate::runtime::text;
use crate::settings::settings;
use crate::stop;

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
        // In 16-byte units, to keep any data aligned.
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
                // SAFETY: the caller vouches for its function, which gets a copy of its own data.
                driver::execute(then, name, here, || unsafe { work(data_copy.as_mut_ptr().cast()) });
            }
        });
        Ok(())
    })
}

/// Registers static kernels. Nothing launches them, so any valid address serves as the handle.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinary(_binary: *const c_void) -> *mut *mut c_void {
    static PLACE: AtomicU64 = AtomicU64::new(0);
    PLACE.as_ptr().cast()
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_place: *mut *mut c_void) {}

/// Unregisters, at exit.
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

/// cudart functions used by the launchers of static kernels. Such kernels cannot run here; a call ends the program with the function's
/// name.
macro_rules! absent {
    ($($name:ident)*) => {$(
        /// Not implemented: ends the program.
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
