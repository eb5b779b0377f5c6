//! Memory and estimated run times of cards that need not be present (`--card`).
//!
//! `work` counts a decoder's operations and bytes, `hours` divides them by published rates and the shares of them that one card reached ([`REACHED`]).
//! Estimates, never measurements. Called by `model plan --card` and `run --estimate --card`; `model try` prints the counts beside its measurements.

use std::str::FromStr;

mod hours;
mod work;

pub use hours::{CaseShape, Expected, Forecast, GAP, Hours, LAUNCH, ROW, duration, fewest_cards};
pub use work::{Kernel, LayerWork, Recording, Work, head, token_head};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// Dense bf16 or f16 operations, accumulated in f32.
    pub half: f64,
    /// f32 operations without TF32, which Candle disables.
    pub f32: f64,
    pub bandwidth: f64,
}

/// The shares of a card's [`Peaks`] that this program reaches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reached {
    /// Shares of the half-precision rate: linear maps with the norms, gates, copies and gaps between kernels beside them; attention of a
    /// prefill by our kernel; recorded rows by our kernels.
    pub linear: f64,
    pub attention: f64,
    pub rows: f64,
    /// Share of the f32 rate: products in f32.
    pub f32: f64,
    /// Share of the bandwidth: decoding, and scores in memory.
    pub bandwidth: f64,
    /// Operations per byte of the bandwidth, for what is many small kernels: linear maps of experts; the delta rule, and rows recorded of
    /// it.
    pub experts: f64,
    pub rule: f64,
}

/// The card of [`REACHED`], the day, and where its numbers are.
pub const MEASURED: [&str; 3] = ["h100", "2026-11-26", "benches/runs/2026-11-26-h100"];

/// As on the card of [`MEASURED`], and assumed of every other: Qwen3-8B's shape at 8K, 32K and 131K tokens (the whole program,
/// `later/`), and single layers of Qwen3.5-9B and gpt-oss-20b for the delta rule and experts, with kernels older than the present ones,
/// which were not timed. `f32` was not measured.
pub const REACHED: Reached = Reached {
    linear: 0.44,
    attention: 0.27,
    rows: 0.15,
    f32: 0.3,
    bandwidth: 0.66,
    experts: 11.0,
    rule: 0.5,
};

impl Peaks {
    /// Seconds of `work` at [`REACHED`], with products in half precision or f32.
    pub fn seconds(&self, work: &Work, half: bool) -> f64 {
        let Work { products, experts, attention, rows, products_f32, rule, bytes } = *work;
        let f32 = self.f32 * REACHED.f32;
        let by = |share: f64| if half { self.half * share } else { f32 };
        let linear = products - experts - attention - rows;
        linear / by(REACHED.linear)
            + attention / by(REACHED.attention)
            + rows / by(REACHED.rows)
            + (products_f32 - rule) / f32
            + (experts / REACHED.experts + rule / REACHED.rule + bytes / REACHED.bandwidth) / self.bandwidth
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedCard {
    pub name: &'static str,
    pub title: &'static str,
    /// Data-sheet memory, with 10^9 bytes per GB.
    pub memory: u64,
    pub peaks: Peaks,
    /// Data sheet of the rates. Rates with sparsity are halved.
    pub source: &'static str,
}

/// Memory unavailable to models: CUDA context, cuBLAS workspaces, allocator overhead.
const RESERVED_MEMORY: u64 = 2_000_000_000;

/// The cards of `--card`. A100, H100 and H200 are the SXM versions.
pub const NAMED: [NamedCard; 6] = [
    named("a100-40", "A100 40 GB", 40, [312.0, 19.5, 1.555], "NVIDIA A100 data sheet"),
    named("a100-80", "A100 80 GB", 80, [312.0, 19.5, 2.04], "NVIDIA A100 data sheet"),
    named("h100", "H100 80 GB", 80, [989.4, 66.9, 3.35], "NVIDIA H100 data sheet"),
    named("h200", "H200 141 GB", 141, [989.4, 66.9, 4.8], "NVIDIA H200 data sheet"),
    named("l40s", "L40S 48 GB", 48, [362.0, 91.6, 0.864], "NVIDIA L40S data sheet"),
    named("rtx-4090", "RTX 4090 24 GB", 24, [165.2, 82.6, 1.008], "NVIDIA Ada architecture white paper"),
];

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
    pub fn usable(&self) -> u64 {
        self.memory - RESERVED_MEMORY
    }
}

impl FromStr for NamedCard {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = NAMED.into_iter().find(|card| card.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            let known = NAMED.map(|card| card.name).join(", ");
            format!("the rates of `{name}` are not known; there are {known}")
        })
    }
}
