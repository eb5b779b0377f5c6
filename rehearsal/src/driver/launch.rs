//! Launches: the driver's checks, then the kernel's work on its stream.
#![allow(non_snake_case, reason = "the functions' names are CUDA's")]

use std::ffi::{c_uint, c_void};
use std::time::Instant;

use super::module::{SHARED, function_mut};
use super::{Answer, Driver, export};
use crate::abi::{Kernel, PARAM_BYTES};
use crate::codes::{Refusal, cuda};
use crate::counts;
use crate::memory::memory;
use crate::order::Op;
use crate::schedule::{self, Launch};
use crate::settings::settings;

/// Device limits: grid dimensions, block dimensions, threads per block.
const MOST_BLOCKS: [u32; 3] = [0x7FFF_FFFF, 65535, 65535];
const MOST_THREADS: [u32; 3] = [1024, 1024, 64];
const MOST_THREADS_OF_A_BLOCK: u64 = 1024;

export! {
    fn cuLaunchKernel(function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: usize, params: *mut *mut c_void,
        extra: *mut *mut c_void) Context |driver|
    {
        if !extra.is_null() {
            return Err(Refusal::new(cuda::CUDA_ERROR_NOT_SUPPORTED, "parameters come in one buffer"));
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(driver, function, grid, block, shared, stream, params)
    }
}

fn launch(
    driver: &mut Driver,
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: usize,
    params: *mut *mut c_void,
) -> Answer {
    let here = driver.here;
    let invalid = |why: String| Err(Refusal::new(cuda::CUDA_ERROR_INVALID_VALUE, why));
    let stream = driver.order.stream(stream, here)?;
    let stream_device = driver.order.device(stream);
    let function = function_mut(driver, function)?;
    let (name, what) = (function.name, function.what);
    let shape = format!("{what} with a grid of {grid:?} blocks of {block:?} threads");
    let within = |n: [u32; 3], most: [u32; 3]| n.iter().zip(most).all(|(n, most)| (1..=most).contains(n));
    let threads: u64 = block.iter().map(|n| u64::from(*n)).product();
    if !within(grid, MOST_BLOCKS) || !within(block, MOST_THREADS) || threads > MOST_THREADS_OF_A_BLOCK {
        return invalid(format!(
            "{shape}: each is at least 1, a grid at most {MOST_BLOCKS:?}, a block 1024 threads"
        ));
    }
    if function.device != here {
        let why = format!("{what} was loaded on device {}, and device {here} is current", function.device);
        return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_CONTEXT, why));
    }
    if stream_device != here {
        let why = format!("{what} on a stream of device {stream_device}, and device {here} is current");
        return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_HANDLE, why));
    }
    let ready = if settings().arithmetic {
        let kernel = function.kernel()?;
        if kernel.shared_static + shared > SHARED && shared > function.shared_most {
            return invalid(format!(
                "{shape} asks for {shared} bytes of shared memory and has no leave for them"
            ));
        }
        if kernel.max_threads != 0 && threads > u64::from(kernel.max_threads) {
            return invalid(format!("{shape}: it was compiled for at most {} threads", kernel.max_threads));
        }
        Some(Launch::new(kernel, grid, block, shared, laid_out(kernel, params)?))
    } else {
        None
    };
    driver.trace(|| format!("{shape}, {shared} bytes of shared memory"));
    let count = driver.counts.launches.entry(name).or_default();
    count.calls += 1;
    let Some(ready) = ready else { return Ok(()) };
    let op = driver.order.begin(stream, what);
    let then = op.clone();
    driver.order.submit(&op, move || execute(then, name, here, || schedule::run(&ready)));
    Ok(())
}

/// Parameters in the kernel's layout.
fn laid_out(kernel: &Kernel, params: *mut *mut c_void) -> Result<Box<[u8; PARAM_BYTES]>, Refusal> {
    let mut bytes = Box::new([0xFF; PARAM_BYTES]);
    if kernel.params > 0 && params.is_null() {
        return Err(Refusal::new(
            cuda::CUDA_ERROR_INVALID_VALUE,
            "no parameters are given to a kernel that has some",
        ));
    }
    for i in 0..kernel.params as usize {
        // SAFETY: a kernel's tables are as long as it says, and its parameters fit their space; the caller vouches for as many pointers to
        // parameters of the kernel's types.
        unsafe {
            let (at, size) = (*kernel.param_at.add(i) as usize, *kernel.param_bytes.add(i) as usize);
            std::ptr::copy_nonoverlapping(
                (*params.add(i)).cast::<u8>(),
                bytes[at..at + size].as_mut_ptr(),
                size,
            );
        }
    }
    Ok(bytes)
}

/// Runs work as a kernel of a device: checks its accesses and counts its time.
pub fn execute(op: Op, name: &'static str, device: usize, work: impl FnOnce()) {
    memory().running = Some((op, device));
    let start = Instant::now();
    work();
    counts::spent(name, start.elapsed());
    memory().running = None;
}
