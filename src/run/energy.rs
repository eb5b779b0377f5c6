//! Energy of a stretch of work, where the machine tells: processor packages (RAPL) and NVIDIA cards (NVML).
//!
//! Called by the local subject and by the judge, which write what it says into `costs.jsonl`. The counters are those of whole
//! packages and cards: what other processes do on them is in the sums. Where they cannot be read there is no energy, and nothing
//! is said: energy is never a reason to fail.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::nvml::EnergyCounters;
use palimpsest_core::engine::Hardware;

/// Where Linux lists the energy counters of Intel's and AMD's processors.
const POWERCAP: &str = "/sys/class/powercap";

/// Source of an energy measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoulesFrom {
    /// The counters of processor packages (RAPL).
    Rapl,
    /// The counters of NVIDIA cards (NVML), where those of the processors cannot be read.
    Nvml,
    RaplAndNvml,
}

impl std::fmt::Display for JoulesFrom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            JoulesFrom::Rapl => "RAPL",
            JoulesFrom::Nvml => "NVML",
            JoulesFrom::RaplAndNvml => "RAPL and NVML",
        })
    }
}

/// Seconds and joules of a stretch of work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    pub seconds: f64,
    /// Energy, where the machine tells, and who told it.
    pub joules: Option<(f64, JoulesFrom)>,
}

impl Spent {
    /// This part of it.
    #[must_use]
    pub fn share(self, part: f64) -> Self {
        Spent {
            seconds: self.seconds * part,
            joules: self.joules.map(|(joules, from)| (joules * part, from)),
        }
    }
}

/// The energy counters of what a model runs on.
#[derive(Debug, Default)]
pub struct Joulemeter {
    zones: Vec<Zone>,
    cards: Cards,
}

/// One processor package's counter, in microjoules.
#[derive(Debug)]
struct Zone {
    path: PathBuf,
    /// The counter begins anew after this value.
    range: u64,
    last: u64,
    total: u128,
}

#[derive(Debug, Default)]
enum Cards {
    #[default]
    None,
    /// There are some, and one does not tell its energy: what the processors used would pass for all of it.
    Untold,
    /// All of them, with what they said when the meter was made.
    Told { counters: EnergyCounters, first: Vec<u64> },
}

impl Joulemeter {
    /// The counters of what a model runs on. Of one that runs elsewhere (`None`) there are none here.
    pub fn of(hardware: Option<&Hardware>) -> Self {
        let Some(Hardware { accelerators }) = hardware else { return Joulemeter::default() };
        Joulemeter::with(Path::new(POWERCAP), accelerators, EnergyCounters::of)
    }

    /// The counters in a folder that is laid out as `/sys/class/powercap`, and those that `counters` finds for the accelerators'
    /// UUIDs.
    pub fn with(
        powercap: &Path,
        accelerators: &[Option<String>],
        counters: impl FnOnce(&[&str]) -> Option<EnergyCounters>,
    ) -> Self {
        let uuids: Option<Vec<&str>> = accelerators.iter().map(Option::as_deref).collect();
        let told = || {
            let counters = counters(&uuids?)?;
            let first = counters.millijoules()?;
            Some(Cards::Told { counters, first })
        };
        let cards = if accelerators.is_empty() { Cards::None } else { told().unwrap_or(Cards::Untold) };
        Joulemeter { zones: zones(powercap), cards }
    }

    /// Joules since the meter was made, and who tells them; `None` where nobody does, or an accelerator does not. A processor's counter
    /// that begins anew is followed as long as this is called at least once on each round, which takes minutes at the least.
    pub fn joules(&mut self) -> Option<(f64, JoulesFrom)> {
        let zones = self.of_zones();
        let cards = match &self.cards {
            Cards::Untold => return None,
            Cards::None => None,
            Cards::Told { counters, first } => Some(since(first, &counters.millijoules()?)?),
        };
        match (zones, cards) {
            (Some(zones), Some(cards)) => Some((zones + cards, JoulesFrom::RaplAndNvml)),
            (Some(zones), None) => Some((zones, JoulesFrom::Rapl)),
            (None, Some(cards)) => Some((cards, JoulesFrom::Nvml)),
            (None, None) => None,
        }
    }

    fn of_zones(&mut self) -> Option<f64> {
        for zone in &mut self.zones {
            let now: u64 = std::fs::read_to_string(&zone.path).ok()?.trim().parse().ok()?;
            let passed =
                if now >= zone.last { now - zone.last } else { now + zone.range.max(zone.last) - zone.last };
            zone.total += u128::from(passed);
            zone.last = now;
        }
        let total: u128 = self.zones.iter().map(|zone| zone.total).sum();
        (!self.zones.is_empty()).then_some(total as f64 / 1e6)
    }

    /// Begins a stretch of work.
    pub fn begin(&mut self) -> Stretch {
        Stretch { begun: Instant::now(), joules: self.joules() }
    }

    /// Energy and seconds since `stretch` began.
    pub fn end(&mut self, stretch: &Stretch) -> Spent {
        // A source that fell silent in between leaves no energy: the sums before and after are of different things.
        let joules = self.joules().zip(stretch.joules).filter(|((_, now), (_, then))| now == then);
        let joules = joules.map(|((now, from), (then, _))| (now - then, from));
        Spent { seconds: stretch.begun.elapsed().as_secs_f64(), joules }
    }
}

/// Joules of all cards between two readings. A counter that went back was begun anew with its driver, and what it had counted is not
/// known.
fn since(first: &[u64], now: &[u64]) -> Option<f64> {
    let of_cards = first.iter().zip(now).map(|(first, now)| now.checked_sub(*first));
    let millijoules: u64 = of_cards.sum::<Option<u64>>()?;
    Some(millijoules as f64 / 1e3)
}

/// Zones of packages alone: cores and memory controllers are parts of them, and counters of the whole platform contain them.
fn zones(powercap: &Path) -> Vec<Zone> {
    let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let is_package = |folder: &PathBuf| {
        std::fs::read_to_string(folder.join("name")).is_ok_and(|name| name.starts_with("package"))
    };
    let zone = |folder: PathBuf| {
        let path = folder.join("energy_uj");
        let range = number(folder.join("max_energy_range_uj"))?;
        Some(Zone { range, last: number(path.clone())?, path, total: 0 })
    };
    let entries = std::fs::read_dir(powercap).into_iter().flatten().flatten();
    let packages = entries.map(|entry| entry.path()).filter(is_package);
    // A package that cannot be read leaves none: the others would pass for all.
    packages.map(zone).collect::<Option<_>>().unwrap_or_default()
}

/// The beginning of a stretch of work.
#[derive(Debug, Clone, Copy)]
pub struct Stretch {
    begun: Instant,
    joules: Option<(f64, JoulesFrom)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(folder: &Path, zone: &str, name: &str, energy: u64) {
        let folder = folder.join(zone);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("name"), format!("{name}\n")).unwrap();
        std::fs::write(folder.join("max_energy_range_uj"), "1000000000\n").unwrap();
        std::fs::write(folder.join("energy_uj"), format!("{energy}\n")).unwrap();
    }

    fn of_processors(folder: &Path) -> Joulemeter {
        Joulemeter::with(folder, &[], |_| None)
    }

    #[test]
    fn joules_add_up_over_packages_alone_and_over_counters_that_begin_anew() {
        let root = tempfile::tempdir().unwrap();
        for (name, kind) in [
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:1", "package-1"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl:2", "psys"),
        ] {
            zone(root.path(), name, kind, 900_000_000);
        }
        let mut meter = of_processors(root.path());
        let rapl = |joules| Some((joules, JoulesFrom::Rapl));
        assert_eq!(meter.joules(), rapl(0.0));
        zone(root.path(), "intel-rapl:0", "package-0", 950_000_000);
        zone(root.path(), "intel-rapl:0:0", "core", 999_000_000);
        assert_eq!(meter.joules(), rapl(50.0));
        // 50 more to the end of the range, and 20 from its beginning.
        zone(root.path(), "intel-rapl:0", "package-0", 20_000_000);
        zone(root.path(), "intel-rapl:1", "package-1", 901_000_000);
        assert_eq!(meter.joules(), rapl(121.0));
        std::fs::remove_file(root.path().join("intel-rapl:1/energy_uj")).unwrap();
        assert_eq!(meter.joules(), None, "half of the energy is no energy");
        assert_eq!(
            of_processors(root.path()).joules(),
            None,
            "nor is it where the half is missing from the beginning"
        );
        assert_eq!(of_processors(&root.path().join("none")).joules(), None);
    }

    #[cfg(unix)]
    #[test]
    fn the_energy_of_a_runs_cards_is_added_to_that_of_the_processors_and_missing_cards_leave_none() {
        use super::super::nvml::pretend::{FIRST, OLD, SECOND, library};
        let root = tempfile::tempdir().unwrap();
        let (powercap, none) = (root.path().join("powercap"), root.path().join("none"));
        zone(&powercap, "intel-rapl:0", "package-0", 0);
        let library = library(root.path());
        let meter = |powercap: &Path, cards: &[Option<&str>]| {
            let cards: Vec<Option<String>> = cards.iter().map(|card| card.map(str::to_owned)).collect();
            Joulemeter::with(powercap, &cards, |uuids| EnergyCounters::by(&library, uuids))
        };
        // Each reading finds the first card 0.25 J and the second 1 J further.
        let mut both = meter(&powercap, &[Some(FIRST), Some(SECOND)]);
        let stretch = both.begin();
        zone(&powercap, "intel-rapl:0", "package-0", 10_000_000);
        let spent = both.end(&stretch);
        assert_eq!(spent.joules, Some((11.25, JoulesFrom::RaplAndNvml)));
        assert_eq!(spent.share(0.5).joules, Some((5.625, JoulesFrom::RaplAndNvml)));
        // Cards alone, where processors cannot be read, as without root; one card alone.
        let mut cards = meter(&none, &[Some(FIRST)]);
        let stretch = cards.begin();
        assert_eq!(cards.end(&stretch).joules, Some((0.25, JoulesFrom::Nvml)));
        // The processors fall silent: cards alone are another sum.
        let stretch = both.begin();
        std::fs::remove_file(powercap.join("intel-rapl:0/energy_uj")).unwrap();
        assert_eq!(both.end(&stretch).joules, None);
        // A card from before Volta, and a device that is no NVIDIA card: the rest would pass for the whole.
        zone(&powercap, "intel-rapl:0", "package-0", 0);
        for cards in [&[Some(FIRST), Some(OLD)][..], &[None], &[Some(FIRST), None]] {
            assert_eq!(meter(&powercap, cards).joules(), None, "{cards:?}");
        }
        // A model that runs elsewhere.
        assert_eq!(Joulemeter::of(None).joules(), None);
    }

    #[test]
    fn a_counter_that_went_back_leaves_no_energy() {
        assert_eq!(since(&[1000, 5000], &[3000, 5500]), Some(2.5));
        assert_eq!(since(&[1000, 5000], &[3000, 10]), None);
    }
}
