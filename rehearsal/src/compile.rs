//! PTX text and the name of a kernel in, the kernel's code out: translated, compiled by `cc`, loaded. Called
//! when a kernel is first launched; compiled libraries are kept in a folder, under the hash of all that they
//! are made from, so that the next program finds them. Loaded libraries stay loaded.

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

/// What the compiler is told. Nothing may be contracted to `fma` or reordered, integers wrap, and any memory
/// may be anything: that is PTX. `-O1` halves the time of `-O2`, which the code does not gain back.
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

/// The headers of translated kernels.
const HEADERS: &[(&str, &str)] = texts![
    "../kernel/abi.h",
    "../kernel/bits.h",
    "../kernel/copy.h",
    "../kernel/exact.h",
    "../kernel/float.h",
    "../kernel/half.h",
    "../kernel/integer.h",
    "../kernel/kernel.h",
    "../kernel/memory.h",
    "../kernel/race.h",
    "../kernel/runtime.h",
];

/// The translator itself: a library compiled from another translation is not to be found.
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
    "translate/float.rs",
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

/// Why a kernel has no code.
#[derive(Debug)]
pub enum CompileError {
    /// The text is no module.
    Ptx(ParseError),
    /// The module has no kernel of that name.
    NoKernel(String),
    /// A file of the cache could not be read or written.
    Cache(PathBuf, std::io::Error),
    /// `cc` could not be started.
    NoCompiler(std::io::Error),
    /// `cc` refused the translation, which is a fault of the translator.
    Compiler(String, String),
    /// The library could not be loaded.
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

/// A kernel of a module, compiled and loaded; `cache` is the folder of compiled libraries.
pub fn kernel(ptx: &str, entry: &str, cache: &Path) -> Result<&'static Kernel, CompileError> {
    static RUNTIME: Runtime = Runtime {
        access: runtime::rehearsal_access,
        note: runtime::rehearsal_note,
        stop: runtime::rehearsal_stop,
    };
    kernel_with(&RUNTIME, ptx, entry, cache)
}

/// The same for another runtime than the crate's.
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

/// A name that no other thread and no other process uses.
fn temporary(beside: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    beside.with_extension(format!("{}-{count}.tmp", std::process::id()))
}

/// Several programs may compile the same kernel at once: each writes a file of its own, and renaming is
/// atomic.
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
        // The compiler is not to run on the library that stands in for CUDA.
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH")
        .spawn()
        .map_err(CompileError::NoCompiler)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A compiler that stops reading says why itself.
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

/// The folder of the headers, written if it is not there.
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
    // SAFETY: the library was made by `build`: loading it runs nothing, and its two symbols have the types of
    // `abi.h`. It is never unloaded, so what it holds lives as long as the program.
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
