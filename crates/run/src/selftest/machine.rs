//! The program, the machine and the devices under test: what the system and the drivers tell, and the most memory that was in use at once.
//!
//! Only a CUDA driver tells more than what is free; in builds without the feature `cuda` the same functions tell nothing.

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

/// The program and the machine, as far as the system tells. Memory is in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    pub version: &'static str,
    /// Cargo features that are on.
    pub features: Vec<&'static str>,
    pub system: String,
    pub processor: Option<String>,
    pub cores: usize,
    /// The vectors that the CPU's kernels use here.
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

    /// In two lines.
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

/// A device, as far as it tells. Memory is in bytes, versions are major and minor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    pub device: String,
    pub card: Option<String>,
    pub memory: Option<u64>,
    pub memory_free: Option<u64>,
    pub compute_capability: Option<(i32, i32)>,
    pub driver: Option<String>,
    /// The newest CUDA that the driver supports.
    pub cuda: Option<(i32, i32)>,
    /// True if memory comes from the driver's pool, which keeps a high-water mark.
    pub pool: Option<bool>,
}

impl DeviceFacts {
    pub fn of(device: &Device) -> Self {
        let untold = || DeviceFacts { memory_free: available_bytes(device), ..DeviceFacts::default() };
        let told = driver::facts(device).unwrap_or_else(untold);
        DeviceFacts { device: DeviceName::of(device).to_string(), ..told }
    }

    /// In a line; empty for the CPU, which the host's line describes.
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

/// The version in the text of NVIDIA's kernel module: the first word that is numbers with points between.
#[cfg(any(test, feature = "cuda"))]
fn module_version(text: &str) -> Option<String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(is_number);
    text.lines().next()?.split_whitespace().find(is_version).map(ToOwned::to_owned)
}

/// The method of measuring memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The high-water mark of the driver's pool: exact. The context and cuBLAS's workspaces are not in it.
    Pool,
    /// The most memory that the whole process was seen to hold, with everything that it did before.
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

/// The most bytes that were taken of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peak {
    pub device: String,
    pub bytes: u64,
    pub how: How,
}

/// Watches the memory of devices from the moment that it is made: of the CPU, and of cards whose memory comes from a pool. Each
/// device once, with the bytes that were in use before.
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

    /// Forgets the most that was taken so far, but not what is in use now: what made-up weights are cut from is gone.
    pub fn forget(&self) {
        for (device, _) in self.0.iter().filter(|(device, _)| !device.is_cpu()) {
            let _ = reset(device);
        }
    }

    /// The most that was taken of each device since.
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

/// Sets a card's high-water mark to what is in use, and returns that. What earlier work has freed may still wait for the stream.
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

    #[test]
    fn the_cpu_is_told_in_the_host_s_lines_and_has_one_peak_however_often_it_is_named() {
        let (host, cpu) = (Host::here(), DeviceFacts::of(&Device::Cpu));
        assert!(host.cores > 0 && host.text().contains(env!("CARGO_PKG_VERSION")), "{}", host.text());
        assert_eq!((cpu.device.as_str(), cpu.card.as_ref(), cpu.text().as_str()), ("cpu", None, ""));
        if cfg!(target_os = "linux") {
            let gauge = Gauge::start(&[Device::Cpu, Device::Cpu]);
            let before = gauge.peaks();
            assert_eq!((before.len(), before[0].how, before[0].device.as_str()), (1, How::Process, "cpu"));
            let taken = std::hint::black_box(vec![1u8; 64 << 20]);
            assert!(gauge.peaks()[0].bytes >= 64 << 20);
            drop(taken);
        }
    }
}
