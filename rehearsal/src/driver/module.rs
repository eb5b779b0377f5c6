//! Modules and functions. A module is PTX text; a function is translated and compiled at its first launch.
#![allow(non_snake_case, reason = "the functions' names are CUDA's")]

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::{Answer, Driver, export, give};
use crate::abi::Kernel;
use crate::codes::{Refusal, cuda};
use crate::console;
use crate::settings::settings;

/// Shared memory limit of a block without opt-in, in bytes.
pub const SHARED: u32 = 49152;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: c_int = 8;

pub struct Module {
    text: Arc<str>,
    entries: HashSet<String>,
    device: usize,
    functions: HashMap<String, usize>,
}

#[derive(Clone)]
pub struct Function {
    text: Arc<str>,
    pub name: &'static str,
    /// Name in messages.
    pub what: &'static str,
    pub device: usize,
    /// Opt-in limit of dynamic shared memory, in bytes.
    pub shared_most: u32,
    kernel: Option<&'static Kernel>,
}

/// Interns a string forever. There are few kernel names, and they outlive every function.
fn kept(text: String) -> &'static str {
    static KEPT: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(text.as_str()).copied().unwrap_or_else(|| {
        let text: &'static str = Box::leak(text.into_boxed_str());
        all.insert(text);
        text
    })
}

/// A kernel's name, and its name in messages.
pub fn names(name: &str) -> (&'static str, &'static str) {
    (kept(name.to_string()), kept(format!("kernel {name}")))
}

/// Most shared memory per block, by compute capability ("Technical Specifications per Compute Capability" of the CUDA C++ Programming
/// Guide).
pub fn shared_most(compute_cap: (i32, i32)) -> u32 {
    1024 * match compute_cap {
        (7, 5) => 64,
        (7, _) => 96,
        (8, 6 | 9) | (12, _) => 99,
        (8, _) => 163,
        _ => 227,
    }
}

impl Function {
    /// Static shared memory in bytes; 0 without arithmetic, which avoids compiling the kernel.
    fn shared_static(&mut self) -> Result<u32, Refusal> {
        if settings().arithmetic { Ok(self.kernel()?.shared_static) } else { Ok(0) }
    }

    /// The compiled kernel; the first launch compiles it.
    pub fn kernel(&mut self) -> Result<&'static Kernel, Refusal> {
        if let Some(kernel) = self.kernel {
            return Ok(kernel);
        }
        let altered = (settings().alter.as_ref().filter(|alter| alter.kernel == self.name))
            .map(|alter| alter.of(&self.text).unwrap_or_else(|why| console::refuse(&why)));
        let text = altered.as_deref().unwrap_or(&self.text);
        let kernel = crate::compile::kernel(text, self.name, &settings().cache).map_err(|why| {
            Refusal::new(cuda::CUDA_ERROR_INVALID_PTX, format!("kernel {}: {why}", self.name))
        })?;
        self.kernel = Some(kernel);
        Ok(kernel)
    }
}

export! {
    fn cuModuleLoadData(module: *mut usize, image: *const c_void) Context |driver| {
        load(driver, module, image)
    }

    /// Loads a module from PTX text; compiler options are ignored.
    fn cuModuleLoadDataEx(module: *mut usize, image: *const c_void, _count: c_uint, _options: *mut c_int,
        _values: *mut *mut c_void) Context |driver|
    {
        load(driver, module, image)
    }

    fn cuModuleLoad(module: *mut usize, path: *const c_char) Context |driver| {
        // SAFETY: the caller vouches for the text.
        let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
        let image = std::fs::read(&path).map_err(|why| {
            Refusal::new(cuda::CUDA_ERROR_FILE_NOT_FOUND, format!("{path}: {why}"))
        })?;
        // Terminating zero byte, as text in memory has.
        let image = [image, vec![0]].concat();
        load(driver, module, image.as_ptr().cast())
    }

    fn cuModuleUnload(module: usize) Context |driver| {
        let Some(module) = driver.modules.remove(&module) else {
            return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_HANDLE, format!("{module:#x} is no module")));
        };
        for function in module.functions.values() {
            driver.functions.remove(function);
        }
        Ok(())
    }

    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) Context |driver| {
        // SAFETY: the caller vouches for the text.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        get(driver, function, module, &name)
    }

    fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) Context |driver| {
        let function = function_mut(driver, function)?;
        if attribute == MAX_DYNAMIC_SHARED {
            let (most, fixed) = (shared_most(settings().compute_cap), function.shared_static()?);
            let fits = |asked: &u32| asked.checked_add(fixed).is_some_and(|all| all <= most);
            function.shared_most = u32::try_from(value).ok().filter(fits).ok_or_else(|| {
                let why = format!(
                    "{} asks for {value} bytes of dynamic shared memory beside {fixed} of static; a block of this card has at \
                     most {most}",
                    function.what
                );
                Refusal::new(cuda::CUDA_ERROR_INVALID_VALUE, why)
            })?;
        }
        Ok(())
    }
}

pub fn function_mut(driver: &mut Driver, handle: usize) -> Result<&mut Function, Refusal> {
    driver.functions.get_mut(&handle).ok_or_else(|| {
        Refusal::new(
            cuda::CUDA_ERROR_INVALID_HANDLE,
            format!("{handle:#x} is no function of a loaded module"),
        )
    })
}

fn load(driver: &mut Driver, module: *mut usize, image: *const c_void) -> Answer {
    // SAFETY: the caller vouches for an image: text with a zero byte at its end, or a binary, which has one early.
    let bytes = unsafe { CStr::from_ptr(image.cast()) }.to_bytes();
    let Some(text) = std::str::from_utf8(bytes).ok().filter(|text| text.contains(".version")) else {
        return Err(Refusal::new(
            cuda::CUDA_ERROR_NO_BINARY_FOR_GPU,
            "the image is no PTX text; build the kernels as PTX, the rehearsal runs no binaries",
        ));
    };
    let (major, minor) = settings().compute_cap;
    let target = text.split(".target sm_").nth(1).unwrap_or("");
    let end = target.find(|c: char| !c.is_ascii_digit()).unwrap_or(target.len());
    let (number, rest) = target.split_at(end);
    // With `a`, instructions of one architecture, which later cards lack.
    let only = rest.starts_with('a');
    let runs = |target: i32| if only { target == 10 * major + minor } else { target <= 10 * major + minor };
    if number.parse().is_ok_and(|target| !runs(target)) {
        let which = if only { format!("sm_{number}a alone") } else { format!("sm_{number} and later") };
        let why =
            format!("the module is for {which}, and this card is of compute capability {major}.{minor}");
        return Err(Refusal::new(cuda::CUDA_ERROR_NO_BINARY_FOR_GPU, why));
    }
    let name_of = |rest: &str| {
        let rest = rest.trim_start();
        let end = rest.find(|c: char| !c.is_alphanumeric() && !"_$%".contains(c)).unwrap_or(rest.len());
        rest[..end].to_string()
    };
    let entries = text.split(".entry").skip(1).map(name_of).collect();
    let loaded = Module { text: text.into(), entries, device: driver.here, functions: HashMap::new() };
    let handle = driver.new_handle();
    driver.modules.insert(handle, loaded);
    give(module, handle)
}

fn get(driver: &mut Driver, to: *mut usize, module: usize, name: &str) -> Answer {
    let handle = driver.new_handle();
    let Some(module) = driver.modules.get_mut(&module) else {
        return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_HANDLE, format!("{module:#x} is no module")));
    };
    if !module.entries.contains(name) {
        return Err(Refusal::new(cuda::CUDA_ERROR_NOT_FOUND, format!("the module has no kernel {name}")));
    }
    let handle = *module.functions.entry(name.to_string()).or_insert(handle);
    let (name, what) = names(name);
    let function = Function {
        text: Arc::clone(&module.text),
        name,
        what,
        device: module.device,
        shared_most: SHARED,
        kernel: None,
    };
    driver.functions.entry(handle).or_insert(function);
    give(to, handle)
}
