//! With the feature `cuda`, compiles the crate's CUDA kernels to PTX, which `include_str!` takes from `OUT_DIR`. Without it, nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, io};

/// Each source, and the oldest compute capability that it is for: 7.5 is Turing; 8.0 is Ampere, with bf16 products and copies in the
/// background. The driver compiles PTX for its card, which may be any newer one.
const KERNELS: [(&str, &str); 4] = [
    ("src/fused/cuda/fused.cu", "compute_75"),
    ("src/attention/backends/cuda/rows.cu", "compute_75"),
    ("src/attention/backends/cuda/attention.cu", "compute_80"),
    ("src/attention/backends/cuda/masses.cu", "compute_80"),
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed=src/attention/backends/cuda/tensor_cores.cuh");
    for (source, oldest) in KERNELS {
        println!("cargo::rerun-if-changed={source}");
        if let Err(why) = compile(Path::new(source), oldest) {
            println!("cargo::error={why}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Compiles a source to a file of its name in `OUT_DIR`.
fn compile(source: &Path, oldest: &str) -> Result<(), String> {
    let out = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set; run this by cargo")?;
    let name = source.with_extension("ptx");
    let to = Path::new(&out).join(name.file_name().unwrap_or(name.as_os_str()));
    let nvcc = nvcc();
    // Its messages go to standard error, which cargo shows when a build script fails.
    let done = Command::new(&nvcc)
        .args(["--ptx", "-O3", "-std=c++17", "-arch", oldest, "-o"])
        .arg(to)
        .arg(source)
        .status();
    match done {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!(
            "{} could not compile {} ({status}); its own messages are below (NVCC_CCBIN names another C++ compiler for it)",
            nvcc.display(),
            source.display()
        )),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Err(format!(
            "the feature `cuda` needs NVIDIA's compiler, and {} is not there: install the CUDA toolkit and put its folder bin on the PATH, \
             or set CUDA_HOME to the toolkit or NVCC to the compiler",
            nvcc.display()
        )),
        Err(why) => Err(format!("{} cannot be run: {why}; set NVCC to NVIDIA's compiler", nvcc.display())),
    }
}

/// The compiler that Candle's kernels are built with: by `NVCC`, on the `PATH`, in the toolkit that `CUDA_HOME` or `CUDA_PATH` names.
fn nvcc() -> PathBuf {
    if let Some(named) = env::var_os("NVCC") {
        return named.into();
    }
    let file = format!("nvcc{}", env::consts::EXE_SUFFIX);
    let on_path =
        env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    let of_toolkit = ["CUDA_HOME", "CUDA_PATH"]
        .into_iter()
        .filter_map(env::var_os)
        .map(|folder| PathBuf::from(folder).join("bin"));
    let usual = PathBuf::from("/usr/local/cuda/bin");
    let found =
        on_path.chain(of_toolkit).chain([usual]).map(|folder| folder.join(&file)).find(|path| path.is_file());
    found.unwrap_or_else(|| file.into())
}
