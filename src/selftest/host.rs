//! The program and the machine that it runs on.

use candle_core::Device;
use serde::Serialize;

use palimpsest_core::engine::memory_plan::{available_bytes, gigabytes, total_bytes};

/// The program and the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    pub version: &'static str,
    /// The Cargo features that it was built with.
    pub features: Vec<&'static str>,
    pub system: String,
    /// The processor's name, where the system tells.
    pub processor: Option<String>,
    pub cores: usize,
    /// The vectors that the CPU's kernels use here.
    pub simd: &'static str,
    /// Bytes of memory, where the system tells.
    pub memory: Option<u64>,
    pub memory_free: Option<u64>,
}

impl Host {
    /// Of this process.
    pub fn here() -> Self {
        Host {
            version: env!("CARGO_PKG_VERSION"),
            features: FEATURES.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            processor: processor(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            simd: simd(),
            memory: total_bytes(),
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

/// The processor's name, where the system tells it as Linux does.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
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
    fn the_host_is_described_with_the_program_s_version() {
        let host = Host::here();
        assert!(host.cores > 0 && host.text().contains(env!("CARGO_PKG_VERSION")), "{}", host.text());
    }
}
