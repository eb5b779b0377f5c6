//! A thin layer over the exported functions, called as a CUDA program calls them, and [`rehearse`], which runs a test body in its own
//! process: settings are read once per process, and a fault ends it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::process::{Command, Output};

// The functions below are the library's.
use rehearsal as _;

pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const INVALID_CONTEXT: c_int = 201;
pub const NO_BINARY_FOR_GPU: c_int = 209;
pub const INVALID_HANDLE: c_int = 400;
pub const NOT_READY: c_int = 600;
pub const LAUNCH_FAILED: c_int = 719;
pub const NON_BLOCKING: u32 = 1;
const MAX_DYNAMIC_SHARED: c_int = 8;

#[repr(C)]
pub struct Use {
    pub at: *const c_void,
    pub bytes: usize,
    pub write: c_int,
}

unsafe extern "C" {
    pub fn cuInit(flags: u32) -> c_int;
    pub fn cuDeviceGetCount(count: *mut c_int) -> c_int;
    pub fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> c_int;
    pub fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int;
    pub fn cuCtxSetCurrent(context: usize) -> c_int;
    pub fn cuCtxSynchronize() -> c_int;
    pub fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int;
    pub fn cuMemAlloc_v2(at: *mut u64, bytes: usize) -> c_int;
    pub fn cuMemAllocAsync(at: *mut u64, bytes: usize, stream: usize) -> c_int;
    pub fn cuMemFree_v2(at: u64) -> c_int;
    pub fn cuMemFreeAsync(at: u64, stream: usize) -> c_int;
    pub fn cuMemHostAlloc(at: *mut u64, bytes: usize, flags: u32) -> c_int;
    pub fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) -> c_int;
    pub fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) -> c_int;
    pub fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> c_int;
    pub fn cuMemcpyPeerAsync(
        to: u64,
        to_ctx: usize,
        from: u64,
        from_ctx: usize,
        bytes: usize,
        stream: usize,
    ) -> c_int;
    pub fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: usize) -> c_int;
    pub fn cuStreamCreate(stream: *mut usize, flags: u32) -> c_int;
    pub fn cuStreamSynchronize(stream: usize) -> c_int;
    pub fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) -> c_int;
    pub fn cuEventCreate(event: *mut usize, flags: u32) -> c_int;
    pub fn cuEventRecord(event: usize, stream: usize) -> c_int;
    pub fn cuEventQuery(event: usize) -> c_int;
    pub fn cuModuleLoadData(module: *mut usize, image: *const c_void) -> c_int;
    pub fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) -> c_int;
    pub fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) -> c_int;
    pub fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> c_int;
    pub fn cuLaunchKernel(
        function: usize,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: usize,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> c_int;
    pub fn cublasCreate_v2(handle: *mut usize) -> c_int;
    pub fn cublasSetStream_v2(handle: usize, stream: usize) -> c_int;
    pub fn cublasSgemm_v2(
        handle: usize,
        op_a: c_int,
        op_b: c_int,
        m: c_int,
        n: c_int,
        k: c_int,
        alpha: *const f32,
        a: u64,
        lda: c_int,
        b: u64,
        ldb: c_int,
        beta: *const f32,
        c: u64,
        ldc: c_int,
    ) -> c_int;
    pub fn rehearsal_enqueue(
        stream: usize,
        work: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
        data_bytes: usize,
        uses: *const Use,
        n: usize,
        name: *const c_char,
    ) -> c_int;
}

#[track_caller]
pub fn ok(code: c_int) {
    assert_eq!(code, 0, "the call failed");
}

/// Returns the value that `fill` writes through its argument.
#[track_caller]
pub fn made<T: Default>(fill: impl FnOnce(*mut T) -> c_int) -> T {
    let mut value = T::default();
    ok(fill(&raw mut value));
    value
}

pub struct End {
    pub status: Option<i32>,
    pub stderr: String,
}

impl End {
    /// Successful, without findings.
    #[track_caller]
    pub fn is_clean(&self) {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        assert!(!self.stderr.contains("rehearsal:"), "{}", self.stderr);
    }

    /// Successful; the output contains all of these.
    #[track_caller]
    pub fn says(&self, parts: &[&str]) {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        self.has(parts);
    }

    /// Ended by a fault whose line contains all of these.
    #[track_caller]
    pub fn is_fault(&self, parts: &[&str]) {
        assert_eq!(self.status, Some(rehearsal::stop::FAULT), "{}", self.stderr);
        self.has(parts);
    }

    #[track_caller]
    fn has(&self, parts: &[&str]) {
        let found = self.stderr.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "no line with {parts:?} in:\n{}", self.stderr);
    }
}

/// Runs `body` in its own process under settings. `test` is the test's name: the process is this test program with that filter.
pub fn rehearse(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) -> End {
    const CHILD: &str = "REHEARSE";
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        body();
        std::process::exit(0);
    }
    let program = std::env::current_exe().expect("a test program has a path");
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture"]).env(CHILD, test);
    for name in
        rehearsal::settings::VARIABLES.iter().map(|(name, _)| name).filter(|name| !KEPT.contains(name))
    {
        command.env_remove(name);
    }
    let Output { status, stderr, .. } =
        command.envs(settings.iter().copied()).output().expect("it can be started");
    End { status: status.code(), stderr: String::from_utf8_lossy(&stderr).into_owned() }
}

/// Settings inherited by the process: caches and the modules of a CUDA build.
const KEPT: [&str; 2] = ["REHEARSAL_CACHE", "REHEARSAL_PTX"];

pub struct Card {
    pub context: usize,
    functions: BTreeMap<String, usize>,
}

impl Card {
    pub fn new(number: c_int) -> Self {
        // SAFETY: the pointers are those of live values; the same holds everywhere in this file.
        unsafe {
            ok(cuInit(0));
            let context = made(|to| cuDevicePrimaryCtxRetain(to, number));
            ok(cuCtxSetCurrent(context));
            Self { context, functions: BTreeMap::new() }
        }
    }

    pub fn make_current(&self) {
        unsafe { ok(cuCtxSetCurrent(self.context)) }
    }

    pub fn load(&mut self, ptx: &str, names: &[&str]) {
        let text = CString::new(ptx).expect("PTX has no zero byte");
        let module = unsafe { made(|to| cuModuleLoadData(to, text.as_ptr().cast())) };
        for name in names {
            let c_name = CString::new(*name).expect("a name has no zero byte");
            let function = unsafe { made(|to| cuModuleGetFunction(to, module, c_name.as_ptr())) };
            self.functions.insert((*name).to_string(), function);
        }
    }

    pub fn alloc(&self, bytes: usize, stream: usize) -> u64 {
        unsafe { made(|to| cuMemAllocAsync(to, bytes, stream)) }
    }

    pub fn free(&self, at: u64, stream: usize) {
        unsafe { ok(cuMemFreeAsync(at, stream)) }
    }

    pub fn stream(&self, flags: u32) -> usize {
        unsafe { made(|to| cuStreamCreate(to, flags)) }
    }

    pub fn event(&self) -> usize {
        unsafe { made(|to| cuEventCreate(to, 0)) }
    }

    pub fn record(&self, event: usize, stream: usize) {
        unsafe { ok(cuEventRecord(event, stream)) }
    }

    pub fn wait(&self, stream: usize, event: usize) {
        unsafe { ok(cuStreamWaitEvent(stream, event, 0)) }
    }

    pub fn synchronise(&self, stream: usize) {
        unsafe { ok(cuStreamSynchronize(stream)) }
    }

    pub fn upload<T: Copy>(&self, values: &[T], stream: usize) -> u64 {
        let at = self.alloc(size_of_val(values).max(1), stream);
        unsafe { ok(cuMemcpyHtoDAsync_v2(at, values.as_ptr().cast(), size_of_val(values), stream)) };
        at
    }

    pub fn download<T: Copy + Default>(&self, at: u64, count: usize, stream: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        unsafe { ok(cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), at, size_of_val(&values[..]), stream)) };
        values
    }

    /// Raises a kernel's dynamic shared memory limit; returns the driver's code.
    pub fn try_shared(&self, name: &str, bytes: c_int) -> c_int {
        unsafe { cuFuncSetAttribute(self.functions[name], MAX_DYNAMIC_SHARED, bytes) }
    }

    /// Launches a loaded kernel; returns the driver's code.
    pub fn try_launch(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        stream: usize,
        params: &[Param],
    ) -> c_int {
        let mut pointers: Vec<*mut c_void> =
            params.iter().map(|param| param.0.as_ptr().cast_mut().cast()).collect();
        let null = std::ptr::null_mut();
        let ([x, y, z], [bx, by, bz]) = (grid, block);
        let shared = params.iter().map(|param| param.1).max().unwrap_or(0);
        unsafe {
            cuLaunchKernel(
                self.functions[name],
                x,
                y,
                z,
                bx,
                by,
                bz,
                shared,
                stream,
                pointers.as_mut_ptr(),
                null,
            )
        }
    }

    #[track_caller]
    pub fn launch(&self, name: &str, grid: u32, block: u32, stream: usize, params: &[Param]) {
        ok(self.try_launch(name, [grid, 1, 1], [block, 1, 1], stream, params));
    }
}

/// A kernel parameter: its bytes, and additional dynamic shared memory.
#[derive(Clone)]
pub struct Param(Vec<u8>, u32);

impl Param {
    pub fn bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec(), 0)
    }

    /// Not a parameter: requests dynamic shared memory.
    pub fn shared(bytes: u32) -> Self {
        Self(vec![0], bytes)
    }
}

macro_rules! params {
    ($($type:ty),*) => {$(
        impl From<$type> for Param {
            fn from(value: $type) -> Self {
                Self(value.to_ne_bytes().to_vec(), 0)
            }
        }
    )*};
}
params!(u8, u32, i32, u64, i64, usize, f32, f64);

/// The parameters of a launch.
#[macro_export]
macro_rules! params_of {
    ($($value:expr),* $(,)?) => { &[$($crate::card::Param::from($value)),*] };
}
