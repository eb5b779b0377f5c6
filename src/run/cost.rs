//! What answers and verdicts cost: tokens, seconds, and joules where the machine tells (STALE, appendix C).
//!
//! Owns `costs.jsonl`, whose rows differ from run to run. Everything else in a run folder is the same for the same identity, so
//! costs have a file of their own, which is no part of the identity and is only ever appended to. Written by the runner and
//! the judge through the run store; read by the commands and the report.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Where Linux lists the energy counters of Intel's and AMD's processors.
const POWERCAP: &str = "/sys/class/powercap";

/// One line of `costs.jsonl`: what one answer, or one call of a judge, cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CostRow {
    /// The case's id.
    pub case: String,
    /// The ids of the probes that it was spent on: one of an answer, all that a judge's call covers.
    pub probes: Vec<String>,
    /// The condition's name; absent for the plain one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// Which judge; absent for an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<String>,
    /// What it cost.
    #[serde(flatten)]
    pub cost: Cost,
}

/// What was spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Tokens of the prompt that were computed; of an endpoint, all of them, where it says.
    pub tokens_computed: Option<usize>,
    /// Tokens of the prompt that were in the KV cache, from a prompt that begins with the same ones.
    pub tokens_reused: usize,
    /// Tokens generated, where known.
    pub tokens_generated: Option<usize>,
    /// Seconds of the prefill, recording attention included. An endpoint's whole call is in `decode_seconds`.
    pub prefill_seconds: f64,
    /// Seconds of decoding. Of a batch, in proportion to the tokens of each answer.
    pub decode_seconds: f64,
    /// Energy of the processors during these seconds, of all processes; null where the machine does not tell.
    pub joules: Option<f64>,
    /// Where the energy was read: `rapl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules_from: Option<JoulesFrom>,
}

/// Who tells the energy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoulesFrom {
    /// The counters of processor packages (RAPL).
    Rapl,
}

/// Seconds and joules of a stretch of work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// Wall time.
    pub seconds: f64,
    /// Energy, where the machine tells.
    pub joules: Option<f64>,
}

impl Spent {
    /// This part of it.
    #[must_use]
    pub fn share(self, part: f64) -> Self {
        Spent { seconds: self.seconds * part, joules: self.joules.map(|joules| joules * part) }
    }
}

impl Cost {
    /// A cost of these stretches; tokens are the caller's to fill in.
    pub fn of(prefill: Spent, decode: Spent) -> Self {
        let joules = prefill.joules.zip(decode.joules).map(|(a, b)| a + b);
        Cost {
            prefill_seconds: prefill.seconds,
            decode_seconds: decode.seconds,
            joules,
            joules_from: joules.map(|_| JoulesFrom::Rapl),
            ..Cost::default()
        }
    }
}

/// The energy counters of this machine's processor packages. Where there are none, or they may not be read, it has none and
/// says nothing: energy is never a reason to fail.
#[derive(Debug, Default)]
pub struct Joulemeter {
    zones: Vec<Zone>,
}

/// One package's counter, in microjoules.
#[derive(Debug)]
struct Zone {
    path: PathBuf,
    /// The counter begins anew after this value.
    range: u64,
    last: u64,
    /// Since the meter was made.
    total: u128,
}

impl Joulemeter {
    /// The counters of this machine.
    pub fn here() -> Self {
        Joulemeter::under(Path::new(POWERCAP))
    }

    /// The counters in a folder that is laid out as `/sys/class/powercap`. Zones of packages alone: cores and memory controllers are
    /// parts of them, and counters of the whole platform contain them.
    pub fn under(folder: &Path) -> Self {
        let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let zone = |folder: PathBuf| {
            let name = std::fs::read_to_string(folder.join("name")).ok()?;
            let path = folder.join("energy_uj");
            let range = number(folder.join("max_energy_range_uj"))?;
            let last = number(path.clone())?;
            name.starts_with("package").then_some(Zone { path, range, last, total: 0 })
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        Joulemeter { zones: entries.filter_map(|entry| zone(entry.path())).collect() }
    }

    /// Joules since the meter was made; `None` where no counter can be read. A counter that begins anew is followed as long as
    /// this is called at least once on each round, which takes minutes at the least.
    pub fn joules(&mut self) -> Option<f64> {
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

    /// What was spent since `stretch` began.
    pub fn end(&mut self, stretch: &Stretch) -> Spent {
        let joules = self.joules().zip(stretch.joules).map(|(now, then)| now - then);
        Spent { seconds: stretch.begun.elapsed().as_secs_f64(), joules }
    }
}

/// The beginning of a stretch of work.
#[derive(Debug, Clone, Copy)]
pub struct Stretch {
    begun: Instant,
    joules: Option<f64>,
}

/// The mean cost of a case: all that was spent on answers, over the cases that it was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeanCost {
    /// Cases that have at least one row.
    pub cases: usize,
    /// Rows.
    pub rows: usize,
    /// Tokens computed a case; without rows that do not know theirs.
    pub tokens_computed: f64,
    /// Tokens reused a case.
    pub tokens_reused: f64,
    /// Tokens generated a case; without rows that do not know theirs.
    pub tokens_generated: f64,
    /// Seconds of prefill a case.
    pub prefill_seconds: f64,
    /// Seconds of decoding a case.
    pub decode_seconds: f64,
    /// Joules a case; `None` where a row has none.
    pub joules: Option<f64>,
}

impl MeanCost {
    /// The mean over what was spent on answers; `None` where nothing was.
    pub fn of_answers(rows: &[CostRow]) -> Option<Self> {
        MeanCost::of(rows.iter().filter(|row| row.judge.is_none()))
    }

    /// The mean over what was spent on judges; `None` where nothing was.
    pub fn of_judges(rows: &[CostRow]) -> Option<Self> {
        MeanCost::of(rows.iter().filter(|row| row.judge.is_some()))
    }

    fn of<'a>(rows: impl Iterator<Item = &'a CostRow>) -> Option<Self> {
        let rows: Vec<&CostRow> = rows.collect();
        let cases = rows.iter().map(|row| row.case.as_str()).collect::<BTreeSet<_>>().len();
        let mean = |of: fn(&Cost) -> f64| rows.iter().map(|row| of(&row.cost)).sum::<f64>() / cases as f64;
        let joules: Option<Vec<f64>> = rows.iter().map(|row| row.cost.joules).collect();
        (cases > 0).then(|| MeanCost {
            cases,
            rows: rows.len(),
            tokens_computed: mean(|cost| cost.tokens_computed.unwrap_or(0) as f64),
            tokens_reused: mean(|cost| cost.tokens_reused as f64),
            tokens_generated: mean(|cost| cost.tokens_generated.unwrap_or(0) as f64),
            prefill_seconds: mean(|cost| cost.prefill_seconds),
            decode_seconds: mean(|cost| cost.decode_seconds),
            joules: joules.map(|joules| joules.iter().sum::<f64>() / cases as f64),
        })
    }
}

impl fmt::Display for MeanCost {
    /// `12,345 tokens prefilled (and 24,000 reused), 210 generated, 83.2 s (prefill 71.0, decode 12.2), 5,300 J`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |n: f64| crate::progress::grouped(n.round() as u64);
        let seconds = self.prefill_seconds + self.decode_seconds;
        write!(
            f,
            "{} tokens prefilled (and {} reused), {} generated, {seconds:.1} s (prefill {:.1}, decode {:.1})",
            whole(self.tokens_computed),
            whole(self.tokens_reused),
            whole(self.tokens_generated),
            self.prefill_seconds,
            self.decode_seconds,
        )?;
        match self.joules {
            Some(joules) => write!(f, ", {} J", whole(joules)),
            None => Ok(()),
        }
    }
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
        let mut meter = Joulemeter::under(root.path());
        assert_eq!(meter.joules(), Some(0.0));
        zone(root.path(), "intel-rapl:0", "package-0", 950_000_000);
        zone(root.path(), "intel-rapl:0:0", "core", 999_000_000);
        assert_eq!(meter.joules(), Some(50.0));
        // 50 more to the end of the range, and 20 from its beginning.
        zone(root.path(), "intel-rapl:0", "package-0", 20_000_000);
        zone(root.path(), "intel-rapl:1", "package-1", 901_000_000);
        assert_eq!(meter.joules(), Some(121.0));
        std::fs::remove_file(root.path().join("intel-rapl:1/energy_uj")).unwrap();
        assert_eq!(meter.joules(), None, "half of the energy is no energy");
        assert_eq!(Joulemeter::under(&root.path().join("none")).joules(), None);
    }

    #[test]
    fn the_mean_is_over_cases_and_unknown_joules_stay_unknown() {
        let row = |case: &str, judge: Option<&str>, computed, joules| CostRow {
            case: case.to_owned(),
            judge: judge.map(str::to_owned),
            cost: Cost {
                tokens_computed: Some(computed),
                tokens_reused: 10,
                tokens_generated: None,
                prefill_seconds: 1.5,
                decode_seconds: 0.5,
                joules,
                joules_from: joules.map(|_| JoulesFrom::Rapl),
            },
            ..CostRow::default()
        };
        let rows =
            [row("a", None, 100, Some(4.0)), row("a", None, 20, Some(1.0)), row("b", None, 60, Some(7.0))];
        let mean = MeanCost::of_answers(&rows).unwrap();
        assert_eq!((mean.cases, mean.rows, mean.tokens_computed, mean.joules), (2, 3, 90.0, Some(6.0)));
        assert_eq!((mean.prefill_seconds, mean.decode_seconds, mean.tokens_reused), (2.25, 0.75, 15.0));
        assert!(
            mean.to_string().starts_with("90 tokens prefilled (and 15 reused), 0 generated, 3.0 s"),
            "{mean}"
        );
        assert_eq!(MeanCost::of_judges(&rows), None);
        let rows = [row("a", None, 1, Some(4.0)), row("a", None, 1, None), row("a", Some("j"), 1, None)];
        assert_eq!(MeanCost::of_answers(&rows).unwrap().joules, None);
        assert_eq!(MeanCost::of_judges(&rows).unwrap().rows, 1);
    }

    #[test]
    fn a_row_is_written_flat_with_null_for_unknown_joules_and_read_back() {
        let cost = Cost { tokens_computed: Some(3), ..Cost::of(Spent::default(), Spent::default()) };
        let row = CostRow { case: "a".to_owned(), probes: vec!["p".to_owned()], cost, ..CostRow::default() };
        let text = serde_json::to_string(&row).unwrap();
        assert!(text.contains("\"tokens_computed\":3") && text.contains("\"joules\":null"), "{text}");
        assert_eq!(serde_json::from_str::<CostRow>(&text).unwrap(), row);
    }
}
