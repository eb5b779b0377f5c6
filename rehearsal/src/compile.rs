//! Compiles a kernel: translates its PTX to C, runs `cc`, loads the library. Called at a kernel's first launch. Libraries are cached in a
//! folder under the hash of all their inputs and are never unloaded.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{Kernel, Runtime};
use crate::ptx::{self, ParseError};
use crate::runtime;
use crate::translate::translate;

/// PTX semantics: no contraction to `fma`, no reordering, wrapping integers, any aliasing. `-O1` halves the compile time of `-O2`; the
/// faster code does not make up for it.
const FLAGS: &[&str] = &[
    "-O1",
    "-w",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-fwrapv",
    #[cfg(target_arch = "x86_64")]
    "-mfma",
    #[cfg(target_arch = "x86_64")]
    "-mf16c",
];

macro_rules! texts {
    ($($path:literal),* $(,)?) => { &[$(($path, include_str!($path))),*] };
}

const HEADERS: &[(&str, &str)] = texts![
    "../kernel/abi.h",
    "../kernel/bits.h",
    "../kernel/copy.h",
    "../kernel/exact.h",
    "../kernel/float.h",
    "../kernel/group.h",
    "../kernel/half.h",
    "../kernel/integer.h",
    "../kernel/kernel.h",
    "../kernel/memory.h",
    "../kernel/race.h",
    "../kernel/runtime.h",
];

const TRANSLATOR: &[(&str, &str)] = texts![
    "ptx/lexer.rs",
    "ptx/mod.rs",
    "ptx/parser.rs",
    "ptx/scope.rs",
    "ptx/types.rs",
    "translate/atomic.rs",
    "translate/compare.rs",
    "translate/control.rs",
    "translate/convert.rs",
    "translate/copy.rs",
    "translate/emitter.rs",
    "translate/flight.rs",
    "translate/float.rs",
    "translate/group.rs",
    "translate/half.rs",
    "translate/integer.rs",
    "translate/liveness.rs",
    "translate/logic.rs",
    "translate/matrix.rs",
    "translate/memory.rs",
    "translate/mod.rs",
    "translate/operand.rs",
    "translate/operation.rs",
    "translate/step.rs",
    "translate/warp.rs",
];

/// Compilation errors.
#[derive(Debug)]
pub enum CompileError {
    /// The PTX cannot be parsed.
    Ptx(ParseError),
    /// The module has no such kernel.
    NoKernel(String),
    /// Cannot read or write a cache file.
    Cache(PathBuf, std::io::Error),
    /// Cannot start `cc`.
    NoCompiler(std::io::Error),
    /// `cc` failed: a bug in the translator.
    Compiler(String, String),
    /// Cannot load the library.
    Load(PathBuf, String),
}

impl fmt::Display for CompileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ptx(error) => write!(out, "{error}"),
            Self::NoKernel(name) => write!(out, "the module has no kernel {name}"),
            Self::Cache(path, error) => {
                write!(out, "{}: {error}; choose another folder with REHEARSAL_CACHE", path.display())
            }
            Self::NoCompiler(error) => write!(out, "cc: {error}; install a C compiler (gcc 12 or newer)"),
            Self::Compiler(name, lines) => write!(out, "cc refuses the translation of {name}:\n{lines}"),
            Self::Load(path, why) => write!(out, "{}: {why}; delete it", path.display()),
        }
    }
}

impl std::error::Error for CompileError {}

/// Compiles and loads a kernel of a module; `cache` is the folder of compiled libraries.
pub fn kernel(ptx: &str, entry: &str, cache: &Path) -> Result<&'static Kernel, CompileError> {
    static RUNTIME: Runtime = Runtime {
        access: runtime::rehearsal_access,
        note: runtime::rehearsal_note,
        stop: runtime::rehearsal_stop,
    };
    kernel_with(&RUNTIME, ptx, entry, cache)
}

/// Same, with another runtime.
pub fn kernel_with(
    runtime: &'static Runtime,
    ptx: &str,
    entry: &str,
    cache: &Path,
) -> Result<&'static Kernel, CompileError> {
    let library = cache.join(format!("{:016x}.so", key(ptx, entry)));
    if !library.exists() {
        build(ptx, entry, cache, &library)?;
    }
    load(runtime, &library)
}

fn key(ptx: &str, entry: &str) -> u64 {
    static OURS: LazyLock<u64> = LazyLock::new(|| {
        let mut hasher = DefaultHasher::new();
        (HEADERS, TRANSLATOR, FLAGS).hash(&mut hasher);
        hasher.finish()
    });
    let mut hasher = DefaultHasher::new();
    (*OURS, ptx, entry).hash(&mut hasher);
    hasher.finish()
}

/// A file name unique across threads and processes.
fn temporary(beside: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    beside.with_extension(format!("{}-{count}.tmp", std::process::id()))
}

/// Several processes may compile the same kernel at once: each writes its own file and renames it atomically.
fn build(ptx: &str, entry: &str, cache: &Path, library: &Path) -> Result<(), CompileError> {
    let module = ptx::parse(ptx).map_err(CompileError::Ptx)?;
    let translation = translate(&module, entry).ok_or_else(|| CompileError::NoKernel(entry.to_owned()))?;
    let headers = headers(cache)?;
    let made = temporary(library);
    let mut child = Command::new("cc")
        .args(FLAGS)
        .arg("-I")
        .arg(&headers)
        .args(["-x", "c", "-", "-lm", "-o"])
        .arg(&made)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Do not preload the CUDA stand-in into the compiler.
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH")
        .spawn()
        .map_err(CompileError::NoCompiler)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A write error means that the compiler failed; it reports why.
        let _ = stdin.write_all(translation.as_bytes());
    }
    let output = child.wait_with_output().map_err(CompileError::NoCompiler)?;
    if !output.status.success() {
        let _ = std::fs::remove_file(&made);
        let lines: Vec<_> =
            String::from_utf8_lossy(&output.stderr).lines().take(10).map(str::to_owned).collect();
        return Err(CompileError::Compiler(entry.to_owned(), lines.join("\n")));
    }
    std::fs::rename(&made, library).map_err(|error| CompileError::Cache(library.to_owned(), error))
}

fn headers(cache: &Path) -> Result<PathBuf, CompileError> {
    let mut hasher = DefaultHasher::new();
    HEADERS.hash(&mut hasher);
    let folder = cache.join(format!("kernel-{:016x}", hasher.finish()));
    std::fs::create_dir_all(&folder).map_err(|error| CompileError::Cache(folder.clone(), error))?;
    for (name, text) in HEADERS {
        let path = folder.join(name.trim_start_matches("../kernel/"));
        if path.exists() {
            continue;
        }
        let made = temporary(&path);
        let write = std::fs::write(&made, text).and_then(|()| std::fs::rename(&made, &path));
        write.map_err(|error| CompileError::Cache(path, error))?;
    }
    Ok(folder)
}

fn load(runtime: &'static Runtime, library: &Path) -> Result<&'static Kernel, CompileError> {
    let failed = |why: &str| CompileError::Load(library.to_owned(), why.to_owned());
    let name = library
        .to_str()
        .and_then(|path| CString::new(path).ok())
        .ok_or_else(|| failed("the path is no text"))?;
    // SAFETY: the library was made by `build`: loading it runs nothing, and its two symbols have the types of `abi.h`. It is never
    // unloaded, so its contents live as long as the program.
    unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() {
            let why: *const c_char = libc::dlerror();
            let why = if why.is_null() { "unknown".into() } else { CStr::from_ptr(why).to_string_lossy() };
            return Err(failed(&why));
        }
        let kernel = libc::dlsym(handle, c"kernel".as_ptr()).cast::<Kernel>();
        let init = libc::dlsym(handle, c"kernel_init".as_ptr());
        if kernel.is_null() || init.is_null() {
            return Err(failed("it is no kernel's"));
        }
        let init: unsafe extern "C" fn(*const Runtime) = std::mem::transmute(init);
        init(runtime);
        Ok(&*kernel)
    }
}
