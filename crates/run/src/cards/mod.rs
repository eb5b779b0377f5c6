//! Cards that need not be here (`--card`): their memory, and an estimate of the seconds that a run takes there.
//!
//! `work` counts operations and bytes of a decoder's layers, `hours` divides them by the published rates of this
//! table and says it in words. An estimate, never a measurement. Called by `model plan --card` and
//! `run --estimate --card`; `model try` shows what is counted beside what it measures.

use std::str::FromStr;

mod hours;
mod work;

pub use hours::{CaseShape, Expected, Forecast, Hours, LAUNCH, duration, fewest_cards};
pub use work::{Kernel, LayerWork, Recording, Work, head, token_head};

/// Rates of a device, a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// Operations of dense products in bf16 or f16, summed in f32.
    pub half: f64,
    /// Operations in f32, without TF32, which Candle leaves off.
    pub f32: f64,
    /// Bytes read and written.
    pub bandwidth: f64,
}

/// The parts of the peaks that are assumed to be reached: of products in half precision, in f32, and of the bandwidth by what
/// only moves bytes.
pub const REACHED: Peaks = Peaks { half: 0.5, f32: 0.3, bandwidth: 0.75 };

impl Peaks {
    /// Seconds that work should take where [`REACHED`] is reached, with products in half precision or in f32.
    pub fn seconds(&self, work: &Work, half: bool) -> f64 {
        let f32 = self.f32 * REACHED.f32;
        let products = if half { self.half * REACHED.half } else { f32 };
        work.products / products + work.products_f32 / f32 + work.bytes / (self.bandwidth * REACHED.bandwidth)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedCard {
    pub name: &'static str,
    pub title: &'static str,
    /// Bytes of its memory by the data sheet, 10^9 a gigabyte.
    pub memory: u64,
    pub peaks: Peaks,
    /// The maker's publication that says so. Rates with sparsity are halved.
    pub source: &'static str,
}

/// Memory of a card that no model gets: the CUDA context, cuBLAS's workspaces, what the allocator cannot use.
const RESERVED_MEMORY: u64 = 2_000_000_000;

/// The cards of `--card`. A100, H100 and H200 are those for SXM sockets.
pub const NAMED: [NamedCard; 6] = [
    named("a100-40", "A100 40 GB", 40, [312.0, 19.5, 1.555], "NVIDIA A100 data sheet"),
    named("a100-80", "A100 80 GB", 80, [312.0, 19.5, 2.04], "NVIDIA A100 data sheet"),
    named("h100", "H100 80 GB", 80, [989.4, 66.9, 3.35], "NVIDIA H100 data sheet"),
    named("h200", "H200 141 GB", 141, [989.4, 66.9, 4.8], "NVIDIA H200 data sheet"),
    named("l40s", "L40S 48 GB", 48, [362.0, 91.6, 0.864], "NVIDIA L40S data sheet"),
    named("rtx-4090", "RTX 4090 24 GB", 24, [165.2, 82.6, 1.008], "NVIDIA Ada architecture white paper"),
];

/// Rates are in TFLOP/s of half precision and of f32, and in TB/s.
const fn named(
    name: &'static str,
    title: &'static str,
    gigabytes: u64,
    [half, f32, bandwidth]: [f64; 3],
    source: &'static str,
) -> NamedCard {
    let peaks = Peaks { half: half * 1e12, f32: f32 * 1e12, bandwidth: bandwidth * 1e12 };
    NamedCard { name, title, memory: gigabytes * 1_000_000_000, peaks, source }
}

impl NamedCard {
    /// Bytes that a model can have.
    pub fn usable(&self) -> u64 {
        self.memory - RESERVED_MEMORY
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rates of `{0}` are not known; there are {known}", known = NAMED.map(|card| card.name).join(", "))]
pub struct UnknownCard(String);

impl FromStr for NamedCard {
    type Err = UnknownCard;

    fn from_str(name: &str) -> Result<Self, UnknownCard> {
        let found = NAMED.iter().find(|card| card.name.eq_ignore_ascii_case(name));
        found.copied().ok_or_else(|| UnknownCard(name.to_owned()))
    }
}
