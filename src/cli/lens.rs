//! `palimpsest lens`: curves and ratios of a run, as CSV.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use crate::lens::{Curve, Lens, Options, Part, RunFolder, Scale, Statistic, table};

/// Curves and ratios of a run, as CSV.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder.
    pub(super) dir: PathBuf,
    #[command(flatten)]
    pub(super) analysis: Analysis,
}

/// Resamples of a band, unless told otherwise.
const DEFAULT_RESAMPLES: u32 = 2000;

/// How a run is analysed: the same flags for `lens`, `figures` and `report`.
#[derive(Debug, Clone, clap::Args)]
pub struct Analysis {
    /// Split by this judge's verdicts [default: the judge that judged last].
    #[arg(long, value_name = "NAME")]
    pub(super) judge: Option<String>,
    /// Bootstrap resamples of every confidence band.
    #[arg(long, default_value_t = DEFAULT_RESAMPLES, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub(super) resamples: u32,
    /// Seed of the bootstrap.
    #[arg(long, default_value_t = 0)]
    pub(super) bootstrap_seed: u64,
}

impl Default for Analysis {
    /// What an empty command line means.
    fn default() -> Self {
        Analysis { judge: None, resamples: DEFAULT_RESAMPLES, bootstrap_seed: 0 }
    }
}

impl Analysis {
    /// The validated form.
    pub fn options(self) -> Options {
        Options { judge: self.judge, resamples: self.resamples as usize, seed: self.bootstrap_seed }
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let folder = RunFolder::open(&args.dir)?;
    let lens = Lens::of(&folder, &args.analysis.options())?;
    let written = table::write(&lens, &args.dir.join("lens"))?;
    let mut text = summary(&lens);
    for path in written {
        let _ = writeln!(text, "wrote {}", path.display());
    }
    // a reader that has seen enough (`| head`) is no fault
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

/// One line a group that has members: attention in percent, averaged over layers, noise baselines in brackets.
fn summary(lens: &Lens) -> String {
    let mut text = String::new();
    let mut line = |line: String| text.push_str(&(line + "\n"));
    match &lens.judge {
        Some(judge) => line(format!("verdicts: {judge}")),
        None => line("verdicts: none, so nothing is split by correctness".to_owned()),
    }
    line(format!("{} layers, {} examples measured", lens.layers.len(), lens.examples.len()));
    for skipped in &lens.skipped {
        line(format!("not measured: {} {}: {}", skipped.case, skipped.probe, skipped.reason));
    }
    line("\nattention in %, mean over layers (noise baseline); ratio of means, mean over layers".to_owned());
    let head = Curve::ALL.map(|curve| format!("{:>17}", curve.label()));
    line(format!("{:<26}{:>5}{}{:>9}", "group", "n", head.concat(), "new/old"));
    for group in lens.groups() {
        let n = lens.cases(&group);
        if n == 0 {
            continue;
        }
        let over_layers = |statistic| {
            let series = lens.series(&group, statistic, Scale::Mass);
            let values: Vec<f64> = series.points.iter().filter_map(|point| point.value).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let percent = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{:.3}", v * 100.0));
        let cells = Curve::ALL.map(|curve| {
            let signal = percent(over_layers(Statistic::Mean(curve, Part::Signal)));
            let noise = percent(over_layers(Statistic::Mean(curve, Part::Noise)));
            let cell = format!("{signal} ({noise})");
            format!("{cell:>17}")
        });
        let ratio = over_layers(Statistic::RatioOfMeans).map_or("-".to_owned(), |r| format!("{r:.3}"));
        line(format!("{:<26}{n:>5}{}{ratio:>9}", group.label(), cells.concat()));
    }
    line(String::new());
    text
}
