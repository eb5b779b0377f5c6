//! What cards can do at most by their makers' data sheets, by name, and the seconds that work should take there.

use std::str::FromStr;

use super::arithmetic::Work;

/// What a device can do at most, a second.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
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

/// The card that the table of `benches/README.md` is reckoned for: an A100-80GB.
pub const A100_80GB: Peaks = tera(312.0, 19.5, 2.04);

/// Names as drivers give them, without the maker's, and peaks.
const CARDS: [(&str, Peaks); 17] = [
    ("A100-SXM4-80GB", A100_80GB),
    ("A100 80GB PCIe", tera(312.0, 19.5, 1.935)),
    ("A100-SXM4-40GB", tera(312.0, 19.5, 1.555)),
    ("A100-PCIE-40GB", tera(312.0, 19.5, 1.555)),
    ("H100 80GB HBM3", tera(989.4, 66.9, 3.35)),
    ("H100 PCIe", tera(756.0, 51.2, 2.0)),
    ("H100 NVL", tera(835.5, 60.0, 3.9)),
    ("H200", tera(989.4, 66.9, 4.8)),
    ("L40S", tera(362.0, 91.6, 0.864)),
    ("L4", tera(121.0, 30.3, 0.3)),
    ("A40", tera(149.7, 37.4, 0.696)),
    ("A10", tera(125.0, 31.2, 0.6)),
    ("RTX A6000", tera(154.8, 38.7, 0.768)),
    ("RTX 6000 Ada Generation", tera(364.2, 91.1, 0.96)),
    ("GeForce RTX 4090", tera(165.2, 82.6, 1.008)),
    ("GeForce RTX 3090 Ti", tera(80.0, 40.0, 1.008)),
    ("GeForce RTX 3090", tera(71.0, 35.6, 0.936)),
];

/// A card that hours and memory are reckoned for without having it (`--card`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedCard {
    /// As it is typed.
    pub name: &'static str,
    /// As people call it.
    pub title: &'static str,
    /// Bytes of its memory by the data sheet, 10^9 a gigabyte.
    pub memory: u64,
    /// What it can do at most.
    pub peaks: Peaks,
    /// The maker's publication that says so. Rates with sparsity are halved.
    pub source: &'static str,
}

/// Memory of a card that no model gets: the CUDA context, cuBLAS's workspaces, what the allocator cannot use.
pub const RESERVED_MEMORY: u64 = 2_000_000_000;

/// The cards of `--card`. A100, H100 and H200 are those for SXM sockets.
pub const NAMED: [NamedCard; 6] = [
    named("a100-40", "A100 40 GB", 40, tera(312.0, 19.5, 1.555), "NVIDIA A100 data sheet"),
    named("a100-80", "A100 80 GB", 80, A100_80GB, "NVIDIA A100 data sheet"),
    named("h100", "H100 80 GB", 80, tera(989.4, 66.9, 3.35), "NVIDIA H100 data sheet"),
    named("h200", "H200 141 GB", 141, tera(989.4, 66.9, 4.8), "NVIDIA H200 data sheet"),
    named("l40s", "L40S 48 GB", 48, tera(362.0, 91.6, 0.864), "NVIDIA L40S data sheet"),
    named("rtx-4090", "RTX 4090 24 GB", 24, tera(165.2, 82.6, 1.008), "NVIDIA Ada architecture white paper"),
];

const fn named(
    name: &'static str,
    title: &'static str,
    gigabytes: u64,
    peaks: Peaks,
    source: &'static str,
) -> NamedCard {
    NamedCard { name, title, memory: gigabytes * 1_000_000_000, peaks, source }
}

impl NamedCard {
    /// Bytes that a model can have.
    pub fn usable(&self) -> u64 {
        self.memory - RESERVED_MEMORY
    }
}

/// A card that is not in [`NAMED`].
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

const fn tera(half: f64, f32: f64, bandwidth: f64) -> Peaks {
    Peaks { half: half * 1e12, f32: f32 * 1e12, bandwidth: bandwidth * 1e12 }
}

/// The peaks of a card, if it is in the table. A name must agree to the last letter: a laptop's chip is another one.
pub fn peaks(name: &str) -> Option<Peaks> {
    let name = name.trim().strip_prefix("NVIDIA ").unwrap_or(name.trim());
    CARDS.iter().find(|(known, _)| *known == name).map(|(_, peaks)| *peaks)
}

impl Peaks {
    /// Seconds that work should take where [`REACHED`] is reached, with products in half precision or in f32.
    pub fn seconds(&self, work: &Work, half: bool) -> f64 {
        let f32 = self.f32 * REACHED.f32;
        let products = if half { self.half * REACHED.half } else { f32 };
        work.products / products + work.products_f32 / f32 + work.bytes / (self.bandwidth * REACHED.bandwidth)
    }

    /// Operations a second of products in half precision or in f32.
    pub fn products(&self, half: bool) -> f64 {
        if half { self.half } else { self.f32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_known_by_their_whole_name_and_their_peaks_are_of_a_card_s_size() {
        for name in ["NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", " NVIDIA A100-SXM4-80GB\n"] {
            assert_eq!(peaks(name), Some(A100_80GB), "{name:?}");
        }
        for name in ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA L40", "NVIDIA", ""] {
            assert_eq!(peaks(name), None, "{name:?}");
        }
        for (name, Peaks { half, f32, bandwidth }) in CARDS {
            assert!((50e12..1e15).contains(&half) && (1.5 * f32..20.0 * f32).contains(&half), "{name}");
            assert!((0.2e12..6e12).contains(&bandwidth), "{name}");
        }
    }

    #[test]
    fn named_cards_have_the_peaks_of_the_card_by_its_driver_s_name_and_a_wrong_name_lists_them() {
        for (name, driver) in [
            ("a100-40", "A100-SXM4-40GB"),
            ("a100-80", "A100-SXM4-80GB"),
            ("h100", "H100 80GB HBM3"),
            ("h200", "H200"),
            ("l40s", "L40S"),
            ("rtx-4090", "GeForce RTX 4090"),
        ] {
            let card: NamedCard = name.parse().unwrap();
            assert_eq!(Some(card.peaks), peaks(driver), "{name}");
            assert!(card.title.contains(&format!("{} GB", card.memory / 1_000_000_000)), "{name}");
        }
        let unknown = "b200".parse::<NamedCard>().unwrap_err().to_string();
        assert!(
            NAMED.iter().all(|card| unknown.contains(card.name)) && unknown.contains("`b200`"),
            "{unknown}"
        );
    }

    #[test]
    fn seconds_add_up_over_products_and_bytes() {
        let work = Work { products: 156e12, products_f32: 5.85e12, bytes: 1.53e12 };
        assert!((A100_80GB.seconds(&work, true) - 3.0).abs() < 1e-9);
        let in_f32 = (156.0 + 5.85) / 5.85 + 1.0;
        assert!((A100_80GB.seconds(&work, false) - in_f32).abs() < 1e-9);
    }
}
