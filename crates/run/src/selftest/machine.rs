//! Facts of the program, the machine and the devices, and peak memory. Only a CUDA driver reports more than free memory; without the
//! feature `cuda` these functions return nothing.

use candle_core::Device;
use serde::Serialize;

use palimpsest_core::engine::memory_plan::{available_bytes, gigabytes, total_bytes};
use palimpsest_core::engine::{self, DeviceName};

#[cfg(feature = "cuda")]
#[path = "driver.rs"]
mod driver;

#[cfg(not(feature = "cuda"))]
mod driver {
    use super::{Device, DeviceFacts};

    pub(super) fn facts(_device: &Device) -> Option<DeviceFacts> {
        None
    }

    pub(super) fn most_used(_device: &Device) -> Option<u64> {
        None
    }

    pub(super) fn forget_most_used(_device: &Device) -> Option<()> {
        None
    }
}

/// Memory in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    pub version: &'static str,
    pub features: Vec<&'static str>,
    pub system: String,
    pub processor: Option<String>,
    pub cores: usize,
    /// SIMD instruction set of the CPU kernels.
    pub simd: &'static str,
    pub memory: Option<u64>,
    pub memory_free: Option<u64>,
}

impl Host {
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

    pub fn text(&self) -> String {
        let Host { version, features, system, processor, cores, simd, .. } = self;
        let features = match features.as_slice() {
            [] => "no features".to_owned(),
            some => format!("features {}", some.join(", ")),
        };
        let processor = processor.as_deref().unwrap_or("a processor whose name is not known");
        let s = if *cores == 1 { "" } else { "s" };
        let memory = of_memory(self.memory, self.memory_free);
        format!(
            "palimpsest {version}, {features}, {system}\nhost: {processor}, {cores} core{s}, {simd}{memory}\n"
        )
    }
}

const FEATURES: [(&str, bool); 5] = [
    ("cuda", cfg!(feature = "cuda")),
    ("flash-attn", cfg!(feature = "flash-attn")),
    ("metal", cfg!(feature = "metal")),
    ("accelerate", cfg!(feature = "accelerate")),
    ("mkl", cfg!(feature = "mkl")),
];

fn of_memory(all: Option<u64>, free: Option<u64>) -> String {
    let both = all.zip(free);
    both.map_or_else(String::new, |(all, free)| {
        format!("; {} of memory, {} free", gigabytes(all), gigabytes(free))
    })
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

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

/// Memory in bytes; versions are (major, minor).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    pub device: String,
    pub card: Option<String>,
    pub memory: Option<u64>,
    pub memory_free: Option<u64>,
    pub compute_capability: Option<(i32, i32)>,
    pub driver: Option<String>,
    /// The newest CUDA the driver supports.
    pub cuda: Option<(i32, i32)>,
    /// True if memory comes from the driver's pool, which has a high-water mark.
    pub pool: Option<bool>,
}

impl DeviceFacts {
    pub fn of(device: &Device) -> Self {
        let untold = || DeviceFacts { memory_free: available_bytes(device), ..DeviceFacts::default() };
        let told = driver::facts(device).unwrap_or_else(untold);
        DeviceFacts { device: DeviceName::of(device).to_string(), ..told }
    }

    /// Whether its card is the pretend one of `rehearsal/`, whose times say nothing.
    pub fn pretends(&self) -> bool {
        self.card.as_deref().is_some_and(|card| card.contains("no GPU"))
    }

    pub fn text(&self) -> String {
        let DeviceFacts { device, card: Some(card), .. } = self else {
            return match self.device.as_str() {
                "cpu" => String::new(),
                other => format!("{other}: it does not tell its name and memory\n"),
            };
        };
        let mut text = format!("{device}: {card}{}", of_memory(self.memory, self.memory_free));
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

/// The first dotted number in the version text of NVIDIA's kernel module.
#[cfg(any(test, feature = "cuda"))]
fn module_version(text: &str) -> Option<String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(is_number);
    text.lines().next()?.split_whitespace().find(is_version).map(ToOwned::to_owned)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The pool's high-water mark: exact, but excludes context and cuBLAS workspaces.
    Pool,
    /// Peak resident memory of the whole process, including earlier work.
    Process,
}

impl How {
    pub fn in_words(self) -> &'static str {
        match self {
            How::Pool => "by the high-water mark of the driver's pool",
            How::Process => "resident memory of the whole process at its peak",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peak {
    pub device: String,
    pub bytes: u64,
    pub how: How,
}

/// Measures peak memory of the CPU and of pooled cards from creation on. One (device, bytes in use at start) each.
#[derive(Debug)]
pub struct Gauge(Vec<(Device, u64)>);

impl Gauge {
    pub fn start(devices: &[Device]) -> Self {
        let mut watched: Vec<(Device, u64)> = Vec::new();
        for device in devices {
            if watched.iter().any(|(same, _)| same.same_device(device)) {
                continue;
            }
            let before = if device.is_cpu() { Some(0) } else { reset(device) };
            watched.extend(before.map(|before| (device.clone(), before)));
        }
        Gauge(watched)
    }

    /// Restarts measurement, to exclude temporaries of generated weights.
    pub fn forget(&self) {
        for (device, _) in self.0.iter().filter(|(device, _)| !device.is_cpu()) {
            let _ = reset(device);
        }
    }

    pub fn peaks(&self) -> Vec<Peak> {
        let peak = |(device, before): &(Device, u64)| {
            let (bytes, how) = match device {
                Device::Cpu => (engine::peak_resident_bytes()?, How::Process),
                card => (driver::most_used(card)?.saturating_sub(*before), How::Pool),
            };
            Some(Peak { device: DeviceName::of(device).to_string(), bytes, how })
        };
        self.0.iter().filter_map(peak).collect()
    }
}

/// Peak bytes of cards with a pool since their mark was last reset, by default since the process started.
pub fn card_peaks(devices: &[Device]) -> Vec<Peak> {
    let peak = |card: &Device| {
        card.synchronize().ok()?;
        let bytes = driver::most_used(card)?;
        Some(Peak { device: DeviceName::of(card).to_string(), bytes, how: How::Pool })
    };
    devices.iter().filter_map(peak).collect()
}

/// Resets the high-water mark and returns it; first synchronises, so that pending frees count.
fn reset(device: &Device) -> Option<u64> {
    device.synchronize().ok()?;
    driver::forget_most_used(device)?;
    driver::most_used(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_s_version_is_found_in_either_form_of_its_line() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Mon Feb 19 19:12:34 UTC 2024\nGCC";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n";
        for (text, version) in
            [(closed, Some("535.161.08")), (open, Some("550.54.15")), ("no version", None), ("", None)]
        {
            assert_eq!(module_version(text).as_deref(), version);
        }
    }
}
