//! With the feature `cuda`, compiles the crate's CUDA kernels to images that `include_bytes!` takes from `OUT_DIR`. Without it, nothing.
//!
//! An image is PTX, which the driver compiles for its card at the first start. `PALIMPSEST_CUBINS=80,86,89,90` adds machine code for these
//! compute capabilities; the driver takes what fits its card (the same major version and no higher minor one), else the PTX.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs, io};

/// Each source, and the oldest architecture that it is for: 7.5 is Turing; 8.0 is Ampere, with bf16 products and copies in the
/// background. The driver compiles PTX for its card, which may be any newer one; PTX for 9.0a is for Hopper alone.
const KERNELS: [(&str, &str); 5] = [
    ("src/fused/cuda/fused.cu", "75"),
    ("src/attention/backends/cuda/rows.cu", "75"),
    ("src/attention/backends/cuda/attention.cu", "80"),
    ("src/attention/backends/cuda/masses.cu", "80"),
    ("src/attention/backends/cuda/hopper.cu", "90a"),
];
const HEADERS: [&str; 3] = [
    "src/attention/backends/cuda/tensor_cores.cuh",
    "src/attention/backends/cuda/warpgroup.cuh",
    "src/fused/cuda/delta.cuh",
];
const CUBINS: &str = "PALIMPSEST_CUBINS";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    // Set for all crates by scripts/cuda.toml.
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"dynamic-loading\"))");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN", CUBINS] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    for header in HEADERS {
        println!("cargo::rerun-if-changed={header}");
    }
    let built = cubins().and_then(|cubins| {
        KERNELS.iter().try_for_each(|&(source, oldest)| {
            println!("cargo::rerun-if-changed={source}");
            image(Path::new(source), oldest, &cubins)
        })
    });
    match built {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("cargo::error={why}");
            ExitCode::FAILURE
        }
    }
}

/// The compute capabilities that machine code is asked for, such as 86 for 8.6.
fn cubins() -> Result<Vec<u32>, String> {
    let list = env::var(CUBINS).unwrap_or_default();
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let number = name.parse::<u32>().ok().filter(|n| (75..1000).contains(n));
            number.ok_or_else(|| {
                format!(
                    "{CUBINS}={list}: `{name}` is no compute capability; give numbers such as 80,86,89,90"
                )
            })
        })
        .collect()
}

/// Compiles a source to PTX and to an image, files of its name in `OUT_DIR`.
fn image(source: &Path, oldest: &str, cubins: &[u32]) -> Result<(), String> {
    let out = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set; run this by cargo")?;
    let to = Path::new(&out).join(source.file_name().unwrap_or(source.as_os_str()));
    let (ptx, image) = (to.with_extension("ptx"), to.with_extension("image"));
    compile(source, &["--ptx".to_owned(), format!("-arch=compute_{oldest}")], &ptx)?;
    // Machine code of an architecture's own instructions is for its cards, such as sm_90a where 90 is asked for.
    let (number, own) = oldest.split_at(oldest.len() - usize::from(oldest.ends_with('a')));
    let number = number.parse::<u32>().map_err(|why| format!("{oldest}: {why}"))?;
    let fits = |one: &&u32| if own.is_empty() { **one >= number } else { **one == number };
    let cubins: Vec<String> = cubins.iter().filter(fits).map(|one| format!("{one}{own}")).collect();
    if cubins.is_empty() {
        // The driver reads PTX up to a NUL.
        let mut text = fs::read(&ptx).map_err(|why| format!("{} cannot be read: {why}", ptx.display()))?;
        text.push(0);
        return fs::write(&image, text)
            .map_err(|why| format!("{} cannot be written: {why}", image.display()));
    }
    let codes = [format!("compute_{oldest}")].into_iter().chain(cubins.iter().map(|one| format!("sm_{one}")));
    let codes = codes.map(|code| format!("-gencode=arch=compute_{oldest},code={code}"));
    compile(source, &["--fatbin".to_owned()].into_iter().chain(codes).collect::<Vec<_>>(), &image)
}

fn compile(source: &Path, options: &[String], to: &Path) -> Result<(), String> {
    let nvcc = nvcc();
    // Its messages go to standard error, which cargo shows when a build script fails.
    let done =
        Command::new(&nvcc).args(options).args(["-O3", "-std=c++17", "-o"]).arg(to).arg(source).status();
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
