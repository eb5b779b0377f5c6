//! What is known of the program, the machine and the devices before anything is run.

use candle_core::Device;
use serde::Serialize;

use super::cuda;
use palimpsest_core::engine::DeviceName;
use palimpsest_core::engine::memory_plan::{available_bytes, gigabytes};

/// The program and the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    /// This program's version.
    pub version: &'static str,
    /// The Cargo features that it was built with.
    pub features: Vec<&'static str>,
    /// Operating system and architecture.
    pub system: String,
    /// The processor's name, where the system tells.
    pub processor: Option<String>,
    /// Cores that this process may use.
    pub cores: usize,
    /// The vectors that the CPU's kernels use here.
    pub simd: &'static str,
    /// Bytes of memory, where the system tells.
    pub memory: Option<u64>,
    /// Of those, free to this process.
    pub memory_free: Option<u64>,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    /// Its name on the command line.
    pub device: String,
    /// The card's own name.
    pub card: Option<String>,
    /// Bytes of memory, where it tells.
    pub memory: Option<u64>,
    /// Of those, free.
    pub memory_free: Option<u64>,
    /// Compute capability, major and minor.
    pub compute_capability: Option<(i32, i32)>,
    /// The driver's version, where the system tells.
    pub driver: Option<String>,
    /// The newest CUDA that the driver supports, major and minor.
    pub cuda: Option<(i32, i32)>,
    /// Whether memory comes from the driver's pool.
    pub pool: Option<bool>,
}

impl Host {
    /// Of this process.
    pub fn here() -> Self {
        Host {
            version: env!("CARGO_PKG_VERSION"),
            features: FEATURES.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            processor: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            simd: simd(),
            memory: field("/proc/meminfo", "MemTotal").and_then(|text| kibibytes(&text)),
            memory_free: available_bytes(&Device::Cpu),
        }
    }

    /// In a line or two.
    pub fn text(&self) -> String {
        let Host { version, features, system, processor, cores, simd, memory, memory_free } = self;
        let features = match features.as_slice() {
            [] => "no features".to_owned(),
            some => format!("features {}", some.join(", ")),
        };
        let mut text = format!("palimpsest {version}, {features}, {system}\n");
        let processor = processor.as_deref().unwrap_or("a processor whose name is not known");
        let s = if *cores == 1 { "" } else { "s" };
        text += &format!("host: {processor}, {cores} core{s}, {simd}");
        if let (Some(memory), Some(free)) = (memory, memory_free) {
            text += &format!("; {} of memory, {} free", gigabytes(*memory), gigabytes(*free));
        }
        text + "\n"
    }
}

/// Cargo features and whether they are on.
const FEATURES: [(&str, bool); 5] = [
    ("cuda", cfg!(feature = "cuda")),
    ("flash-attn", cfg!(feature = "flash-attn")),
    ("metal", cfg!(feature = "metal")),
    ("accelerate", cfg!(feature = "accelerate")),
    ("mkl", cfg!(feature = "mkl")),
];

impl DeviceFacts {
    /// Of an open device.
    pub fn of(device: &Device) -> Self {
        let card = cuda::card(device);
        let name = DeviceName::of(device).to_string();
        let driver = card.as_ref().and_then(|_| driver());
        match card {
            Some(card) => DeviceFacts {
                device: name,
                card: Some(card.name),
                memory: Some(card.total),
                memory_free: Some(card.free),
                compute_capability: Some(card.compute_capability),
                driver,
                cuda: card.cuda,
                pool: Some(card.pool),
            },
            None => DeviceFacts {
                device: name,
                card: None,
                memory: None,
                memory_free: available_bytes(device),
                compute_capability: None,
                driver: None,
                cuda: None,
                pool: None,
            },
        }
    }

    /// In a line; empty for the CPU, of which [`Host`] says all.
    pub fn text(&self) -> String {
        let DeviceFacts { device, card: Some(card), .. } = self else {
            return match self.device.as_str() {
                "cpu" => String::new(),
                other => format!("{other}: it does not tell its name and memory\n"),
            };
        };
        let mut text = format!("{device}: {card}");
        if let (Some(memory), Some(free)) = (self.memory, self.memory_free) {
            text += &format!("; {} of memory, {} free", gigabytes(memory), gigabytes(free));
        }
        if let Some((major, minor)) = self.compute_capability {
            text += &format!("; compute capability {major}.{minor}");
        }
        if let Some(driver) = &self.driver {
            text += &format!("; driver {driver}");
        }
        if let Some((major, minor)) = self.cuda {
            text += &format!(" for CUDA up to {major}.{minor}");
        }
        text + "\n"
    }
}

/// The version of NVIDIA's kernel module, on Linux.
fn driver() -> Option<String> {
    version_of(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The version in the text of the kernel module: the first word that is numbers with points between.
fn version_of(text: &str) -> Option<String> {
    let numbers = |word: &&str| {
        word.split('.').count() >= 2
            && word.split('.').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    text.lines().next()?.split_whitespace().find(numbers).map(ToOwned::to_owned)
}

/// The first value of a field in a file of lines `field: value`.
fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|field| field.trim() == name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The instruction set that the kernels are dispatched to.
fn simd() -> &'static str {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    return match pulp::Arch::new() {
        pulp::Arch::V4(_) => "AVX-512",
        pulp::Arch::V3(_) => "AVX2",
        _ => "no vectors",
    };
    #[cfg(target_arch = "aarch64")]
    return match pulp::Arch::new() {
        pulp::Arch::Neon(_) => "NEON",
        _ => "no vectors",
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    return "no vectors";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_s_version_is_found_in_either_form_of_its_line() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Mon Feb 19 19:12:34 UTC 2024\nGCC";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n";
        assert_eq!(version_of(closed).as_deref(), Some("535.161.08"));
        assert_eq!(version_of(open).as_deref(), Some("550.54.15"));
        assert_eq!(version_of("no version"), None);
        assert_eq!(version_of(""), None);
    }

    #[test]
    fn the_cpu_is_described_by_the_host_alone() {
        let host = Host::here();
        assert!(host.cores > 0 && host.text().contains(env!("CARGO_PKG_VERSION")), "{}", host.text());
        let cpu = DeviceFacts::of(&Device::Cpu);
        assert_eq!((cpu.device.as_str(), cpu.card.as_ref(), cpu.text().as_str()), ("cpu", None, ""));
    }
}
