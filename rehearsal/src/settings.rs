//! Settings from the environment, read once at the first call through [`settings`]. An invalid value ends the program before anything
//! runs: a rehearsal under unintended settings proves nothing.

use std::sync::OnceLock;

use crate::console;
use crate::faults::{Alteration, Plan};

/// Every variable with its values and meaning; the README's table repeats it.
pub const VARIABLES: [(&str, &str); 16] = [
    ("REHEARSAL_DEVICES", "1 to 8: how many cards there are (1)"),
    ("REHEARSAL_MEMORY", "bytes of each card: 80GiB, 8GB, 500000000 (80GiB)"),
    ("REHEARSAL_COMPUTE_CAP", "compute capability of the cards: 8.0 (8.0)"),
    ("REHEARSAL_ASYNC", "1: work waits in its stream until something needs it (0)"),
    ("REHEARSAL_RACES", "1: look for races in shared and global memory (as REHEARSAL_ASYNC)"),
    ("REHEARSAL_ARITHMETIC", "off: compute nothing and touch no memory, only count (on)"),
    ("REHEARSAL_THREADS", "1 to 256: threads that share a kernel's blocks and a product's tiles (all cores)"),
    ("REHEARSAL_CACHE", "folder of compiled kernels (rehearsal-kernels in the temporary folder)"),
    ("REHEARSAL_REPORT", "file that gets the counts as JSON at exit (none)"),
    ("REHEARSAL_STATS", "1: print the counts to stderr at exit (0)"),
    ("REHEARSAL_TRACE", "1: print every call to stderr (0)"),
    ("REHEARSAL_BACKTRACE", "1: print the caller's backtrace with every complaint (0)"),
    ("REHEARSAL_UNORDERED", "stop: end the program at the first use that no order protects (report)"),
    ("REHEARSAL_FAIL", "CALL:N or CALL:N=ERROR, several by commas: the N-th such call fails (none)"),
    (
        "REHEARSAL_ALTER",
        "KERNEL: OLD => NEW: that kernel is compiled with another text, as by a wrong compiler (none)",
    ),
    (
        "REHEARSAL_PTX",
        "folders of a CUDA build's .ptx modules, for tests/kernels (none: those tests are skipped)",
    ),
];

/// Maximum number of devices.
pub const MOST_DEVICES: usize = 8;
/// Maximum memory of a device, in bytes.
pub const MOST_MEMORY: u64 = 2 << 40;

/// All settings.
pub struct Settings {
    /// Number of devices.
    pub devices: usize,
    /// Memory per device, in bytes.
    pub memory: u64,
    /// Compute capability, major and minor.
    pub compute_cap: (i32, i32),
    /// Keep work queued until something needs it.
    pub asynchronous: bool,
    /// Detect races.
    pub races: bool,
    /// Run kernels and products.
    pub arithmetic: bool,
    /// Host threads for kernels and products.
    pub threads: usize,
    /// Folder of compiled kernels.
    pub cache: std::path::PathBuf,
    /// Output file of the JSON report.
    pub report: Option<std::path::PathBuf>,
    /// Print the counts.
    pub stats: bool,
    /// Print every call.
    pub trace: bool,
    /// Print the caller's backtrace with each fault.
    pub backtrace: bool,
    /// End the program at the first unordered use.
    pub stop_at_unordered: bool,
    /// Calls to fail.
    pub fail: Vec<Plan>,
    /// Kernel to compile wrongly.
    pub alter: Option<Alteration>,
}

/// Settings of this process.
pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS
        .get_or_init(|| read(&|name| std::env::var(name).ok()).unwrap_or_else(|why| console::refuse(&why)))
}

/// Reads the settings through `var`, the environment or a test's replacement. The error is a message for the user.
fn read(var: &dyn Fn(&str) -> Option<String>) -> Result<Settings, String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| name.starts_with("REHEARSAL_")) {
        if !VARIABLES.iter().any(|(known, _)| *known == name) {
            let known: Vec<_> = VARIABLES.iter().map(|(name, _)| *name).collect();
            return Err(format!("{name} is not a setting; there are {}", known.join(", ")));
        }
    }
    let wrong = |name: &str, value: &str| {
        let meaning = VARIABLES.iter().find(|(known, _)| *known == name).map_or("", |(_, meaning)| meaning);
        format!("{name}={value} is not understood; it takes {meaning}")
    };
    let switch = |name: &str| match var(name).as_deref() {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(wrong(name, other)),
    };
    let number = |name: &str, default: usize, most: usize| match var(name) {
        None => Ok(default),
        Some(text) => match text.parse() {
            Ok(n) if (1..=most).contains(&n) => Ok(n),
            _ => Err(wrong(name, &text)),
        },
    };
    let one_of = |name: &str, usual: &str, other: &str| match var(name) {
        None => Ok(false),
        Some(text) if text == usual => Ok(false),
        Some(text) if text == other => Ok(true),
        Some(text) => Err(wrong(name, &text)),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Settings {
        devices: number("REHEARSAL_DEVICES", 1, MOST_DEVICES)?,
        memory: match var("REHEARSAL_MEMORY") {
            None => 80 << 30,
            Some(text) => bytes(&text).ok_or_else(|| wrong("REHEARSAL_MEMORY", &text))?,
        },
        compute_cap: match var("REHEARSAL_COMPUTE_CAP") {
            None => (8, 0),
            Some(text) => text
                .split_once('.')
                .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
                .ok_or_else(|| wrong("REHEARSAL_COMPUTE_CAP", &text))?,
        },
        asynchronous: switch("REHEARSAL_ASYNC")?,
        races: switch(if var("REHEARSAL_RACES").is_some() { "REHEARSAL_RACES" } else { "REHEARSAL_ASYNC" })?,
        arithmetic: !one_of("REHEARSAL_ARITHMETIC", "on", "off")?,
        threads: number("REHEARSAL_THREADS", cores.min(256), 256)?,
        cache: var("REHEARSAL_CACHE")
            .filter(|text| !text.is_empty())
            .map_or_else(|| std::env::temp_dir().join("rehearsal-kernels"), Into::into),
        report: var("REHEARSAL_REPORT").filter(|text| !text.is_empty()).map(Into::into),
        stats: switch("REHEARSAL_STATS")?,
        trace: switch("REHEARSAL_TRACE")?,
        backtrace: switch("REHEARSAL_BACKTRACE")?,
        stop_at_unordered: one_of("REHEARSAL_UNORDERED", "report", "stop")?,
        fail: match var("REHEARSAL_FAIL") {
            None => Vec::new(),
            Some(text) => Plan::parse_all(&text).map_err(|why| format!("REHEARSAL_FAIL={text}: {why}"))?,
        },
        alter: match var("REHEARSAL_ALTER") {
            None => None,
            Some(text) => Some(Alteration::parse(&text).ok_or_else(|| wrong("REHEARSAL_ALTER", &text))?),
        },
    })
}

/// `8GB`, `8GiB`, `8000000000`: decimal and binary units.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor)?,
        Err(_) => (number.parse::<f64>().ok()? * factor as f64) as u64,
    };
    (1..=MOST_MEMORY).contains(&bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &'static [(&'static str, &'static str)]) -> Result<Settings, String> {
        read(&|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_string()))
    }

    #[test]
    fn sizes_are_read_in_powers_of_ten_and_of_two() {
        for (text, expected) in [
            ("8GB", 8_000_000_000),
            ("8GiB", 8 << 30),
            ("1.5MiB", 3 << 19),
            ("4096", 4096),
            ("16 KB", 16_000),
        ] {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
        for text in ["", "8G", "-1", "0", "much", "99999TiB"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_meaning() {
        for (name, value) in [
            ("REHEARSAL_DEVICES", "0"),
            ("REHEARSAL_DEVICES", "9"),
            ("REHEARSAL_ASYNC", "yes"),
            ("REHEARSAL_ARITHMETIC", "0"),
            ("REHEARSAL_COMPUTE_CAP", "80"),
            ("REHEARSAL_UNORDERED", "ignore"),
            ("REHEARSAL_ALTER", "kernel: add"),
            ("REHEARSAL_ALTER", "add => sub"),
        ] {
            let pairs: &'static [_] = Box::leak(Box::new([(name, value)]));
            let why = with(pairs).err().unwrap_or_default();
            let meaning = VARIABLES.iter().find(|(known, _)| *known == name).unwrap().1;
            assert!(
                why.contains(name) && why.contains(value) && why.contains(meaning),
                "{name}={value}: {why}"
            );
        }
    }

    #[test]
    fn the_readme_has_every_setting_in_the_same_words() {
        for (name, meaning) in VARIABLES {
            let line = format!("| `{name}` | {meaning} |");
            assert!(include_str!("../README.md").contains(&line), "{line}");
        }
    }

    #[test]
    fn values_reach_their_places() {
        let read = with(&[
            ("REHEARSAL_DEVICES", "2"),
            ("REHEARSAL_MEMORY", "1GiB"),
            ("REHEARSAL_COMPUTE_CAP", "9.0"),
            ("REHEARSAL_ASYNC", "1"),
            ("REHEARSAL_RACES", "0"),
            ("REHEARSAL_ARITHMETIC", "off"),
            ("REHEARSAL_FAIL", "cuMemAllocAsync:3"),
        ])
        .unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((read.devices, read.memory, read.compute_cap), (2, 1 << 30, (9, 0)));
        assert!(read.asynchronous && !read.races && !read.arithmetic && read.fail.len() == 1);
    }
}
